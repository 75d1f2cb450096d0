"""Programs that wait for input are noticed, those that work are not, and passwords are left to a person."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand, PasswordWanted
from shellback.exec.core.model import EndedBy, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import Waiting, until_waiting, waiting
from tests.databases import unavailable
from tests.execs import Told, granted, launch, origin, printed, running, running_engine, spec
from tests.integration.tools.test_toolset_agent import Script, converse
from tests.integration.tools.test_toolset_bad_input import refusal
from tests.pods import in_pod
from tests.supervisors import SOON

pytestmark = pytest.mark.anyio
each = pytest.mark.usefixtures("each_backend")

APT = r"""
printf 'The following packages will be REMOVED:\n  all\nDo you want to continue? [Y/n] '
IFS= read -r answer </dev/tty
"""
ASKING: dict[str, tuple[str, bool, str, bool]] = {
    "read -p 'Name? ' name": ("bash", True, "Name?", False),
    f"bash -c {shlex.quote(APT)}": ("bash", True, "Do you want to continue? [Y/n]", False),
    """python3 -c 'input("What now: ")'""": ("python3", True, "What now:", False),
    """python3 -c 'input("By a pipe: ")'""": ("python3", False, "By a pipe:", False),
    "read -rsp 'Password: ' x": ("bash", True, "Password:", True),
    "python3 -c 'import getpass; getpass.getpass()'": ("python3", True, "Password:", True),
    "stty -echo; echo 'Code from your phone'; cat": ("cat", True, "", True),
    "cat": ("cat", True, "", False),
    "node": ("node", True, ">", False),
    "python3 -q": ("python3", True, ">>>", False),
    "ssh-keygen -q -t ed25519 -f key": ("ssh-keygen", True, "Enter passphrase (empty for no passphrase):", True),
}
"""Command: who reads, whether from a terminal, its prompt, whether that is a password."""
WORKING = (
    """python3 -c 'print("Really? [Y/n] ", end="", flush=True)\nwhile True: pass'""",
    "printf 'Password: '; sleep 600",
    """python3 -c 'import socket, selectors as s
server, by = socket.create_server(("127.0.0.1", 0)), s.DefaultSelector()
by.register(server, s.EVENT_READ), by.register(0, s.EVENT_READ)
print("listening", flush=True)
by.select()'""",
)
"""One that computes, one that sleeps, and a server that watches its input beside its socket."""


async def launched(engine: Engine, command: str, *, pty: bool = True) -> Session:
    return await launch(engine, command, **({"pty": True} if pty else {"keep_stdin_open": True}))


async def found(engine: Engine, session: Session) -> Waiting | None:
    async with asyncio.timeout(SOON):
        return await until_waiting(engine, session)


@each
async def test_who_asks_is_noticed_and_who_works_is_not_whatever_it_has_printed(tmp_path: Path) -> None:
    if missing := {program for program in ("node", "ssh-keygen") if shutil.which(program) is None}:
        unavailable(f"these are not here: {', '.join(missing)}")
    async with running_engine(tmp_path) as engine:
        works = [await launched(engine, command) for command in WORKING]
        for session, said in zip(works, ("Really?", "Password:", "listening"), strict=True):
            await printed(engine, session.id, said)
        silent = [asyncio.ensure_future(until_waiting(engine, session)) for session in works]
        asks = [await launched(engine, command, pty=pty) for command, (_, pty, _, _) in ASKING.items()]
        seen = await asyncio.gather(*(found(engine, session) for session in asks))
        for command, one in zip(ASKING, seen, strict=True):
            program, _, prompt, password = ASKING[command]
            assert one is not None, command
            assert (one.program, one.prompt, one.password) == (program, prompt, password), command
            assert one.evidence == ("poll" if prompt[:1] == ">" else "read"), command
        # The last of those that ask had been silent for two seconds, and these for longer.
        assert [await waiting(engine, session) for session in works] == [None, None, None]
        assert not any(task.done() for task in silent)
        for task in silent:
            task.cancel()


@each
async def test_a_call_that_waits_returns_when_its_program_asks_and_the_answer_goes_on_with_it(tmp_path: Path) -> None:
    sink = Told()
    async with running_engine(tmp_path, sink=sink) as engine:
        command = "read -p 'Delete? [y/N] ' answer; echo you said $answer; exit 3"
        args = {"command": command, "background": False, "timeout": 600}
        (answer,) = await converse(engine, Script(("execute_pty", args)))
        session_id = answer.metadata["session_id"]
        said = str(answer.content)
        assert said.startswith("Delete? [y/N]")
        assert "[it waits for input, so it was moved to the background" in said
        assert answer.metadata["handed_over"] is True
        assert answer.metadata["waiting_for_input"]["prompt"] == "Delete? [y/N]"
        polled = ("process_poll", {"session_id": session_id})
        write = ("process_write", {"session_id": session_id, "data": "yes\n"})
        _, seen, _ = await converse(engine, Script(polled, polled, write))
        assert seen.content["waiting_for_input"] == {
            "evidence": "read",
            "prompt": "Delete? [y/N]",
            "since_seconds": seen.content["waiting_for_input"]["since_seconds"],
            "password": False,
            "program": "bash",
            "what_to_do": "answer with process_send_keys or process_write, or end it with process_kill",
        }
        session = await engine.wait(session_id, up_to=SOON)
        assert session.end is not None
        assert session.end.exit_code == 3
        assert [one.id for one in sink.sessions] == [session_id]
        (after,) = await converse(engine, Script(polled))
    assert "you said yes" in after.content["output"]
    assert "waiting_for_input" not in after.content


