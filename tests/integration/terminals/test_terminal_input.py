"""What is typed arrives once as a terminal would send it and every line is judged; what is asked is answered once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.models.function import FunctionModel

from shellback.exec.core.model import SessionId, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.policy.policy import Verdict
from shellback.exec.terminals.keys import BRACKETED_PASTE
from shellback.exec.terminals.screen import Screens
from shellback.exec.tools.toolset import exec_toolset
from tests import images
from tests.desks import Desk, here
from tests.execs import end_of, launch, origin, running_engine
from tests.integration.tools.test_toolset_agent import Deps, Script, converse, returns
from tests.podmans import in_pod
from tests.policies import Says
from tests.supervisors import SOON, Rig, end, until
from tests.terminals import Typist, typist

pytestmark = pytest.mark.anyio

__all__ = ["here"]

RAW = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"\\x1b[?1h" b"\\x1b[?2004h" b"ready\\r\\n")
while (data := os.read(0, 65536)) != b"q":
    os.write(1, data.hex().encode() + b"\\r\\n")
os.write(1, b"\\x1b[?1l" b"\\x1b[?2004l" b"plain\\r\\n")
while (data := os.read(0, 65536)) != b"q":
    os.write(1, data.hex().encode() + b"\\r\\n")
"""
SIZES = """
import os, signal
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"%d %d\\r\\n" % tuple(reversed(os.get_terminal_size()))))
os.write(1, b"ready\\r\\n")
while True:
    signal.pause()
"""


def line_of(data: bytes) -> str:
    return f"^{data.hex()}$"


async def raw(engine: Any) -> Typist:
    (engine.workspace / "raw.py").write_text(RAW)
    found = await typist(engine, "exec python3 raw.py")
    await found.until("^ready$")
    return found


@pytest.mark.usefixtures("each_backend")
async def test_keys_and_pastes_follow_what_the_program_has_switched_to(engine: Engine) -> None:
    program = await raw(engine)
    assert BRACKETED_PASTE in (await program.screens.of(program.session)).modes
    await program.sees(line_of(b"\x1bOA\x1bOP\x1b[1;5A"), "Up", "F1", "C-Up")
    answer = await program.press(paste="two\nlines\n")
    assert answer.content == f"[wrote 22 bytes to session {program.session.id}]"
    await program.until(line_of(b"\x1b[200~two\rlines\r\x1b[201~"))
    await program.sees("^plain$", "q")
    await program.sees(line_of(b"\x1b[A\x1b[H"), "Up", "Home")
    await program.sees(line_of(b"two\rlines\r"), paste="two\nlines\n")
    await program.sees(line_of(b"Enter\x00\xc3(\xff"), hex="00 c3 28 ff", literal="Enter")
    await program.press("q")
    await program.ended()


async def test_a_repeat_of_a_resize_changes_nothing_any_more(engine: Engine) -> None:
    (engine.workspace / "sizes.py").write_text(SIZES)
    program = await typist(engine, "exec python3 sizes.py")
    await program.until("^ready$")
    sessions, call = Sessions(engine, "talk"), origin()
    await sessions.resize(program.session.id, WindowSize(20, 50), call)
    await program.until("^20 50$")
    await sessions.resize(program.session.id, WindowSize(30, 90), origin())
    await program.until("^30 90$")
    await sessions.resize(program.session.id, WindowSize(20, 50), call)
    shown = await Screens(engine).of(program.session)
    assert (shown.rows, shown.cols) == (30, 90)


async def test_a_screen_is_not_shown_half_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.terminals.screen.REST_S", 50.0)
    monkeypatch.setattr("shellback.exec.terminals.screen.LONGEST_S", 60.0)
    async with running_engine(tmp_path) as engine:
        program = await typist(engine, "printf half; read -rst 0.3 x; printf ' and whole'")
        await program.until("^half")
        answer = await program.call("process_screen")
        assert str(answer.content).startswith("half and whole\n[screen of ")


async def test_a_repeat_of_a_call_is_told_what_it_did_after_the_session_has_ended_too(engine: Engine) -> None:
    program = await typist(engine, "echo ready; read -r line")
    await program.until("^ready$")
    session_id = program.session.id
    calls = [
        ("process_resize", {"session_id": session_id, "rows": 20, "cols": 50}),
        ("process_send_keys", {"session_id": session_id, "literal": "done", "keys": ["Enter"]}),
    ]
    tools = exec_toolset(engine, policy=Says(Verdict(decision="allow", reason="it may")))
    first: list[Any] = []
    for call in calls:
        agent = Agent(FunctionModel(Script(call)), toolsets=[tools], deps_type=object)
        first.append((await agent.run("go", deps=Deps())).all_messages())
    await program.ended()
    again = Agent(FunctionModel(Script()), toolsets=[tools], deps_type=object)
    for messages in first:
        repeated = (await again.run(message_history=messages[:2], deps=Deps())).all_messages()
        (was,), (told,) = returns(messages), returns(repeated)
        assert (told.content, told.outcome) == (was.content, "success")


