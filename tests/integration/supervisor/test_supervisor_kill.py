"""Kills and timeouts: the whole tree, in time, and nobody else."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from shellback.exec.core.errors import SessionNotFound
from tests.escape.scene import PYTHON
from tests.sandboxes import adjust
from tests.supervisors import SOON, Rig, rig, until

pytestmark = pytest.mark.anyio

PROGRAMS = Path(__file__).parents[2] / "programs"
STUBBORN = (PROGRAMS / "stubborn.sh").read_text()
HEADLESS = (PROGRAMS / "headless.py").read_text()


def sleepers(seconds: str) -> list[int]:
    """Pids of the processes that were told to sleep so long."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"sleep") and seconds.encode() in words:
            found.append(int(name))
    return found


def a_while() -> str:
    return f"600.{random.randrange(10**9):09}1"


@pytest.mark.parametrize("pty", [None, (24, 80)])
async def test_a_tree_that_ignores_sigterm_is_gone_after_the_grace(tmp_path: Path, pty: tuple[int, int] | None) -> None:
    seconds = a_while()
    async with rig(tmp_path) as sup:
        await sup.start("a", "/bin/sh", "-c", STUBBORN, "sh", seconds, pty=pty)
        await sup.start("bystander", "exec sleep 60")
        await sup.until_log("a", b"ready")
        await until(lambda: len(sleepers(seconds)) == 4)  # a child of the shell that says so may have yet to execute
        began = time.monotonic()
        killed = await sup.client.kill("a", grace_s=0.5, ended_by="agent")
        took = time.monotonic() - began
        assert (killed.killed, killed.survivors) == (True, ())
        assert sleepers(seconds) == []
        assert 0.5 <= took < SOON
        record = await sup.exit("a")
        assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "agent")
        assert await sup.live() == ["bystander"]


async def test_a_timeout_ends_the_tree_and_keeps_the_kernels_status(tmp_path: Path) -> None:
    seconds = a_while()
    async with rig(tmp_path) as sup:
        gentle = await sup.run("gentle", f"trap 'exit 3' TERM; sleep {seconds} & wait", timeout_s=1.5)
        harsh = await sup.run(
            "harsh", f"trap '' TERM; while :; do sleep 0.0{seconds[4:]}; done", timeout_s=1.5, grace_s=0.2
        )
        assert (gentle["state"], gentle["exit_code"], gentle["ended_by"]) == ("timed_out", 3, "timeout")
        assert (harsh["state"], harsh["signal"], harsh["ended_by"]) == ("timed_out", 9, "timeout")
        assert 1.5 <= gentle["duration_s"] < SOON
        assert 1.7 <= harsh["duration_s"] < SOON
        await sup.client.kill("gentle", grace_s=0, ended_by="agent")
        assert sleepers(seconds) == []


async def test_living_descendants_are_named_and_may_be_ended_later(tmp_path: Path) -> None:
    seconds = a_while()
    async with rig(tmp_path) as sup:
        script = f"(setsid sleep {seconds} &) ; sleep {seconds} > /dev/null 2>&1 & exit 2"
        record = await sup.run("a", script)
        assert record["exit_code"] == 2
        await until(lambda: len(sleepers(seconds)) == 2)  # a fork that has not executed yet is a survivor too
        assert sorted(record["survivors"]) == sorted(sleepers(seconds))
        assert len(record["survivors"]) == 2
        assert (await sup.client.kill("a", grace_s=1, ended_by="agent")).killed
        assert sleepers(seconds) == []
        assert (await sup.client.status("a"))["record"]["ended_by"] == "itself"


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("acknowledged", [False, True])
async def test_survivors_without_the_marker_are_ended_after_the_death_of_a_supervisor(
    tmp_path: Path, away: bool, acknowledged: bool
) -> None:
    seconds = a_while()
    async with rig(tmp_path) as sup:
        script = f"read line; env -i sleep {seconds} & sleep 0.1; echo left; exit 2"
        await sup.start("a", script, keep_stdin_open=True)
        if away:
            await sup.client.write("a", b"\n")
            await sup.until_log("a", b"left")
        await sup.kill_supervisor()
        if not away:
            await sup.client.write("a", b"\n")
        record = await sup.exit("a")
        await until(lambda: len(sleepers(seconds)) == 1)  # a fork that has not executed yet is a survivor too
        assert (record["exit_code"], record["survivors"]) == (2, sleepers(seconds))
        if acknowledged:
            assert await sup.client.ack("a")
            await sup.kill_supervisor()
        assert (await sup.client.kill("a", grace_s=1, ended_by="agent")).killed
        assert sleepers(seconds) == []


