"""Commands through a real supervisor: their starts and ends, kills and timeouts, and their logs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import socket
import struct
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand, SessionNotFound, TaskCompleted
from shellback.exec.link import launch
from shellback.exec.wire import layout
from shellback.exec.wire.protocol import StartRequest, encode
from tests.escape.scene import PYTHON
from tests.sandboxes import adjust
from tests.supervisors import BOOT, SOON, UID, Rig, assert_kept, rig, score, sleepers, until

pytestmark = pytest.mark.anyio


def shared(tmp_path: Path, name: str) -> Path:
    """A file that commands may write, whoever they run as."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.name.startswith(("pytest", "popen", "test")):
            folder.chmod(0o755)
    file = tmp_path / name
    file.touch()
    file.chmod(0o666)
    return file


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 137, 255])
async def test_the_exit_code_is_the_kernels(sup: Rig, code: int) -> None:
    record = await sup.run("a", f"exit {code}")
    assert (record["state"], record["exit_code"], record["signal"]) == ("exited", code, None)
    assert record["ended_by"] == "itself"


async def test_two_starts_of_one_session_are_one_process(tmp_path: Path, sup: Rig) -> None:
    count = shared(tmp_path, "count")
    answers = await asyncio.gather(*(sup.start("a", f"echo x >> {count}") for _ in range(10)))
    await sup.exit("a")
    assert sorted(answer["outcome"] for answer in answers) == ["already"] * 9 + ["started"]
    await sup.client.ack("a")
    assert (await sup.start("a", f"echo x >> {count}"))["outcome"] == "already"
    assert count.read_text() == "x\n"


async def test_start_and_abandon_exclude_each_other(sup: Rig) -> None:
    assert (await sup.client.abandon("a"))["state"] == "abandoned"
    assert (await sup.start("a", "exit 0"))["status"]["state"] == "abandoned"
    assert (await sup.client.abandon("a"))["state"] == "abandoned"
    await sup.start("b", "sleep 60")
    assert (await sup.client.abandon("b"))["state"] == "running"
    assert (await sup.client.status("nobody"))["state"] == "unknown"


async def test_a_start_from_another_boot_is_refused(sup: Rig) -> None:
    answer = await sup.start("a", "exit 0", boot_id="another")
    assert answer["error"] == "boot_id"
    assert (await sup.client.status("a"))["state"] == "unknown"


@pytest.mark.parametrize("pty", [None, (24, 80)])
@pytest.mark.parametrize(
    ("argv", "cwd", "errno"),
    [
        (("no-such-program", "x"), "/", 2),
        (("/etc/passwd", "x"), "/", 13),
        (("/bin/true", "x"), "/no/such/folder", 2),
        (("/bin/true", "x" * 200_000), "/", 7),
    ],
)
async def test_a_command_that_cannot_be_executed_says_why(
    sup: Rig, argv: tuple[str, ...], cwd: str, errno: int, pty: tuple[int, int] | None
) -> None:
    answer = await sup.start("a", *argv, cwd=cwd, pty=pty)
    assert answer["outcome"] == "start_failed"
    record = await sup.exit("a")
    assert (record["state"], record["errno"], record["exit_code"]) == ("start_failed", errno, None)


@pytest.mark.parametrize("pty", [None, (24, 80)], ids=["pipes", "terminal"])
async def test_a_command_is_ended_before_its_supervisor_where_memory_is_short(
    sup: Rig, pty: tuple[int, int] | None
) -> None:
    await sup.run("a", "cat /proc/self/oom_score_adj", pty=pty)
    supervisor, _ = await sup.pids()
    assert int(sup.log("a")) == max(500, score(os.getpid()))
    assert score(supervisor) == score(os.getpid())


async def test_the_child_starts_clean(sup: Rig) -> None:
    script = "umask; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; env; id -G; ulimit -Sn"
    await sup.run("a", script, env={"PATH": "/usr/bin:/bin", "SECRET": "yes"})
    text = sup.log("a").decode()
    lines = text.splitlines()
    assert lines[:2] == ["0022", "4"]
    assert "SigBlk:\t0000000000000000" in lines
    ignored = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    # 32 and 33 are the C library's own: nobody can set them, so what some shell left ignored stays so.
    assert ignored & ~(1 << 31 | 1 << 32) == 0
    assert "SECRET=yes" in lines
    assert any(line.startswith("SHELLBACK_SESSION=a@") for line in lines)
    if UID is not None:
        assert lines[-2] == str(UID)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("pty", [None, (24, 80)])
