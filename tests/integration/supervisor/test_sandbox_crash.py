"""Supervisor and keeper killed while a sandboxed command starts, runs and ends: nothing lost, doubled or left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest

from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import namespaces
from tests.sandboxes import Boxes, adjusted
from tests.supervisors import gone, until

pytestmark = pytest.mark.anyio

COUNTS = "echo ran >> count; echo ran; exit 8"
BEFORE = ("marked", "held", "sandboxed", "stands")
"""Nobody has said go yet."""


def counted(box: Boxes) -> int:
    """How often the command has run."""
    path = box.workspace / "count"
    runs = len(path.read_text().split()) if path.exists() else 0
    path.unlink(missing_ok=True)
    return runs


async def orders(box: Boxes, victims: str) -> str:
    """What has to happen at a point of the supervisor for these to be killed there."""
    _, keeper = await box.pids()
    others = [f"kill {keeper}"] if "keeper" in victims else []
    return "\n".join([*others, *(["kill self"] if "supervisor" in victims else [])])


@pytest.mark.parametrize("pty", [None, (24, 80)])
@pytest.mark.parametrize("point", ["request", *BEFORE, "forked", "recorded_pid"])
async def test_a_kill_at_each_point_of_a_start(box: Boxes, point: str, pty: tuple[int, int] | None) -> None:
    before, _ = await box.pids()
    box.arm(f"supervisor.{point}")
    answer = await box.start("a", COUNTS, pty=pty)
    record = await box.exit("a")
    assert await gone(before)
    if point in BEFORE:
        assert (record["state"], record["evidence"]) == ("lost", "never_started")
        assert (answer["outcome"], counted(box)) == ("already", 0)
    else:
        assert (record["state"], record["exit_code"]) == ("exited", 8)
        assert (box.log("a").count(b"ran"), counted(box)) == (1, 1)
    # What a start that was cut off has put into the workspace, the next one takes away.
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


@pytest.mark.parametrize("point", [*BEFORE, "forked", "recorded_pid"])
async def test_a_start_without_a_keeper_goes_on(box: Boxes, point: str) -> None:
    box.arm(f"supervisor.{point}", await orders(box, "keeper"))
    await box.start("a", COUNTS)
    record = await box.exit("a")
    assert (record["exit_code"], counted(box)) == (8, 1)
    await until(lambda: not box.marked())


@pytest.mark.parametrize("point", [*BEFORE, "forked", "recorded_pid"])
async def test_a_kill_of_both_at_each_point_of_a_start(box: Boxes, point: str) -> None:
    box.arm(f"supervisor.{point}", await orders(box, "keeper supervisor"))
    await box.start("a", COUNTS)
    record = await box.exit("a")
    runs = counted(box)
    if record["state"] == "lost":
        assert record["evidence"] == "supervisor_killed"
        assert runs <= (point not in BEFORE)
    else:
        assert (runs, record["exit_code"] == 8 or record["signal"] == signal.SIGPIPE) == (1, True)
        assert point not in BEFORE
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


NEVER_TOLD = (
    "told = adjusted.Launch._stands; adjusted.Launch._stands = "
    "lambda self, *rest: self.request.session_id == 'waits' or told(self, *rest)"
)


@pytest.mark.parametrize("script", [COUNTS, f"sleep 1; {COUNTS}"])
@adjusted("sandbox.launching", NEVER_TOLD)
async def test_one_that_waits_for_its_go_is_not_taken_for_one_that_had_it(box: Boxes, script: str) -> None:
    supervisor, _ = await box.pids()
    asked = asyncio.create_task(box.start("waits", COUNTS))
    await until(
        lambda: any(proc.ppid == supervisor and namespaces.waits(proc.pid, supervisor) for proc in procfs.snapshot())
    )
    box.arm("supervisor.forked")
    await box.start("a", script)
    record = await box.exit("a")
    assert (record["exit_code"], counted(box)) == (8, 1)
    assert (await asked)["outcome"] == "already"
    assert (await box.exit("waits"))["evidence"] == "never_started"
    await box.nothing_left()


@pytest.mark.parametrize("victims", ["supervisor", "keeper supervisor"])
@pytest.mark.parametrize("point", ["exit_seen", "record_written", "record_renamed", "rung", "reaped"])
async def test_a_kill_at_each_point_of_an_end(box: Boxes, point: str, victims: str) -> None:
    await box.start("a", "read line; echo bye; exit 137", keep_stdin_open=True)
    box.arm(f"supervisor.{point}", await orders(box, victims))
    await box.client.write("a", b"go\n", key="1")
    record = await box.exit("a")
    found = record["state"], record["exit_code"], record["evidence"]
    unrecorded = point in {"exit_seen", "record_written"} and "keeper" in victims
    allowed = {("exited", 137, None), *([("lost", None, "supervisor_killed")] if unrecorded else [])}
    assert found in allowed
    assert b"bye" in box.log("a")
    assert (await box.client.status("a"))["record"] == record
    # What nobody is left to take out of the workspace, the next one takes.
    assert (await box.run("b", "exit 4"))["exit_code"] == 4
    await box.nothing_left()


@pytest.mark.parametrize("victims", ["supervisor", "keeper", "keeper supervisor"])
async def test_a_kill_is_finished_by_whoever_comes_next(box: Boxes, victims: str) -> None:
    await box.start("a", "trap '' TERM; setsid env -i sleep 600 & echo ready; while :; do sleep 600; done")
    await box.until_log("a", b"ready")
    box.arm("supervisor.killing", await orders(box, victims))
    await box.client.kill("a", grace_s=0.2, ended_by="agent")
    record = await box.exit("a")
    assert (record["signal"], record["ended_by"]) in {(9, "agent"), *([(None, "itself")] * ("keeper" in victims))}
    await box.nothing_left()


@pytest.mark.parametrize(("point", "outcome"), [("held", "refused"), ("sandboxed", "start_failed")])
async def test_no_room_for_a_descriptor_leaves_nothing_of_a_start(box: Boxes, point: str, outcome: str) -> None:
    assert (await box.run("warm", "exit 4"))["exit_code"] == 4
    box.arm(f"supervisor.{point}", f"error {errno.EMFILE}")
    answer = await box.start("a", COUNTS)
    assert (answer.get("outcome", "refused"), counted(box)) == (outcome, 0)
    assert (answer["record"] if answer["ok"] else answer)["errno"] == errno.EMFILE
    assert (await box.run("b", COUNTS))["exit_code"] == 8
    assert counted(box) == 1
    await box.nothing_left()


async def test_many_starts_leave_no_descriptor_open(box: Boxes) -> None:
    pid, keeper = await box.pids()
    counts: list[list[int]] = []

    def count() -> list[int]:
        return [len(os.listdir(f"/proc/{one}/fd")) for one in (pid, keeper)]

    for round_ in range(3):
        for number in range(5):
            pty = (24, 80) if number == 4 else None
            assert (await box.run(f"s{round_}{number}", f"exit {number}", pty=pty))["exit_code"] == number
        await box.nothing_left()
        counts.append(count())
    # Of what has ended a descriptor is closed a moment later.
    await until(lambda: all(now <= before for now, before in zip(count(), counts[1], strict=True)))
