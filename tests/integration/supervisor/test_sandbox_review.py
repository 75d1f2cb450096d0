"""Sandboxes under the rarer misfortunes: full tables, forged marks, several starts under way when a supervisor dies."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import cgroups, hierarchies, namespaces
from shellback.exec.supervisor.sandbox.cgroups import Cgroups, Found
from shellback.exec.wire import layout
from shellback.exec.wire.sandbox import Bounds
from tests.sandboxes import Boxes, adjust, boxes
from tests.supervisors import until

pytestmark = pytest.mark.anyio

_NO_ROOM = """
import os, resource
from shellback.exec.supervisor.sandbox import namespaces
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
read, write = os.pipe()
pid = namespaces.in_child(lambda: os._exit(0), write)
os.waitpid(pid, 0)
print(os.read(read, 100).decode())
"""


async def test_more_descriptors_than_a_command_may_have_stop_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "process.spawn", "adjusted._SOFT = 48")
    async with boxes(tmp_path) as box:
        for number in range(12):
            answer = await box.start(f"s{number}", "exec sleep 600", keep_stdin_open=True)
            assert answer.outcome == "started"
        await box.run("last", "ulimit -Sn")
        assert box.log("last") == b"48\n"


async def test_a_child_without_a_descriptor_is_not_a_second_supervisor() -> None:
    command = [sys.executable, "-c", _NO_ROOM]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == [f"!{errno.EINVAL}"]


def test_names_of_files_say_nothing_to_the_supervisor() -> None:
    read, write = os.pipe()

    def fail() -> NoReturn:
        raise OSError(errno.ELOOP, "no", 'a\nready\n!9\n{"child-pid": 7}')

    os.waitpid(namespaces.in_child(fail, write), 0)
    os.close(write)
    text = os.read(read, 4096).decode()
    os.close(read)
    assert text.splitlines()[1:] == [f"!{errno.ELOOP}"]


async def test_a_start_that_fails_early_does_not_end_the_instance_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "sandbox.instances", "adjusted.Instances.__init__.__kwdefaults__['idle_s'] = 0.05")
    async with boxes(tmp_path) as box:
        await box.start("long", "echo here > /tmp/x; echo ready; exec sleep 600")
        await box.until_log("long", b"ready")
        box.arm("supervisor.held", f"error {errno.EMFILE}")
        answer = await box.start("failed", "true")
        assert (answer.outcome, answer.message) == ("refused", "Too many open files")
        await asyncio.sleep(0.3)
        assert (await box.run("next", "cat /tmp/x"))["exit_code"] == 0


async def test_a_forged_mark_of_a_first_process_keeps_nobody_from_being_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "service.recovery", "adjusted._STRAYS_S = 0.0")
    async with boxes(tmp_path) as box:
        await box.start(
            "a",
            f"read go; (setsid sleep 600 &); {layout.MARKER}=init.${layout.MARKER} sleep 601 & echo ready; wait",
            background=True,
            keep_stdin_open=True,
        )
        first = box.first("a")
        await box.client.write("a", b"go\n")
        await box.until_log("a", b"ready")
        await until(lambda: len(box.inside(first)) == 3)
        await box.kill_supervisor()
        await box.client.connect()
        assert (await box.client.kill("a", grace_s=0, ended_by="agent")).survivors == ()
        assert box.inside(first) == []
        assert (await box.exit("a"))["signal"] == signal.SIGKILL
        await box.nothing_left()


async def test_an_end_that_finds_no_room_on_disk_does_not_take_the_keeper_along(box: Boxes) -> None:
    _, keeper = await box.pids()
    sandbox = (await box.plan()).sandbox
    assert sandbox is not None
    stubs = tuple(str(box.workspace / f"{'n' * 200}{number}") for number in range(200))
    box.arm("supervisor.record_written", f"error {errno.ENOSPC}")
    assert (await box.run("a", "exit 3", sandbox=replace(sandbox, stubs=stubs)))["exit_code"] == 3
    box.arm("supervisor.record_written", f"error {errno.ENOSPC}")  # nor a second later
    # When the namespace has ended as well the keeper gives everything back but the record.
    await until(lambda: not box.marked())
    for _ in range(2):
        await box.client.info()
    await box.kill_supervisor()
    box.forget()
    assert (await box.exit_after_connect("a"))["exit_code"] == 3
    assert (await box.pids())[1] == keeper
    await box.nothing_left()


async def test_names_of_mounts_are_not_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": "4:pids:/own\n",
        "/proc/self/mountinfo": "1 2 0:1 / /mnt/a\x0cb rw - fuse f rw\n3 2 0:2 / /cg rw - cgroup cgroup rw,pids\n",
    }
    monkeypatch.setattr(hierarchies, "read", files.__getitem__)
    (found,) = hierarchies.hierarchies([], "leaf", set())
    assert (found.folder, found.kinds) == ("/cg/own", ("pids",))


async def test_where_groups_limit_no_command_starts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_all: object) -> Found:
        return Found(memory=True, processes=True, says="")

    def make(*_all: object, **_limits: Any) -> None:
        return None

    monkeypatch.setattr(Cgroups, "probe", probe)
    monkeypatch.setattr(Cgroups, "make", make)
    made = cgroups.Groups(Loop(), lambda: None, lambda _why: None)
    with pytest.raises(OSError, match="group"):
        made.join("key", Bounds(processes=5, memory_bytes=1 << 30))
    assert made.join("key", Bounds()) is None


async def test_a_look_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_pid: int) -> None:
        raise OSError(errno.EMFILE, "full")

    monkeypatch.setattr(procfs, "read", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="full"):
        procfs.open_pidfd(os.getpid(), 1)
    assert len(os.listdir("/proc/self/fd")) == before
