"""First processes of PID namespaces after kills: none is kept by what has ended, none is taken for a command."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import namespaces
from shellback.exec.wire import layout
from tests.escape.scene import PYTHON
from tests.sandboxes import Boxes, adjust, boxes
from tests.supervisors import end, state_of, stop, until

pytestmark = pytest.mark.anyio

HEADLESS = (Path(__file__).parents[2] / "programs" / "headless.py").read_text()

SLOW = (
    "import signal, time, types; "
    "adjusted.signal = types.SimpleNamespace(**vars(signal)); "
    "adjusted.signal.signal = lambda *words: (time.sleep(0.5), signal.signal(*words))"
)
"""A first process that takes its time before it does anything about signals."""

UNMARKED = "known = adjusted.marker; adjusted.marker = lambda pid: m if (m := known(pid)) != 'init.living' else None"
"""As of one that is about to end, nothing tells whose the first process of `living` is."""


async def test_a_first_process_is_not_kept_by_who_ended_before_it_was_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "sandbox.namespaces", SLOW)
    async with boxes(tmp_path) as box:
        assert (await box.run("a", "(sleep 0.1 &); exit 3"))["exit_code"] == 3
        await box.nothing_left()


async def test_nobody_stays_whose_first_thread_has_ended(box: Boxes) -> None:
    script = 'setsid "$0" -c "$1" & read go; exit 3'
    await box.start("a", "/bin/sh", "-c", script, PYTHON, HEADLESS, keep_stdin_open=True)
    await box.until_log("a", b"ready")
    await box.client.write("a", b"go\n")
    assert len((await box.exit("a"))["survivors"]) == 1
    assert (await box.client.kill("a", grace_s=0, ended_by="agent")).killed
    await box.nothing_left()


async def test_a_command_that_was_told_to_go_is_never_said_not_to_have_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "service.recovery", "adjusted._STRAYS_S = 600.0")
    async with boxes(tmp_path) as box:
        supervisor, _ = await box.pids()
        box.arm("supervisor.forked", "stop self")
        starts = asyncio.create_task(box.start("a", f"echo ran > ran; exit {namespaces.UNTOLD}"))
        await until(lambda: state_of(supervisor) == "T")
        await until(lambda: any(proc.ppid == supervisor and proc.state == "Z" for proc in procfs.snapshot()))
        await end(supervisor)
        record = await box.exit("a")
        assert (record["state"], record["evidence"]) == ("lost", "supervisor_killed")
        await asyncio.gather(starts, return_exceptions=True)
        (box.workspace / "ran").unlink()
        await box.nothing_left()


async def test_a_first_process_is_not_taken_for_a_command_that_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjust(monkeypatch, "process.procfs", UNMARKED)
    async with boxes(tmp_path) as box:
        cold = (await box.plan("cold")).sandbox
        assert cold is not None
        cold = replace(cold, bwrap=box.script("exec sleep 600"))
        waits = asyncio.create_task(box.start("waits", "true", sandbox=cold))
        await until((box.folder("waits") / layout.LAID).exists)
        os.mkfifo(box.workspace / "fifo", 0o666)
        (box.workspace / "fifo").chmod(0o666)
        await box.start("living", "exec sleep 600")
        await box.start("ended", "read go < fifo; exit 7")
        supervisor, _ = await box.pids()
        await stop(supervisor)
        (box.workspace / "fifo").write_text("go\n")
        await until(lambda: any(proc.ppid == supervisor and proc.state == "Z" for proc in procfs.snapshot()))
        os.kill(supervisor, 9)  # the keeper's child, stopped
        record = await box.exit("waits")
        assert (record["state"], record["evidence"]) == ("lost", "never_started")
        assert (await box.exit("ended"))["exit_code"] == 7
        await asyncio.gather(waits, return_exceptions=True)
        assert (await box.client.kill("living", grace_s=0, ended_by="agent")).killed
        (box.workspace / "fifo").unlink()
        await box.nothing_left()