async def test_a_foreground_command_without_a_terminal_is_never_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_engine(tmp_path) as engine:
        looked: list[Any] = []
        monkeypatch.setattr(engine.supervised, "look", looked.append)
        monkeypatch.setattr(engine.supervised, "grown", looked.append)
        (answer,) = await converse(engine, Script(("execute", {"command": "cat; sleep 0.7; echo over"})))
    assert answer.content.startswith("over\n[exit code 0")
    assert looked == []


async def test_the_code_of_an_agent_waits_for_its_own_command_whatever_that_asks(tmp_path: Path) -> None:
    """Only a call of a model returns early: who called from code has its hands on the session."""
    async with running_engine(tmp_path) as engine:
        made = spec(engine, "read -p 'Name? ' x; echo $x", pty=True)
        task = asyncio.ensure_future(engine.run(made, origin(), granted(engine, made)))
        (session,) = await running(engine)
        assert await found(engine, session) is not None
        await Sessions(engine, None).write(session.id, b"me\n", origin(), tool="shell")
        outcome = await task
    assert not outcome.handed_over
    assert outcome.session.end is not None


async def test_a_repeat_of_a_call_that_returned_early_says_the_same(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        made, who = spec(engine, "read -p 'Name? ' x", pty=True), origin()
        first = await engine.run(made, who, granted(engine, made), until_input=True)
        again = await engine.run(made, who, granted(engine, made), until_input=True)
    for outcome in (first, again):
        assert outcome.handed_over
        assert outcome.waiting is not None
        assert outcome.waiting.prompt == "Name?"


@each
async def test_a_password_is_typed_by_a_person_and_by_no_model(engine: Engine) -> None:
    session = await launched(engine, "trap 'echo stopped' INT; read -rsp 'Password: ' x; echo got $x; sleep 600")
    one = await found(engine, session)
    assert one is not None
    assert one.password
    sessions, call = Sessions(engine, "talk"), origin()
    for who in (call, call, origin()):
        with pytest.raises(InvalidCommand, match=f"shellback attach {session.id}"):
            await sessions.write(session.id, b"hunter2\n", who, tool="process_write")
    with pytest.raises(PasswordWanted):
        await sessions.write(session.id, b"\n", origin(), tool="process_write")
    about = {"session_id": session.id}
    for args in ({"data": "hunter2\n"}, {"keys": ["x", "Enter"]}, {"paste": "hunter2"}):
        tool = "process_write" if "data" in args else "process_send_keys"
        assert f"shellback attach {session.id}" in await refusal(engine, tool, about | args)
    (pressed,) = await converse(engine, Script(("process_send_keys", about | {"keys": ["C-c"]})))
    assert pressed.outcome == "success"
    await printed(engine, session.id, "stopped")
    assert await sessions.write(session.id, b"mine\n", origin(), tool="attach", by_model=False) == 5
    await printed(engine, session.id, "got mine")
    assert await sessions.write(session.id, b"more\n", origin(), tool="process_write") == 5
    await sessions.end(session, by=EndedBy.SHUTDOWN)


async def test_in_a_container_who_asks_is_noticed_and_a_password_is_left_to_a_person() -> None:
    async with in_pod() as (_, engine):
        asks = await launched(engine, "read -p 'Delete? [y/N] ' x; echo so $x")
        hides = await launched(engine, "read -rsp 'Password: ' x")
        works = await launched(engine, "printf 'Password: '; sleep 600")
        one, other = await asyncio.gather(found(engine, asks), found(engine, hides))
        assert one is not None
        assert other is not None
        assert (one.prompt, one.password) == ("Delete? [y/N]", False)
        assert (other.prompt, other.password) == ("Password:", True)
        assert await waiting(engine, works) is None
        sessions = Sessions(engine, "talk")
        with pytest.raises(PasswordWanted):
            await sessions.write(hides.id, b"hunter2\n", origin(), tool="process_write")
        await sessions.write(asks.id, b"y\n", origin(), tool="process_write")
        assert (await engine.wait(asks.id, up_to=SOON)).end is not None
