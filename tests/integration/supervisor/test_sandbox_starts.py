"""Sandboxed starts that are slow, hang, fail, or are asked for and killed meanwhile: told as they are."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.wire.sandbox import Sandbox
from tests.sandboxes import Boxes, adjust, boxes
from tests.supervisors import until

pytestmark = pytest.mark.anyio

HELD = 'read _ < {fifo}; exec "$BWRAP" "$@"'
"""Goes on when somebody writes into the pipe."""
HANGS = "exec sleep 600"


async def planned(box: Boxes, **changes: Any) -> Sandbox:
    plan = await box.plan()
    assert plan.sandbox is not None
    return replace(plan.sandbox, **changes)


class Slow:
    """A start that waits in bubblewrap until it is let go."""

    def __init__(self, box: Boxes) -> None:
        self.box = box
        self.fifo = box.workspace / "fake-fifo"
        self.asked: list[asyncio.Task[Any]] = []

    async def begin(self, name: str, script: str, **more: Any) -> None:
        assert (await self.box.run("warm", "mkfifo -m 666 fake-fifo"))["exit_code"] == 0
        sandbox = await planned(self.box, bwrap=self.box.script(HELD.format(fifo=self.fifo)))
        self.again = lambda: self.box.start(name, script, sandbox=sandbox, **more)
        self.asked.append(asyncio.create_task(self.again()))
        async with asyncio.timeout(30):
            while (await self.box.client.status(name))["state"] != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def go_on(self) -> None:
        await asyncio.to_thread(self.fifo.write_text, "\n")


async def test_a_start_under_way_is_running_and_asking_again_starts_nothing(box: Boxes) -> None:
    slow = Slow(box)
    await slow.begin("a", "echo x >> fake-count; exit 8")
    status = await box.client.status("a")
    assert (status["state"], status["pid"]) == ("running", None)
    slow.asked += [asyncio.create_task(slow.again()) for _ in range(3)]
    # Whoever asks after them hears nothing of theirs before the start is done.
    assert await box.live() == ["a"]
    assert not any(task.done() for task in slow.asked)
    await slow.go_on()
    answers = await asyncio.gather(*slow.asked)
    assert [answer.outcome for answer in answers] == ["started", "already", "already", "already"]
    assert (await box.exit("a"))["exit_code"] == 8
    assert (box.workspace / "fake-count").read_text() == "x\n"


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
async def test_a_kill_during_a_start_ends_what_comes_of_it(box: Boxes, grace_s: float) -> None:
    slow = Slow(box)
    await slow.begin("a", "exec sleep 600")
    kill = asyncio.create_task(box.client.kill("a", grace_s=grace_s, ended_by="person"))
    assert await box.live() == ["a"]
    assert not kill.done()
    await slow.go_on()
    assert (await kill).killed
    record = await box.exit("a")
    assert (record["state"], record["ended_by"]) == ("signaled", "person")
    await until(lambda: not box.marked())


async def test_a_timeout_counts_from_the_request(box: Boxes) -> None:
    slow = Slow(box)
    await slow.begin("a", "exec sleep 600", timeout_s=0.2)
    await asyncio.sleep(0.3)
    await slow.go_on()
    record = await box.exit("a")
    assert (record["state"], record["ended_by"]) == ("timed_out", "timeout")


@pytest.mark.parametrize("stage", ["instance", "command"])
async def test_a_bubblewrap_that_hangs_is_a_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    module, name = ("sandbox.instances", "MAKE_S") if stage == "instance" else ("sandbox.launching", "LAUNCH_S")
    adjust(monkeypatch, module, f"adjusted.{name} = 3.0")
    async with boxes(tmp_path) as box:
        if stage == "command":
            await box.run("warm", "exit 0")
        answer = await box.start("a", "exit 0", sandbox=await planned(box, bwrap=box.script(HANGS)))
        assert answer.outcome == "start_failed"
        assert answer.record is not None
        assert (answer.record["errno"], answer.record["pid"]) == (errno.ETIMEDOUT, None)
        assert (await box.run("b", "exit 4"))["exit_code"] == 4
        await box.nothing_left()


@pytest.mark.parametrize("stage", ["view", "wrap"])
async def test_a_bubblewrap_that_fails_says_why_in_the_log(box: Boxes, stage: str) -> None:
    sandbox = await planned(box)
    words = ("--ro-bind", "/no/such/place", "/tmp/here")
    sandbox = replace(sandbox, key="spoiled", **{stage: (*getattr(sandbox, stage), *words)})
    answer = await box.start("a", "exit 0", sandbox=sandbox)
    assert answer.outcome == "start_failed"
    assert answer.record is not None
    assert answer.record["errno"] == errno.ENOENT
    assert box.log("a").startswith(b"bwrap: ")
    assert b"/no/such/place" in box.log("a")
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


async def test_many_at_once_share_one_instance_and_all_end_as_they_should(box: Boxes) -> None:
    await asyncio.gather(*(box.start(f"s{number}", f"exit {number}") for number in range(12)))
    for number in range(12):
        assert (await box.exit(f"s{number}"))["exit_code"] == number
    assert (await box.client.info())["sandboxes"] == 1
    await box.nothing_left()
