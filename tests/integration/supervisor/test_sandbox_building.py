"""Sandboxes that stand before their command is there: used, ended, and never in anybody's way."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from shellback.exec.supervisor.process import procfs
from tests.sandboxes import Boxes, boxes, namespace
from tests.supervisors import end, until

pytestmark = pytest.mark.anyio
LONG_S = 600.0


async def standing(box: Boxes) -> tuple[int, int]:
    """The one that waits for an order, and its first process."""
    supervisor, _ = await box.pids()
    found: list[tuple[int, int]] = []

    def there() -> bool:
        ours = [proc.pid for proc in procfs.snapshot() if proc.ppid == supervisor]
        firsts = [pid for pid in ours if procfs.first_of_namespace(pid)]
        found[:] = [
            (pid, first) for first in firsts for pid in ours if pid != first and namespace(pid) == namespace(first)
        ]
        return len(found) == 1 and _descriptors(found[0][0]) == 3

    await until(there)
    return found[0]


def _descriptors(pid: int) -> int:
    """How many it has beside its streams; -1 of one that has ended since it was seen."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd")) - 3
    return -1


async def test_the_next_command_gets_the_sandbox_that_stands(tmp_path: Path) -> None:
    async with boxes(tmp_path, ahead_s=LONG_S) as box:
        await box.run("one", "true")
        _, first = await standing(box)
        await box.start("two", "sleep 60", background=True)
        assert box.first("two") == first
        await box.client.kill("two", grace_s=0, ended_by="agent")


async def test_one_that_stands_has_a_socket_a_pipe_and_its_namespace_and_nothing_else(tmp_path: Path) -> None:
    async with boxes(tmp_path, ahead_s=LONG_S) as box:
        await box.start("long", "sleep 60", background=True)
        await box.run("one", "true")
        pid, first = await standing(box)
        kinds = sorted(os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in _above(pid))
        assert kinds == ["pipe", "socket", "user"]
        assert len(os.listdir(f"/proc/{first}/fd")) == 1
        await box.client.kill("long", grace_s=0, ended_by="agent")


@pytest.mark.parametrize("which", [0, 1])
async def test_a_command_runs_where_the_one_that_stood_was_killed(tmp_path: Path, which: int) -> None:
    async with boxes(tmp_path, ahead_s=LONG_S) as box:
        await box.run("one", "true")
        await end((await standing(box))[which])
        await box.run("two", "echo here > two")
        assert (box.workspace / "two").read_text() == "here\n"


async def test_nobody_stands_by_when_the_supervisor_has_died(tmp_path: Path) -> None:
    async with boxes(tmp_path, ahead_s=LONG_S) as box:
        await box.run("one", "true")
        stood = await standing(box)
        os.kill((await box.pids())[0], signal.SIGKILL)
        await until(lambda: not any((proc := procfs.read(pid)) is not None and proc.alive for pid in stood))


def _above(pid: int) -> list[str]:
    return [fd for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]