async def test_bad_input_gets_an_answer(engine: Engine) -> None:
    ended = await launch(engine, "printf 'last words'", pty=True)
    await engine.wait(ended.id, up_to=60)
    pipe = await launch(engine, "exec cat", keep_stdin_open=True)
    live = await launch(engine, "echo up; exec sleep 600", pty=True, shows="up")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("process_send_keys", {"session_id": pipe.id, "keys": ["a"]}, "has no terminal; use process_write"),
        ("process_send_keys", {"session_id": live.id, "keys": ["Entr"]}, "the nearest is Enter"),
        ("process_send_keys", {"session_id": live.id}, "there is nothing to type; give literal, paste"),
        ("process_send_keys", {"session_id": live.id, "hex": "0"}, "must be pairs of digits"),
        ("process_send_keys", {"session_id": live.id, "literal": "x" * 65_537}, "at most 65536 are accepted"),
        ("process_send_keys", {"session_id": ended.id, "keys": ["a"]}, "has ended: exit code 0"),
        ("process_resize", {"session_id": live.id, "rows": 1, "cols": 80}, "rows is 1; it must be 2 to 500"),
        ("process_resize", {"session_id": live.id, "rows": 24, "cols": 1001}, "cols is 1001; it must be 2 to 1000"),
        ("process_resize", {"session_id": pipe.id, "rows": 24, "cols": 80}, "has no terminal"),
        ("process_resize", {"session_id": ended.id, "rows": 24, "cols": 80}, "has ended: exit code 0"),
        ("process_screen", {"session_id": pipe.id}, "has no terminal; process_log shows what it printed"),
        ("process_screen", {"session_id": "xnone"}, "no session 'xnone' in this conversation"),
    ]
    for tool, args, said in wrong:
        (answer,) = await converse(engine, (tool, args))
        assert answer.outcome == "failed", (tool, args)
        assert said in str(answer.content), (tool, args)
    (left,) = await converse(engine, ("process_screen", {"session_id": ended.id}))
    assert str(left.content).startswith("last words\n[screen of 40 rows and 120 columns, cursor in row 1, column 11, ")
    assert str(left.content).endswith(f"session {ended.id}: exit code 0]")


async def test_a_screen_is_made_from_a_bounded_part_of_a_long_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.terminals.screen.WINDOW", 64 * 1024)
    async with running_engine(tmp_path) as engine:
        lines = await launch(engine, "printf '\\033[?2004h'; seq 1 50000", pty=True)
        await engine.wait(lines.id, up_to=60)
        session = await engine.registry.get(lines.id)
        screens = Screens(engine)
        shown = await screens.of(session)
        assert shown.partial
        assert shown.lines[-2] == "50000"
        assert shown.modes == {BRACKETED_PASTE}
        assert await screens.of(session) == shown
        assert await Screens(engine).of(session) == shown


async def test_few_screens_are_remembered_and_the_others_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.terminals.screen.KEPT", 1)
    async with running_engine(tmp_path) as engine:
        screens = Screens(engine)
        for text in ("one", "two", "three"):
            await launch(engine, f"printf 'a\\r\\n{text}'", pty=True)
        sessions = [await engine.wait(one.id, up_to=60) for one in await engine.store.list()]
        for session in [*sessions, *reversed(sessions)]:
            shown, again = await asyncio.gather(screens.of(session), screens.of(session))
            assert shown == again
            assert session.command.endswith(f"{shown.lines[1]}'")
        assert {(await screens.of(session)).lines[1] for session in sessions} == {"one", "two", "three"}


@pytest.mark.timeout(300)
async def test_a_terminal_in_a_container_is_typed_into_seen_and_resized() -> None:
    images.needed()
    async with in_pod() as (_, engine):
        program = await raw(engine)
        await program.sees(line_of("é\x1bOA".encode()), "Up", literal="é")
        await program.sees(line_of(b"\x1b[200~two\rlines\r\x1b[201~"), paste="two\nlines\n")
        await program.press("q")
        await program.press("q")
        await program.ended()
        (engine.workspace / "sizes.py").write_text(SIZES)
        program = await typist(engine, "exec python3 sizes.py")
        await program.until("^ready$")
        await program.call("process_resize", rows=20, cols=50)
        shown = await program.until("^20 50$")
        assert (shown.rows, shown.cols) == (20, 50)
        await program.press("C-c")
        assert end_of(await program.ended()).signal == 2


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


