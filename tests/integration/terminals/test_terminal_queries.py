"""What a program asks its terminal is answered by the supervisor: once, and whether or not somebody looks on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.supervisors import Rig, end, rig, until

pytestmark = pytest.mark.anyio

PYTHON = "/usr/bin/python3"  # as another user: ours may be in nobody else's reach
ASKER = r"""
import os, select, sys, termios, time, tty
before = termios.tcgetattr(0)
tty.setraw(0, termios.TCSANOW)
def ask(text, end, extra_s):
    os.write(1, text.encode().decode("unicode_escape").encode("latin-1"))
    answer = b""
    while not answer.endswith(end):
        answer += os.read(0, 100)
    while select.select([0], [], [], extra_s)[0]:
        answer += os.read(0, 100)
    os.write(1, b"<" + answer.replace(b"\x1b", b"^") + b">")
def ready():
    os.write(1, b"ready")
    os.read(0, 1)
"""


async def asked(sup: Rig, lines: str, name: str = "a", size: tuple[int, int] = (24, 80)) -> None:
    """Start a program that asks its terminal, and says ready after what `lines` do."""
    script = f"{ASKER}\n{lines}\nos.write(1, b'done')\nos.read(0, 1)"
    await sup.start(name, PYTHON, "-c", script, pty=size, keep_stdin_open=True)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (r"\x1b[c", b"<^[?62;22c>"),
        (r"\x1b[0c", b"<^[?62;22c>"),
        (r"\x1b[>c", b"<^[>1;0;0c>"),
        (r"\x1b[5n", b"<^[0n>"),
        (r"\x1b[2J\x1b[5;7Hhere\x1b[6n", b"<^[5;11R>"),
        (r"\x1b[999;999H\x1b[6n", b"<^[24;80R>"),
    ],
)
async def test_a_program_that_asks_its_terminal_has_its_answer_with_nobody_there(
    sup: Rig, question: str, answer: bytes
) -> None:
    await asked(sup, f"ask({question!r}, {answer[-2:-1]!r}, 0.1)")
    await sup.until_log("a", b"done")
    assert answer in sup.log("a")


async def test_questions_are_answered_in_their_order_and_with_the_size_of_now(sup: Rig) -> None:
    await asked(sup, r"ready(); ask('\\x1b[999;999H\\x1b[5n\\x1b[6n\\x1b[c', b'c', 0.1)")
    await sup.until_log("a", b"ready")
    await sup.client.resize("a", 30, 100)
    await sup.client.write("a", b"x", key="1")
    await sup.until_log("a", b"done")
    assert b"<^[0n^[30;100R^[?62;22c>" in sup.log("a")


async def test_what_asks_a_terminal_that_is_read_by_the_line_is_answered_once_it_is_not(tmp_path: Path) -> None:
    lines = r"""
termios.tcsetattr(0, termios.TCSANOW, before)
os.write(1, b"\x1b[6n")
time.sleep(0.2)
tty.setraw(0, termios.TCSANOW)
ask("", b"R", 0.1)
"""
    async with rig(tmp_path) as sup:
        await asked(sup, lines)
        await sup.until_log("a", b"done")
        assert b"<^[1;1R>" in sup.log("a")


async def test_a_file_that_is_shown_types_nothing_into_what_reads_lines(tmp_path: Path) -> None:
    script = r"printf '\033[6n\033[c'; read line; echo got=$line; read line; echo then=$line"
    async with rig(tmp_path) as sup:
        await sup.start("a", script, pty=(24, 80), keep_stdin_open=True)
        await sup.until_log("a", b"\x1b[c")
        # One that asks after it has its answer only when the first has been given up.
        await asked(sup, "time.sleep(1.2); ask(r'\\x1b[5n', b'n', 0)", "b")
        await sup.until_log("b", b"done")
        await sup.client.write("a", b"one\n", key="1")
        await sup.client.write("a", b"two\n", key="2")
        await sup.exit("a")
        assert b"got=one" in sup.log("a")
        assert b"then=two" in sup.log("a")


async def test_no_answer_comes_between_two_parts_of_a_write(tmp_path: Path) -> None:
    lines = r"""
ready()
os.write(1, b"\x1b[6n")
time.sleep(0.3)
got = b""
while len(got) < 20000 + 6:
    got += os.read(0, 4096)
os.write(1, b"whole" if got[:20000] == b"x" * 20000 and got[20000:].endswith(b"R") else b"mixed")
"""
    async with rig(tmp_path) as sup:
        await asked(sup, lines)
        await sup.until_log("a", b"ready")
        assert (await sup.client.write("a", b"x" * 20_001, key="1")).accepted == 20_001
        await sup.until_log("a", b"done")
        assert b"whole" in sup.log("a")


@pytest.mark.parametrize("point", ["supervisor.asked", "supervisor.answered", "supervisor.output"])
async def test_a_kill_around_an_answer_answers_neither_twice_nor_never(sup: Rig, point: str) -> None:
    await asked(sup, r"ready(); ask('ab\\x1b[6n', b'R', 1.0); ask('\\x1b[c', b'c', 0.5)")
    await sup.until_log("a", b"ready")
    before, _ = await sup.pids()
    sup.arm(point)
    await sup.client.write("a", b"x", key="1")
    await sup.until_log("a", b"done")
    assert (await sup.pids())[0] != before
    assert b"<^[1;8R>" in sup.log("a")
    assert b"<^[?62;22c>" in sup.log("a")


async def test_what_was_asked_while_the_supervisor_was_away_is_answered_by_the_next(sup: Rig) -> None:
    await asked(sup, r"os.write(1, b'ready'); ask('\\x1b[5n', b'n', 0.2)")
    for _ in range(2):
        pid, _ = await sup.pids()
        os.kill(pid, signal.SIGSTOP)
        await end(pid)
    await sup.until_log("a", b"done")
    assert b"<^[0n>" in sup.log("a")


async def test_without_a_keeper_the_supervisor_answers_itself(sup: Rig) -> None:
    await asked(sup, r"ready(); ask('\\x1b[5n', b'n', 0.2)")
    await sup.until_log("a", b"ready")
    _, keeper = await sup.pids()
    await end(keeper)
    await sup.client.write("a", b"x", key="1")
    await until(lambda: b"done" in sup.log("a"))
    assert b"<^[0n>" in sup.log("a")


async def test_who_asks_without_end_keeps_nobody_waiting(sup: Rig) -> None:
    script = ASKER + r"os.write(1, b'ready')" + "\nwhile True: os.write(1, b'\\x1b[A\\x1b[6n' * 500)"
    await sup.start("a", PYTHON, "-c", script, pty=(24, 80), keep_stdin_open=True, log_cap=1 << 20)
    await sup.until_log("a", b"ready")
    record = await sup.run("b", "echo there")
    assert record["exit_code"] == 0
    assert (await sup.client.kill("a", grace_s=0, ended_by="agent")).killed
