"""What is typed arrives byte by byte as a terminal would send it, once, and what cannot be typed is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

from shellback.exec.core.model import WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.policy.policy import Asked, TablePolicy, Verdict
from shellback.exec.terminals.keys import BRACKETED_PASTE
from shellback.exec.terminals.screen import Screens
from shellback.exec.tools.toolset import exec_toolset
from tests import images
from tests.execs import launch, origin, printed, running_engine
from tests.integration.tools.test_toolset_agent import Deps, Script, converse, returns
from tests.pods import in_pod
from tests.terminals import Typist, typist

pytestmark = pytest.mark.anyio

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
    await program.press("Up", "F1", "C-Up")
    await program.until(line_of(b"\x1bOA\x1bOP\x1b[1;5A"))
    answer = await program.press(paste="two\nlines\n")
    assert answer.content == f"[wrote 22 bytes to session {program.session.id}]"
    await program.until(line_of(b"\x1b[200~two\rlines\r\x1b[201~"))
    await program.press("q")
    await program.until("^plain$")
    await program.press("Up", "Home")
    await program.until(line_of(b"\x1b[A\x1b[H"))
    await program.press(paste="two\nlines\n")
    await program.until(line_of(b"two\rlines\r"))
    await program.press(hex="00 c3 28 ff", literal="Enter")
    await program.until(line_of(b"Enter\x00\xc3(\xff"))
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


class Allowed(TablePolicy):
    """Everything goes on, as with an approval that stands for a session."""

    async def judge(self, asked: Asked) -> Verdict:
        return Verdict(decision="allow", reason="it may")


async def test_a_repeat_of_a_call_is_told_what_it_did_after_the_session_has_ended_too(engine: Engine) -> None:
    program = await typist(engine, "echo ready; read -r line")
    await program.until("^ready$")
    session_id = program.session.id
    calls = [
        ("process_resize", {"session_id": session_id, "rows": 20, "cols": 50}),
        ("process_send_keys", {"session_id": session_id, "literal": "done", "keys": ["Enter"]}),
    ]
    tools = exec_toolset(engine, policy=Allowed())
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
    live = await launch(engine, "echo up; exec sleep 600", pty=True)
    await printed(engine, live.id, "up")
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
        (answer,) = await converse(engine, Script((tool, args)))
        assert answer.outcome == "failed", (tool, args)
        assert said in str(answer.content), (tool, args)
    (left,) = await converse(engine, Script(("process_screen", {"session_id": ended.id})))
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
        await program.press("Up", literal="é")
        await program.until(line_of("é\x1bOA".encode()))
        await program.press(paste="two\nlines\n")
        await program.until(line_of(b"\x1b[200~two\rlines\r\x1b[201~"))
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
        ended = await program.ended()
        assert ended.end is not None
        assert ended.end.signal == 2