async def asked(sup: Rig, lines: str, name: str = "a", *, shows: bytes = b"done") -> None:
    """Start a program that asks its terminal, and wait until it `shows` this: it is done after what `lines` do."""
    script = f"{ASKER}\n{lines}\nos.write(1, b'done')\nos.read(0, 1)"
    await sup.start(name, PYTHON, "-c", script, pty=(24, 80), keep_stdin_open=True, shows=shows)


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
    assert answer in sup.log("a")


async def test_questions_are_answered_in_their_order_and_with_the_size_of_now(sup: Rig) -> None:
    await asked(sup, r"ready(); ask('\\x1b[999;999H\\x1b[5n\\x1b[6n\\x1b[c', b'c', 0.1)", shows=b"ready")
    await sup.client.resize("a", 30, 100)
    await sup.client.write("a", b"x", key="1")
    await sup.until_log("a", b"done")
    assert b"<^[0n^[30;100R^[?62;22c>" in sup.log("a")


async def test_what_asks_a_terminal_that_is_read_by_the_line_is_answered_once_it_is_not(sup: Rig) -> None:
    lines = r"""
termios.tcsetattr(0, termios.TCSANOW, before)
os.write(1, b"\x1b[6n")
time.sleep(0.2)
tty.setraw(0, termios.TCSANOW)
ask("", b"R", 0.1)
"""
    await asked(sup, lines)
    assert b"<^[1;1R>" in sup.log("a")


async def test_a_file_that_is_shown_types_nothing_into_what_reads_lines(sup: Rig) -> None:
    script = r"printf '\033[6n\033[c'; read line; echo got=$line; read line; echo then=$line"
    await sup.start("a", script, pty=(24, 80), keep_stdin_open=True, shows=b"\x1b[c")
    # One that asks after it has its answer only when the first has been given up.
    await asked(sup, "time.sleep(1.2); ask(r'\\x1b[5n', b'n', 0)", "b")
    await sup.client.write("a", b"one\n", key="1")
    await sup.client.write("a", b"two\n", key="2")
    await sup.exit("a")
    assert b"got=one" in sup.log("a")
    assert b"then=two" in sup.log("a")


async def test_no_answer_comes_between_two_parts_of_a_write(sup: Rig) -> None:
    lines = r"""
ready()
os.write(1, b"\x1b[6n")
time.sleep(0.3)
got = b""
while len(got) < 20000 + 6:
    got += os.read(0, 4096)
os.write(1, b"whole" if got[:20000] == b"x" * 20000 and got[20000:].endswith(b"R") else b"mixed")
"""
    await asked(sup, lines, shows=b"ready")
    assert (await sup.client.write("a", b"x" * 20_001, key="1"))["accepted"] == 20_001
    await sup.until_log("a", b"done")
    assert b"whole" in sup.log("a")


@pytest.mark.parametrize("point", ["supervisor.asked", "supervisor.answered", "supervisor.output"])
async def test_a_kill_around_an_answer_answers_neither_twice_nor_never(sup: Rig, point: str) -> None:
    await asked(sup, r"ready(); ask('ab\\x1b[6n', b'R', 1.0); ask('\\x1b[c', b'c', 0.5)", shows=b"ready")
    before, _ = await sup.pids()
    sup.arm(point)
    await sup.client.write("a", b"x", key="1")
    await sup.until_log("a", b"done")
    assert (await sup.pids())[0] != before
    assert b"<^[1;8R>" in sup.log("a")
    assert b"<^[?62;22c>" in sup.log("a")


async def test_what_was_asked_while_the_supervisor_was_away_is_answered_by_the_next(sup: Rig) -> None:
    await asked(sup, r"os.write(1, b'ready'); ask('\\x1b[5n', b'n', 0.2)", shows=b"")
    for _ in range(2):
        pid, _ = await sup.pids()
        os.kill(pid, signal.SIGSTOP)
        await end(pid)
    await sup.until_log("a", b"done")
    assert b"<^[0n>" in sup.log("a")


