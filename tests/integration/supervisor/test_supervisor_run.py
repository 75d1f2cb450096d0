"""Starting and ending commands through a real supervisor."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shellback.exec.core.errors import InvalidCommand, SessionNotFound, TaskCompleted
from shellback.exec.wire.protocol import StartRequest
from tests.supervisors import BOOT, UID, Rig, rig, until

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
async def test_the_exit_code_is_the_kernels(tmp_path: Path, code: int) -> None:
    async with rig(tmp_path) as sup:
        record = await sup.run("a", f"exit {code}")
    assert (record["state"], record["exit_code"], record["signal"]) == ("exited", code, None)
    assert record["ended_by"] == "itself"


async def test_two_starts_of_one_session_are_one_process(tmp_path: Path) -> None:
    count = shared(tmp_path, "count")
    async with rig(tmp_path) as sup:
        answers = await asyncio.gather(*(sup.start("a", f"echo x >> {count}") for _ in range(10)))
        await sup.exit("a")
        assert sorted(answer.outcome for answer in answers) == ["already"] * 9 + ["started"]
        await sup.client.ack("a")
        assert (await sup.start("a", f"echo x >> {count}")).outcome == "already"
    assert count.read_text() == "x\n"


async def test_start_and_abandon_exclude_each_other(sup: Rig) -> None:
    assert (await sup.client.abandon("a"))["state"] == "abandoned"
    assert (await sup.start("a", "exit 0")).outcome == "abandoned"
    assert (await sup.client.abandon("a"))["state"] == "abandoned"
    await sup.start("b", "sleep 60")
    assert (await sup.client.abandon("b"))["state"] == "running"
    assert (await sup.client.status("nobody"))["state"] == "unknown"


async def test_a_start_from_another_boot_is_refused(sup: Rig) -> None:
    answer = await sup.start("a", "exit 0", boot_id="another")
    assert (answer.outcome, answer.code) == ("refused", "boot_id")
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
    tmp_path: Path, argv: tuple[str, ...], cwd: str, errno: int, pty: tuple[int, int] | None
) -> None:
    async with rig(tmp_path) as sup:
        answer = await sup.start("a", *argv, cwd=cwd, pty=pty)
        assert answer.outcome == "start_failed"
        record = await sup.exit("a")
    assert (record["state"], record["errno"], record["exit_code"]) == ("start_failed", errno, None)


@pytest.mark.parametrize("pty", [None, (24, 80)], ids=["pipes", "terminal"])
async def test_a_command_is_ended_before_its_supervisor_where_memory_is_short(
    sup: Rig, pty: tuple[int, int] | None
) -> None:
    await sup.run("a", "cat /proc/self/oom_score_adj", pty=pty)
    supervisor, _ = await sup.pids()
    assert int(sup.log("a")) == max(500, _score(os.getpid()))
    assert _score(supervisor) == _score(os.getpid())


def _score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def test_the_child_starts_clean(tmp_path: Path) -> None:
    script = "umask; ls /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status; env; id -G; ulimit -Sn"
    async with rig(tmp_path) as sup:
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
async def test_another_user_gets_no_way_back(tmp_path: Path, pty: tuple[int, int] | None) -> None:
    async with rig(tmp_path) as sup:
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
    assert (await sup.client.write("open", b"second\n", key="1")).accepted == 7
    assert (await sup.client.write("open", b"second\n", key="1")).accepted == 7
    assert (await sup.client.write("open", b"third\n", eof=True, key="2")).eof
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
    assert 0 < first.accepted < 100_000
    assert (await sup.start("b", "exit 4")).outcome == "started"
    assert (await sup.exit("b"))["exit_code"] == 4


async def test_a_terminal_controls_resizes_interrupts_and_ends(tmp_path: Path) -> None:
    traps = "trap 'stty size' WINCH; trap 'echo caught; exit 5' INT"
    script = f"{traps}; tty; stty size; echo ready; while :; do sleep 0.05; done"
    async with rig(tmp_path) as sup:
        await sup.start("a", script, pty=(24, 80))
        await sup.until_log("a", b"ready")
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
            more = {"pty": (24, 80)} if number % 2 else {"keep_stdin_open": True, "separate_stderr": True}
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
        assert (answer.outcome, answer.code) == ("refused", "bad_request")
    request = StartRequest(session_id="a", argv=("x\0y",), env={}, cwd="/", boot_id=BOOT)
    assert (await sup.client.start(request)).code == "bad_request"