async def test_another_user_gets_no_way_back(sup: Rig, pty: tuple[int, int] | None) -> None:
    await sup.run("a", "cat /proc/self/status; echo again > /dev/stderr", pty=pty)
    text = sup.log("a").decode().replace("\r", "")
    assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in text
    assert f"Gid:\t{UID}\t{UID}\t{UID}\t{UID}" in text
    assert "CapPrm:\t0000000000000000" in text
    assert "CapEff:\t0000000000000000" in text
    assert text.endswith("again\n")


async def test_stdin_is_empty_text_or_kept_open(sup: Rig) -> None:
    await sup.run("none", "cat; echo end")
    await sup.run("text", "cat", stdin=b"y" * 65_536)
    await sup.start("open", "cat", stdin=b"first\n", keep_stdin_open=True)
    assert (await sup.client.write("open", b"second\n", key="1"))["accepted"] == 7
    assert (await sup.client.write("open", b"second\n", key="1"))["accepted"] == 7
    assert (await sup.client.write("open", b"third\n", eof=True, key="2"))["eof"]
    assert (await sup.exit("open"))["exit_code"] == 0
    assert (sup.log("none"), sup.log("text")) == (b"end\n", b"y" * 65_536)
    assert sup.log("open") == b"first\nsecond\nthird\n"
    with pytest.raises(TaskCompleted):
        await sup.client.write("open", b"late", key="3")
    with pytest.raises(SessionNotFound):
        await sup.client.write("nobody", b"x", key="4")
    await sup.start("closed", "sleep 60")
    with pytest.raises(InvalidCommand):
        await sup.client.write("closed", b"x", key="5")


async def test_a_full_input_takes_what_fits_and_says_how_much(sup: Rig) -> None:
    await sup.start("a", "exec sleep 60", keep_stdin_open=True)
    first, again = await asyncio.gather(
        sup.client.write("a", b"x" * 100_000, key="1"), sup.client.write("a", b"x" * 100_000, key="1")
    )
    assert first == again
    assert 0 < first["accepted"] < 100_000
    assert (await sup.start("b", "exit 4"))["outcome"] == "started"
    assert (await sup.exit("b"))["exit_code"] == 4


async def test_a_terminal_controls_resizes_interrupts_and_ends(sup: Rig) -> None:
    traps = "trap 'stty size' WINCH; trap 'echo caught; exit 5' INT"
    script = f"{traps}; tty; stty size; echo ready; while :; do sleep 0.05; done"
    await sup.start("a", script, pty=(24, 80), shows=b"ready")
    await sup.client.resize("a", 50, 100)
    await sup.until_log("a", b"50 100")
    await sup.client.write("a", b"\x03", key="1")
    record = await sup.exit("a")
    text = sup.log("a")
    assert b"/dev/pts/" in text
    assert b"24 80" in text
    assert (record["exit_code"], b"caught" in text) == (5, True)


async def test_end_of_file_on_a_terminal(sup: Rig) -> None:
    await sup.start("a", "cat; exit 6", pty=(24, 80), stdin=b"typed\n")
    assert (await sup.exit("a"))["exit_code"] == 6


async def test_end_of_file_behind_an_unfinished_line_on_a_terminal(sup: Rig) -> None:
    await sup.start("a", "cat; exit 6", pty=(24, 80), stdin=b"typed", timeout_s=10)
    assert (await sup.exit("a"))["exit_code"] == 6


async def test_a_terminal_that_nobody_has_open_for_a_while_is_still_read(sup: Rig) -> None:
    script = "exec </dev/null >/dev/null 2>&1; sleep 0.3; echo late > /dev/tty; exit 5"
    record = await sup.run("a", script, pty=(24, 80))
    assert (record["exit_code"], sup.log("a")) == (5, b"late\r\n")


async def test_two_hundred_starts_at_once(sup: Rig) -> None:
    await asyncio.gather(*(sup.start(f"s{number}", f"exit {number % 100}") for number in range(200)))
    records = await asyncio.gather(*(sup.exit(f"s{number}") for number in range(200)))
    assert [record["exit_code"] for record in records] == [number % 100 for number in range(200)]