async def test_without_a_keeper_the_supervisor_answers_itself(sup: Rig) -> None:
    await asked(sup, r"ready(); ask('\\x1b[5n', b'n', 0.2)", shows=b"ready")
    _, keeper = await sup.pids()
    await end(keeper)
    await sup.client.write("a", b"x", key="1")
    await until(lambda: b"done" in sup.log("a"))
    assert b"<^[0n>" in sup.log("a")


async def test_who_asks_without_end_keeps_nobody_waiting(sup: Rig) -> None:
    script = ASKER + r"os.write(1, b'ready')" + "\nwhile True: os.write(1, b'\\x1b[A\\x1b[6n' * 500)"
    await sup.start("a", PYTHON, "-c", script, pty=(24, 80), keep_stdin_open=True, log_cap=1 << 20, shows=b"ready")
    record = await sup.run("b", "echo there")
    assert record["exit_code"] == 0
    assert await sup.client.kill("a", grace_s=0, ended_by="agent") == ()


async def shell_of(here: Desk, kind: str) -> str:
    """A shell all of whose input was approved."""
    if kind == "shell_session":
        made = str((await here.approved("shell_session", action="start")).value["session_id"])
    else:
        made = str((await here.approved("execute_pty", command="bash --norc -i")).metadata["session_id"])
    here.standing[made] = "a1"
    return made


@pytest.mark.parametrize("kind", ["shell_session", "execute_pty"])
async def test_no_tool_types_what_another_would_be_refused_or_asked_about(here: Desk, kind: str) -> None:
    shell = await shell_of(here, kind)
    write, keys = "process_write", "process_send_keys"
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        (write, {"data": "rm -rf /\n"}),
        (keys, {"literal": "rm -rf /"}),
        (keys, {"literal": "rm -rf /", "keys": ["Enter"]}),
        (keys, {"paste": "rm -rf /\n"}),
        (keys, {"hex": b"rm -rf /\r".hex()}),
    )
    for tool, args in cases:
        with pytest.raises(ToolFailed, match="refused by policy"):
            await here.call(tool, session_id=shell, **args)
    for tool, args in (
        (write, {"data": "sudo id\n"}),
        (keys, {"literal": "sudo id", "keys": ["Enter"]}),
        (keys, {"hex": b"sudo id\n".hex()}),
        (keys, {"paste": "true\nsudo id\n"}),
        (keys, {"keys": ["Up", "Enter"]}),
        (keys, {"literal": "echo a", "keys": ["C-u"]}),
        (write, {"data": "echo a"}),
        (write, {"data": "!!\n"}),
    ):
        assert await here.asks(tool, session_id=shell, **args), (tool, args)
    for tool, args in ((write, {"data": "echo a\n"}), (keys, {"literal": "echo b", "keys": ["Enter"]})):
        assert not await here.asks(tool, session_id=shell, **args), (tool, args)


@pytest.mark.parametrize("kind", ["shell_session", "execute_pty"])
async def test_a_line_of_several_calls_is_asked_about_until_it_is_ended(here: Desk, kind: str) -> None:
    shell = await shell_of(here, kind)
    await here.call("process_write", session_id=shell, data="echo whole\n")
    await here.approved("process_send_keys", session_id=shell, literal="rm -rf ")
    session = await here.engine.registry.get(SessionId(shell), None)
    assert await Sessions(here.engine, None).unfinished(session) == "rm -rf "
    with pytest.raises(ToolFailed, match="refused by policy"):
        await here.call("process_write", session_id=shell, data="/\n")
    assert await here.asks("process_write", session_id=shell, data="nothing\n")
    if kind == "shell_session":
        assert await here.asks("shell_session", action="exec", session_id=shell, command="echo a")
    await here.approved("process_write", session_id=shell, data="nothing\n")
    assert not await here.asks("process_write", session_id=shell, data="echo after\n")


async def test_a_call_that_is_made_again_does_not_wait_for_itself(here: Desk) -> None:
    shell = await shell_of(here, "execute_pty")
    first = await here.call("process_write", session_id=shell, data="echo a\n")
    again = await here.call("process_write", again=True, session_id=shell, data="echo a\n")
    assert again.metadata == first.metadata


async def test_another_program_may_be_typed_into_as_it_takes_it(here: Desk) -> None:
    made = str((await here.approved("execute_pty", command="cat")).metadata["session_id"])
    here.standing[made] = "a1"
    async with asyncio.timeout(SOON):
        while (look := await here.engine.supervised.port.look(SessionId(made))) is None or look.how != "read":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for args in ({"literal": "a"}, {"keys": ["Up"]}, {"literal": "it's", "keys": ["Enter"]}):
        assert not await here.asks("process_send_keys", session_id=made, **args)
