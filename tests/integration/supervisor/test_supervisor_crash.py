"""Ends, output and terminals over the death of the supervisor, the keeper and the worker's connection."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

from shellback.exec.core.errors import InputUnknown
from shellback.exec.wire import layout
from tests.supervisors import SOON, Rig, answered, end, gone, removed, rig, stop, until

pytestmark = pytest.mark.anyio

PIDFD_GETFD = 438


@pytest.mark.parametrize(("script", "code", "number"), [("exit 137", 137, None), ("kill -9 $$", None, 9)])
async def test_an_end_while_the_supervisor_is_away_keeps_its_status(
    sup: Rig, script: str, code: int | None, number: int | None
) -> None:
    answer = await sup.start("a", f"read line; {script}", keep_stdin_open=True)
    pid, keeper = await sup.pids()
    os.kill(pid, signal.SIGSTOP)
    stdin = os.open(f"/proc/{answer['pid']}/fd/0", os.O_WRONLY)
    os.write(stdin, b"go\n")
    os.close(stdin)
    assert await gone(answer["pid"])
    await end(pid)
    record = await sup.exit("a")
    assert (record["exit_code"], record["signal"], record["evidence"]) == (code, number, None)
    assert (await sup.pids())[1] == keeper


@pytest.mark.parametrize("pty", [None, (24, 80)])
async def test_output_is_whole_over_many_kills(sup: Rig, pty: tuple[int, int] | None) -> None:
    lines = 300_000 if pty is None else 30_000
    end_of_line = b"\n" if pty is None else b"\r\n"
    expected = hashlib.sha256(b"".join(b"%099d%s" % (number, end_of_line) for number in range(lines))).hexdigest()
    await sup.start("a", f"seq -f %099.0f 0 {lines - 1}; exit 3", pty=pty, log_cap=0)
    for _ in range(5):
        await sup.kill_supervisor()
    record = await sup.exit("a")
    assert (record["state"], record["exit_code"]) == ("exited", 3)
    data = sup.log("a")
    assert len(data) == lines * (99 + len(end_of_line)) == record["bytes_total"]
    assert hashlib.sha256(data).hexdigest() == expected


@pytest.mark.parametrize("pty", [None, (24, 80)])
@pytest.mark.parametrize("point", ["exit_seen", "record_written", "record_renamed", "rung", "reaped"])
async def test_a_kill_at_each_point_of_an_end(sup: Rig, point: str, pty: tuple[int, int] | None) -> None:
    await sup.start("a", "read line; echo bye; exit 9", keep_stdin_open=True, pty=pty)
    before, _ = await sup.pids()
    sup.arm(f"supervisor.{point}")
    await sup.client.write("a", b"go\n", key="1")
    record = await sup.exit("a")
    assert await gone(before)
    assert (record["state"], record["exit_code"], record["evidence"]) == ("exited", 9, None)
    assert b"bye" in sup.log("a")
    assert (await sup.client.status("a"))["record"] == record
    assert (await sup.pids())[0] != before
    pid, _ = await sup.pids()
    await sup.client.stop()
    assert await gone(pid)


@pytest.mark.parametrize("pty", [None, (24, 80)])
@pytest.mark.parametrize("point", ["request", "marked", "held", "forked", "recorded_pid"])
async def test_a_kill_at_each_point_of_a_start(sup: Rig, point: str, pty: tuple[int, int] | None) -> None:
    before, _ = await sup.pids()
    sup.arm(f"supervisor.{point}")
    answer = await sup.start("a", "echo ran; exit 8", pty=pty)
    record = await sup.exit("a")
    assert await gone(before)
    if point in {"marked", "held"}:
        assert (record["state"], record["evidence"]) == ("lost", "never_started")
        assert answer["outcome"] == "already"
    else:
        assert (record["state"], record["exit_code"]) == ("exited", 8)
        assert sup.log("a").count(b"ran") == 1


async def test_a_command_without_its_marker_is_found_after_a_kill_at_the_fork(sup: Rig) -> None:
    sup.arm("supervisor.forked")
    await sup.start("a", "exec env -i /bin/sh -c 'sleep 0.5; exit 8'")
    assert (await sup.exit("a"))["exit_code"] == 8


async def test_without_a_keeper_what_runs_goes_on_and_nothing_new_starts_in_the_background(sup: Rig) -> None:
    await sup.start("a", "read line; echo $line; exit 4", keep_stdin_open=True, background=True)
    _, keeper = await sup.pids()
    await end(keeper)
    await answered(sup.client.info, lambda info: not info["keeper"])
    answer = await sup.start("b", "exit 0", background=True)
    assert answer["error"] == "keeper_dead"
    assert (await sup.run("c", "exit 2"))["exit_code"] == 2
    await sup.client.write("a", b"on\n", key="1")
    assert (await sup.exit("a"))["exit_code"] == 4
    assert sup.log("a") == b"on\n"


async def test_a_start_in_the_moment_of_a_keepers_death_waits_for_the_next_pair(sup: Rig) -> None:
    supervisor, keeper = await sup.pids()
    await stop(supervisor)
    await end(keeper)
    # Asked before it knows: it is told of its keeper first.
    asked = asyncio.create_task(sup.start("a", "exit 3", background=True))
    await asyncio.sleep(0)
    os.kill(supervisor, signal.SIGCONT)
    assert (await asked)["outcome"] == "started"
    assert (await sup.exit("a"))["exit_code"] == 3


async def test_a_terminal_survives_the_supervisor(sup: Rig) -> None:
    await sup.start("a", "trap 'echo hup' HUP; echo ready; read line; echo got $line; exit 3", pty=(24, 80))
    await sup.until_log("a", b"ready")
    await sup.kill_supervisor()
    await sup.client.resize("a", 30, 90)
    await sup.client.write("a", b"hello\n", key="1")
    assert (await sup.exit("a"))["exit_code"] == 3
    assert b"got hello" in sup.log("a")
    assert b"hup" not in sup.log("a")


async def test_a_deadline_goes_on_under_the_next_supervisor(sup: Rig) -> None:
    await sup.start("a", "sleep 600", timeout_s=1.0)
    await sup.kill_supervisor()
    record = await sup.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("timed_out", 15, "timeout")
    assert 0.9 < record["duration_s"] < SOON


async def test_a_kill_that_was_begun_is_finished_and_named_after_its_author(sup: Rig) -> None:
    await sup.start("a", "trap '' TERM; echo ready; while :; do sleep 0.1; done", shows=b"ready")
    killing = asyncio.create_task(sup.client.kill("a", grace_s=1.0, ended_by="person"))
    await until((sup.folder("a") / layout.RUNNING).exists)
    await sup.kill_supervisor()
    record = await sup.exit("a")
    assert (record["signal"], record["ended_by"]) == (9, "person")
    assert await killing == ()


async def test_input_is_never_written_twice_when_the_answer_is_lost(sup: Rig) -> None:
    await sup.start("a", "exec sleep 60", keep_stdin_open=True)
    await sup.client.write("a", b"x" * 65_536, key="1")
    writing = asyncio.create_task(sup.client.write("a", b"more", key="2"))
    await asyncio.sleep(0.1)
    await sup.kill_supervisor()
    with pytest.raises(InputUnknown):
        await writing


@pytest.mark.parametrize(
    ("field", "evidence"), [("boot_id", "machine_rebooted"), ("container_id", "container_restarted")]
)
async def test_a_session_of_another_boot_is_lost_and_nothing_is_signalled(sup: Rig, field: str, evidence: str) -> None:
    answer = await sup.start("a", "exec env -i /bin/sh -c 'echo ready; exec sleep 60'", shows=b"ready")
    folder = sup.folder("a")
    row = json.loads((folder / "started").read_text().split("\n", 1)[1])
    (folder / "running.json").write_text(json.dumps({**row, field: "another"}))
    await sup.kill_supervisor()
    record = await sup.exit("a")
    assert (record["state"], record["evidence"]) == ("lost", evidence)
    await sup.client.kill("a", grace_s=0, ended_by="agent")
    os.kill(answer["pid"], 0)
    await end(answer["pid"])


async def test_a_command_started_after_a_restart_inherits_nothing_that_was_kept(sup: Rig) -> None:
    await sup.start("a", "echo ready; read line", pty=(24, 80), shows=b"ready")
    await sup.kill_supervisor()
    await sup.run("b", "for fd in /proc/$$/fd/*; do test ${fd##*/} -le 2 || readlink $fd; done", pty=(24, 80))
    assert not [line for line in sup.log("b").splitlines() if b"ptmx" in line or b"pipe" in line]


async def test_the_status_is_that_of_the_main_process_and_not_of_a_descendant(sup: Rig) -> None:
    sup.arm("supervisor.forked")
    await sup.start("a", "setsid sleep 2 & exit 3")
    assert (await sup.exit("a"))["exit_code"] == 3


async def test_a_slow_keeper_still_has_the_status(sup: Rig) -> None:
    answer = await sup.start("a", "read line; exit 7", keep_stdin_open=True)
    await sup.kill_supervisor()
    _, keeper = await sup.pids()
    os.kill(keeper, signal.SIGSTOP)
    await sup.client.write("a", b"\n")
    assert await gone(answer["pid"])
    await asyncio.sleep(1.5)  # longer than the supervisor waits for a status that was told
    os.kill(keeper, signal.SIGCONT)
    assert (await sup.exit("a"))["exit_code"] == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to take another process's descriptor")
async def test_a_lock_that_an_unfinished_child_inherited_does_not_end_the_keeper(sup: Rig) -> None:
    await sup.start("a", "read line; exit 2", keep_stdin_open=True)
    pid, keeper = await sup.pids()
    held = f"/proc/{pid}/fd"
    name = next(fd for fd in os.listdir(held) if os.readlink(f"{held}/{fd}").endswith(layout.SUPERVISOR_LOCK))
    pidfd = os.pidfd_open(pid)
    inherited = ctypes.CDLL(None).syscall(PIDFD_GETFD, pidfd, int(name), 0)
    os.close(pidfd)
    assert inherited >= 0
    try:
        await end(pid)
        assert (await sup.pids())[1] == keeper
        await sup.client.write("a", b"\n")
        assert (await sup.exit("a"))["exit_code"] == 2
    finally:
        os.close(inherited)


async def test_without_a_keeper_both_are_replaced_although_a_worker_stays(sup: Rig) -> None:
    pid, keeper = await sup.pids()
    await end(keeper)
    assert await gone(pid)
    assert (await sup.run("a", "exit 2", background=True))["exit_code"] == 2


async def test_both_end_when_nobody_needs_them_and_start_again_when_somebody_does(tmp_path: Path) -> None:
    async with rig(tmp_path, idle_s=0.3) as sup:
        pid, keeper = await sup.pids()
        await sup.start("a", "sleep 1; exit 6", background=True)
        await sup.client.close()
        assert await gone(pid)
        assert await gone(keeper)
        assert (sup.folder("a") / "exit.json").exists()
        sup.client = sup.another()
        assert (await sup.exit_after_connect("a"))["exit_code"] == 6


async def test_many_workers_start_one_supervisor(sup: Rig) -> None:
    pid, keeper = await sup.pids()
    await end(keeper)
    await end(pid)
    clients = [sup.another() for _ in range(6)]
    infos = await asyncio.gather(*(client.connect() for client in clients))
    assert len({info["pid"] for info in infos}) == 1
    await asyncio.gather(*(client.close() for client in clients))


async def test_a_keeper_whose_state_directory_was_removed_ends_with_its_supervisor(sup: Rig) -> None:
    pid, keeper = await sup.pids()
    await until(lambda: removed(sup.home))
    await end(pid)
    assert await gone(keeper)