async def test_descriptors_do_not_leak(sup: Rig) -> None:

    async def count(first: int) -> list[int]:
        for number in range(first, first + 100):
            more: dict[str, Any] = {"keep_stdin_open": True, "separate_stderr": True}
            if number % 2:
                more = {"pty": (24, 80)}
            await sup.start(f"s{number}", "exit 0", **more)
        for number in range(first, first + 100):
            await sup.exit(f"s{number}")
            await sup.client.ack(f"s{number}")
        await sup.start(f"flush{first}", "exit 0")
        await sup.exit(f"flush{first}")
        return [_descriptors(pid) for pid in await sup.pids()]

    before = await count(0)
    await count(100)
    pids = await sup.pids()
    # Of what has ended a descriptor is closed a moment later.
    await until(lambda: all(_descriptors(pid) <= most + 1 for pid, most in zip(pids, before, strict=True)))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_an_acknowledged_end_is_told_no_more(sup: Rig) -> None:
    await sup.run("a", "exit 1")
    await sup.run("b", "exit 2")
    assert await sup.client.ack("a")
    assert not await sup.client.ack("a")
    await sup.client.close()
    sup.told.clear()
    sup.client = sup.another()
    await sup.client.connect()
    await sup.client.list()
    assert [record["session_id"] for record in sup.told] == ["b"]
    assert (await sup.client.status("a"))["record"]["exit_code"] == 1
    assert not (sup.folder("a") / "exit.json").exists()


async def test_an_end_is_acknowledged_only_once_it_is_written(sup: Rig) -> None:
    sup.arm("supervisor.record_written", "error 28")
    await sup.run("a", "exit 4")
    assert not await sup.client.ack("a")
    await until((sup.folder("a") / "exit.json").exists)
    assert (await sup.client.status("a"))["record"]["exit_code"] == 4
    assert await sup.client.ack("a")


async def test_a_request_that_is_not_one_is_refused(sup: Rig) -> None:
    for name in ("../up", "", ".hidden", "a/b", "x" * 200):
        answer = await sup.start(name, "exit 0")
        assert answer["error"] == "bad_request"
    request = StartRequest(session_id="a", argv=("x\0y",), env={}, cwd="/", boot_id=BOOT)
    assert (await sup.client.start(request))["error"] == "bad_request"


PROGRAMS = Path(__file__).parents[2] / "programs"
STUBBORN = (PROGRAMS / "stubborn.sh").read_text()
HEADLESS = (PROGRAMS / "headless.py").read_text()


def a_while() -> str:
    return f"600.{random.randrange(10**9):09}1"


@pytest.mark.parametrize("pty", [None, (24, 80)])
async def test_a_tree_that_ignores_sigterm_is_gone_after_the_grace(sup: Rig, pty: tuple[int, int] | None) -> None:
    seconds = a_while()
    await sup.start("a", "/bin/sh", "-c", STUBBORN, "sh", seconds, pty=pty)
    await sup.start("bystander", "exec sleep 60")
    await sup.until_log("a", b"ready")
    await until(lambda: len(sleepers(seconds)) == 4)  # a child of the shell that says so may have yet to execute
    began = time.monotonic()
    killed = await sup.client.kill("a", grace_s=0.5, ended_by="agent")
    took = time.monotonic() - began
    assert killed == ()
    assert sleepers(seconds) == []
    assert 0.5 <= took < SOON
    record = await sup.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 9, "agent")
    assert await sup.live() == ["bystander"]


async def test_a_timeout_ends_the_tree_and_keeps_the_kernels_status(sup: Rig) -> None:
    seconds = a_while()
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


async def test_living_descendants_are_named_and_may_be_ended_later(sup: Rig) -> None:
    seconds = a_while()
    script = f"(setsid sleep {seconds} &) ; sleep {seconds} > /dev/null 2>&1 & exit 2"
    record = await sup.run("a", script)
    assert record["exit_code"] == 2
    await until(lambda: len(sleepers(seconds)) == 2)  # a fork that has not executed yet is a survivor too
    assert sorted(record["survivors"]) == sorted(sleepers(seconds))
    assert len(record["survivors"]) == 2
    assert await sup.client.kill("a", grace_s=1, ended_by="agent") == ()
    assert sleepers(seconds) == []
    assert (await sup.client.status("a"))["record"]["ended_by"] == "itself"


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("acknowledged", [False, True])
async def test_survivors_without_the_marker_are_ended_after_the_death_of_a_supervisor(
    sup: Rig, away: bool, acknowledged: bool
) -> None:
    seconds = a_while()
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
    assert await sup.client.kill("a", grace_s=1, ended_by="agent") == ()
    assert sleepers(seconds) == []


async def test_what_survivors_print_is_still_kept(sup: Rig) -> None:
    record = await sup.run("a", "(sleep 2; echo late) & echo early")
    assert record["bytes_total"] == 6
    await sup.kill_supervisor()
    await sup.until_log("a", b"early\nlate\n")