async def test_what_survivors_print_is_still_kept(sup: Rig) -> None:
    record = await sup.run("a", "(sleep 2; echo late) & echo early")
    assert record["bytes_total"] == 6
    await sup.kill_supervisor()
    await sup.until_log("a", b"early\nlate\n")


async def test_an_end_by_itself_is_not_claimed_by_a_later_kill(sup: Rig) -> None:
    await sup.run("a", "exit 3")
    assert (await sup.client.kill("a", grace_s=1, ended_by="agent")).killed
    assert (await sup.client.status("a"))["record"]["ended_by"] == "itself"
    with pytest.raises(SessionNotFound):
        await sup.client.kill("nobody", grace_s=1, ended_by="agent")


async def test_a_process_whose_first_thread_has_ended_is_killed(sup: Rig) -> None:
    await sup.start("a", PYTHON, "-c", HEADLESS)
    await sup.until_log("a", b"ready")
    assert (await sup.client.kill("a", grace_s=0, ended_by="agent")).survivors == ()
    assert (await sup.exit("a"))["signal"] == 9


async def test_looks_that_take_longer_than_the_time_between_them_keep_no_later_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time; scan = adjusted.Killer._scan; adjusted._LOOK_AGAIN_S = 0.01; "
    adjust(monkeypatch, "process.kill", slow + "adjusted.Killer._scan = lambda *a: (time.sleep(0.1), scan(*a))")
    async with rig(tmp_path) as sup:
        for name in ("a", "b", "c"):
            await sup.start(name, "exec sleep 60")
            assert (await sup.client.kill(name, grace_s=0, ended_by="agent")).survivors == ()


async def test_two_kills_of_one_session_both_hear_of_its_end(sup: Rig) -> None:
    await sup.start("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await sup.until_log("a", b"ready")
    began = time.monotonic()
    answers = await asyncio.gather(
        sup.client.kill("a", grace_s=600, ended_by="agent"), sup.client.kill("a", grace_s=0, ended_by="person")
    )
    assert all(answer.killed for answer in answers)
    assert time.monotonic() - began < SOON


async def test_a_stopped_process_hears_sigterm(sup: Rig) -> None:
    answer = await sup.start("a", "trap 'exit 5' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
    await sup.until_log("a", b"ready")
    assert answer.pid is not None
    await sup.client.kill("a", grace_s=5, ended_by="agent")
    assert (await sup.exit("a"))["exit_code"] == 5


async def test_a_shell_at_its_prompt_is_hung_up_and_ends_before_the_grace(tmp_path: Path) -> None:
    """It ignores SIGTERM; what runs in it, in the background too, ends with it."""
    seconds = a_while()
    async with rig(tmp_path) as sup:
        await sup.start("a", "exec bash --norc --noprofile -i", pty=(24, 80))
        await sup.client.write("a", f"sleep {seconds} & (sleep {seconds}); sleep 0\n".encode(), key="1")
        await until(lambda: len(sleepers(seconds)) == 2)
        killed = await sup.client.kill("a", grace_s=20, ended_by="agent")
        assert (killed.killed, killed.survivors) == (True, ())
        assert sleepers(seconds) == []
        record = await sup.exit("a")
        assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 1, "agent")


async def test_the_loop_goes_on_while_a_tree_resists(sup: Rig) -> None:
    await sup.start("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await sup.until_log("a", b"ready")
    killing = asyncio.create_task(sup.client.kill("a", grace_s=600, ended_by="agent"))
    for number in range(20):
        assert (await sup.run(f"b{number}", "exit 0"))["exit_code"] == 0
    assert not killing.done()
    await sup.client.kill("a", grace_s=0, ended_by="agent")
    assert (await killing).killed


async def test_orphans_do_not_stay_as_zombies(sup: Rig) -> None:
    await sup.start("a", "for i in 1 2 3 4 5 6 7 8; do (sleep 0.01 & ) ; done; sleep 0.3; echo ready; exec sleep 60")
    await sup.until_log("a", b"ready")
    pid, _ = await sup.pids()
    children = Path(f"/proc/{pid}/task/{pid}/children")
    await until(lambda: not children.read_text())


async def test_a_process_of_another_state_directory_with_the_same_session_id_is_left_alone(tmp_path: Path) -> None:
    """As a copied state directory would have it: the same ids, other processes (G6)."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with rig(tmp_path / "one") as one, rig(tmp_path / "two") as two:
        mine = await one.start("twin", "sleep 60")
        theirs = await two.start("twin", "sleep 60")
        assert mine.pid is not None
        assert theirs.pid is not None
        killed = await one.client.kill("twin", grace_s=0.2, ended_by="agent")
        assert killed.survivors == ()
        assert (await two.client.status("twin"))["state"] == "running"