async def test_an_end_by_itself_is_not_claimed_by_a_later_kill(sup: Rig) -> None:
    await sup.run("a", "exit 3")
    assert await sup.client.kill("a", grace_s=1, ended_by="agent") == ()
    assert (await sup.client.status("a"))["record"]["ended_by"] == "itself"
    with pytest.raises(SessionNotFound):
        await sup.client.kill("nobody", grace_s=1, ended_by="agent")


async def test_a_process_whose_first_thread_has_ended_is_killed(sup: Rig) -> None:
    await sup.start("a", PYTHON, "-c", HEADLESS, shows=b"ready")
    assert (await sup.client.kill("a", grace_s=0, ended_by="agent")) == ()
    assert (await sup.exit("a"))["signal"] == 9


async def test_looks_that_take_longer_than_the_time_between_them_keep_no_later_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time; scan = adjusted.Killer._scan; adjusted._LOOK_AGAIN_S = 0.01; "
    adjust(monkeypatch, "process.kill", slow + "adjusted.Killer._scan = lambda *a: (time.sleep(0.1), scan(*a))")
    async with rig(tmp_path) as sup:
        for name in ("a", "b", "c"):
            await sup.start(name, "exec sleep 60")
            assert await sup.client.kill(name, grace_s=0, ended_by="agent") == ()


async def test_two_kills_of_one_session_both_hear_of_its_end(sup: Rig) -> None:
    await sup.start("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done", shows=b"ready")
    began = time.monotonic()
    answers = await asyncio.gather(
        sup.client.kill("a", grace_s=600, ended_by="agent"), sup.client.kill("a", grace_s=0, ended_by="person")
    )
    assert answers == [(), ()]
    assert time.monotonic() - began < SOON


async def test_a_stopped_process_hears_sigterm(sup: Rig) -> None:
    await sup.start("a", "trap 'exit 5' TERM; echo ready; kill -STOP $$; while :; do sleep 0.05; done")
    await sup.until_log("a", b"ready")
    await sup.client.kill("a", grace_s=5, ended_by="agent")
    assert (await sup.exit("a"))["exit_code"] == 5


async def test_a_shell_at_its_prompt_is_hung_up_and_ends_before_the_grace(sup: Rig) -> None:
    """It ignores SIGTERM; what runs in it, in the background too, ends with it."""
    seconds = a_while()
    await sup.start("a", "exec bash --norc --noprofile -i", pty=(24, 80))
    await sup.client.write("a", f"sleep {seconds} & (sleep {seconds}); sleep 0\n".encode(), key="1")
    await until(lambda: len(sleepers(seconds)) == 2)
    killed = await sup.client.kill("a", grace_s=20, ended_by="agent")
    assert killed == ()
    assert sleepers(seconds) == []
    record = await sup.exit("a")
    assert (record["state"], record["signal"], record["ended_by"]) == ("signaled", 1, "agent")


async def test_the_loop_goes_on_while_a_tree_resists(sup: Rig) -> None:
    await sup.start("a", "trap '' TERM; echo ready; while :; do sleep 0.05; done", shows=b"ready")
    killing = asyncio.create_task(sup.client.kill("a", grace_s=600, ended_by="agent"))
    for number in range(20):
        assert (await sup.run(f"b{number}", "exit 0"))["exit_code"] == 0
    assert not killing.done()
    await sup.client.kill("a", grace_s=0, ended_by="agent")
    assert await killing == ()


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
        await one.start("twin", "sleep 60")
        await two.start("twin", "sleep 60")
        killed = await one.client.kill("twin", grace_s=0.2, ended_by="agent")
        assert killed == ()
        assert (await two.client.status("twin"))["state"] == "running"


CAP = 256 * 1024
LINES = 40_000


def holes(sup: Rig, name: str) -> list[dict[str, int]]:
    rows: Any = json.loads((sup.folder(name) / layout.HOLES).read_text())
    return rows


@pytest.mark.parametrize("kills", [0, 3])
async def test_the_middle_of_a_long_log_is_dropped_and_on_record(sup: Rig, kills: int) -> None:
    await sup.start("a", f"seq -f %099.0f 0 {LINES - 1}", log_cap=CAP)
    for _ in range(kills):
        await sup.kill_supervisor()
    record = await sup.exit("a")
    rows = holes(sup, "a")
    assert_kept(sup.log("a"), b"".join(b"%099d\n" % number for number in range(LINES)), rows)
    assert all(one["end"] < two["start"] for one, two in pairwise(rows))
    assert record["bytes_total"] == LINES * 100
    assert record["bytes_dropped"] == sum(row["end"] - row["start"] for row in rows)
    assert CAP * 7 // 8 <= record["bytes_total"] - record["bytes_dropped"] <= CAP
    # Blocks at the edges of a hole stay.
    assert (sup.folder("a") / layout.LOG).stat().st_blocks * 512 <= CAP + 4 * 4096


async def test_zeroes_are_bytes_like_others(sup: Rig) -> None:
    record = await sup.run("a", "head -c 1000000 /dev/zero", log_cap=0)
    assert sup.log("a") == b"\0" * 1_000_000
    assert (record["bytes_total"], record["bytes_dropped"]) == (1_000_000, 0)


async def test_a_loud_command_does_not_starve_a_quiet_one(sup: Rig) -> None:
    for number in range(3):
        await sup.start(f"loud{number}", "exec yes", log_cap=CAP)
    async with asyncio.timeout(SOON):
        for number in range(10):
            assert (await sup.run(f"quiet{number}", "echo here"))["exit_code"] == 0


def frame(value: Any) -> bytes:
    return encode(value)


async def answers(sup: Rig, data: bytes) -> bytes:
    folder = launch.folder(sup.home)
    try:
        connection = launch.connect(folder)
    finally:
        os.close(folder)
    with connection:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        async with asyncio.timeout(SOON):
            while part := await loop.sock_recv(connection, 65_536):
                got += part
        return got


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">I", 1 << 30), b"malformed"),
        (struct.pack(">I", 3) + b"{{{", b"malformed"),
        (frame([1]), b"malformed"),
        (struct.pack(">I", 200_000) + b"[" * 200_000, b"malformed"),
        (frame({"id": 1, "op": "dance"}), b"unknown_op"),
        (frame({"id": 1, "op": ["start"]}), b"unknown_op"),
        (frame({"id": 1, "op": "hello", "version": 99}), b"unsupported_version"),
        (frame({"id": 1, "op": "start"}), b"bad_request"),
        (frame({"id": 1, "op": "start", "session_id": "a", "argv": ["x"], "env": [], "cwd": "/"}), b"bad_request"),
        (frame({"id": 1, "op": "kill", "session_id": "a", "grace_s": "x", "ended_by": "me"}), b"bad_request"),
        (frame({"id": 1, "op": "kill", "session_id": "a", "grace_s": float("inf"), "ended_by": "me"}), b"bad_request"),
    ],
)
async def test_a_bad_frame_harms_only_its_sender(sup: Rig, data: bytes, code: bytes) -> None:
    pid, _ = await sup.pids()
    assert code in await answers(sup, data)
    assert (await sup.run("a", "exit 3"))["exit_code"] == 3
    assert (await sup.pids())[0] == pid


async def test_a_home_with_a_very_long_path(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*(["x" * 60] * 4))
    async with rig(deep) as sup:
        assert (await sup.run("a", "exit 3"))["exit_code"] == 3


async def test_too_many_descriptors_are_refused_by_name(sup: Rig) -> None:
    _, keeper = await sup.pids()
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (40, 40))
    await sup.kill_supervisor()
    refused = [await sup.start(f"b{number}", "exec sleep 60") for number in range(10)]
    assert {answer["error"] for answer in refused if not answer["ok"]} == {"descriptors"}
    assert refused[0]["outcome"] == "started"
    assert (await sup.client.status("b9"))["state"] == "unknown"


@pytest.mark.parametrize("more", [{}, {"separate_stderr": True}, {"pty": (24, 80)}], ids=["pipe", "pipes", "terminal"])
async def test_whichever_descriptor_is_missing_the_start_is_refused_by_name(tmp_path: Path, more: Any) -> None:
    async with rig(tmp_path, crash_dir=None) as sup:
        pid, _ = await sup.pids()
        used, (_, hard) = len(os.listdir(f"/proc/{pid}/fd")), resource.prlimit(pid, resource.RLIMIT_NOFILE)
        free = 0
        for free in range(40):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + free, hard))
            answer = await sup.start("a", "exit 3", **more)
            if answer["ok"]:
                break
            assert answer["error"] == "descriptors", f"with {free} descriptors"
        assert free > 4
        assert (await sup.exit("a"))["exit_code"] == 3


async def test_the_diary_is_bounded_and_knows_no_secret(sup: Rig) -> None:
    diary = sup.home / layout.SUPERVISOR / layout.DIARY
    diary.write_bytes(b"x" * (1 << 20))
    await sup.start("a", "exec sleep 60 HUSH", env={"PATH": "/usr/bin:/bin", "TOKEN": "HUSH"})
    await sup.kill_supervisor()
    await sup.client.info()
    text = diary.read_text()
    assert "ready" in text
    assert len(text) < 10_000
    assert "HUSH" not in text
