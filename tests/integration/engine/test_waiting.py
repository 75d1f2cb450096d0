"""Programs that wait for input are noticed, those that work are not; being told that output came."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from shellback.exec.core.answers import Grown, Look
from shellback.exec.core.errors import InvalidCommand, LimitReached, PasswordWanted, SessionNotFound
from shellback.exec.core.model import CallKey, EndedBy, Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import Waiting, until_waiting, waiting
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import growth
from tests.databases import unavailable
from tests.execs import Told, end_of, granted, launch, origin, printed, run, running, spec
from tests.integration.tools.test_toolset_agent import converse, refusal
from tests.podmans import in_pod
from tests.supervisors import SOON, Rig, answered, end, run_to_end, stop

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
    return await launch(engine, command, pty=pty, keep_stdin_open=not pty)


async def found(engine: Engine, session: Session) -> Waiting | None:
    async with asyncio.timeout(SOON):
        return await until_waiting(engine, session)


@each
async def test_who_asks_is_noticed_and_who_works_is_not_whatever_it_has_printed(engine: Engine) -> None:
    if missing := {program for program in ("node", "ssh-keygen") if shutil.which(program) is None}:
        unavailable(f"these are not here: {', '.join(missing)}")
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
async def test_a_call_that_waits_returns_when_its_program_asks_and_the_answer_goes_on_with_it(
    engine: Engine, told: Told
) -> None:
    command = "read -p 'Delete? [y/N] ' answer; echo you said $answer; exit 3"
    args = {"command": command, "background": False, "timeout": 600}
    (answer,) = await converse(engine, ("execute_pty", args))
    session_id = answer.metadata["session_id"]
    said = str(answer.content)
    assert said.startswith("Delete? [y/N]")
    assert "[it waits for input, so it was moved to the background" in said
    assert answer.metadata["handed_over"] is True
    assert answer.metadata["waiting_for_input"]["prompt"] == "Delete? [y/N]"
    polled = ("process_poll", {"session_id": session_id})
    write = ("process_write", {"session_id": session_id, "data": "yes\n"})
    _, seen, _ = await converse(engine, polled, polled, write)
    assert seen.content["waiting_for_input"] == {
        "evidence": "read",
        "prompt": "Delete? [y/N]",
        "since_seconds": seen.content["waiting_for_input"]["since_seconds"],
        "password": False,
        "program": "bash",
        "what_to_do": "answer with process_send_keys or process_write, or end it with process_kill",
    }
    session = await engine.wait(session_id, up_to=SOON)
    assert end_of(session).exit_code == 3
    assert [one.id for one in told.sessions] == [session_id]
    (after,) = await converse(engine, polled)
    assert "you said yes" in after.content["output"]
    assert "waiting_for_input" not in after.content


async def test_a_foreground_command_without_a_terminal_is_never_looked_at(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(engine.supervised.port, "look", looked.append)
    monkeypatch.setattr(engine.supervised.port, "grown", looked.append)
    (answer,) = await converse(engine, ("execute", {"command": "cat; sleep 0.7; echo over"}))
    assert answer.content.startswith("over\n[exit code 0")
    assert looked == []


async def test_the_code_of_an_agent_waits_for_its_own_command_whatever_that_asks(engine: Engine) -> None:
    """Only a call of a model returns early: who called from code has its hands on the session."""
    made = spec(engine, "read -p 'Name? ' x; echo $x", pty=True)
    task = asyncio.ensure_future(engine.run(granted(engine, made), origin()))
    (session,) = await running(engine)
    assert await found(engine, session) is not None
    await Sessions(engine, None).write(session.id, b"me\n", origin(), tool="shell")
    outcome = await task
    assert not outcome.handed_over
    assert outcome.session.end is not None


async def test_a_repeat_of_a_call_that_returned_early_says_the_same(engine: Engine) -> None:
    made, who = spec(engine, "read -p 'Name? ' x", pty=True), origin()
    first = await engine.run(granted(engine, made), who, until_input=True)
    again = await engine.run(granted(engine, made), who, until_input=True)
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
    (pressed,) = await converse(engine, ("process_send_keys", about | {"keys": ["C-c"]}))
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


Row = tuple[str, str, dict[str, Any], str, str]
TERMINAL: dict[str, Any] = {"pty": True}
PIPE: dict[str, Any] = {"keep_stdin_open": True}
PASSWORD = "import getpass; getpass.getpass()"
SERVER = (
    "import select, socket; s = socket.create_server(('', 0)); print('ready', flush=True); select.select([s], [], [])"
)
READERS: list[Row] = [
    ("read", "read -p 'name? ' x", TERMINAL, "bash", "read"),
    ("cat", "cat", TERMINAL, "cat", "read"),
    ("input", "python3 -c 'input()'", TERMINAL, "python3", "read"),
    ("repl", "python3 -q", TERMINAL, "python3", "poll"),
    ("node", "node", TERMINAL, "node", "poll"),
    ("password", f'python3 -c "{PASSWORD}"', TERMINAL, "python3", "read"),
    ("shell", "bash --norc -i", TERMINAL, "bash", "poll"),
    ("pager", "seq 1000 | less", TERMINAL, "less", "read"),
    ("pipe", "cat | sort", PIPE, "cat", "read"),
    ("pipe of input()", "python3 -c 'input()'", PIPE, "python3", "read"),
]
OTHERS: list[Row] = [
    ("sleep", "echo ready; exec sleep 600", TERMINAL, "", "none"),
    ("busy", "echo ready; while :; do :; done", TERMINAL, "", "none"),
    ("pipeline", "echo ready; sleep 600 | cat", TERMINAL, "", "none"),
    ("server", f'python3 -c "{SERVER}"', TERMINAL, "", "none"),
    ("pipe", "echo ready; exec sleep 600", PIPE, "", "none"),
    ("no input", "echo ready; exec cat /dev/zero > /dev/null", {}, "", "none"),
]


async def look_at(engine: Engine, session: Session) -> Look:
    look = await engine.supervised.port.look(session.id)
    assert look is not None
    return look


async def seen_waiting(engine: Engine, session: Session) -> Look:
    """What is seen once somebody waits for input."""
    return await answered(lambda: look_at(engine, session), lambda look: look.how != "none")


async def started(engine: Engine, rows: list[Row]) -> list[Session]:
    found = await asyncio.gather(*(launch(engine, command, **more) for _, command, more, _, _ in rows))
    return list(found)


async def test_real_programs_are_seen_to_wait_and_others_are_not(each_backend: str, engine: Engine) -> None:
    if shutil.which("node") is None or shutil.which("less") is None:
        unavailable("node and less are to be looked at")
    sessions = await started(engine, READERS)
    looks = await asyncio.gather(*(seen_waiting(engine, session) for session in sessions))
    for (name, _, more, reader, how), look in zip(READERS, looks, strict=True):
        assert (name, look.name, look.how) == (name, reader, how)
        assert look.reader > 1
        assert (look.terminal is not None) == (more is TERMINAL)
    modes = {row[0]: look.terminal for row, look in zip(READERS, looks, strict=True)}
    assert modes["cat"] is not None
    assert (modes["cat"].echo, modes["cat"].canonical) == (True, True)
    assert modes["password"] is not None
    assert (modes["password"].echo, modes["password"].canonical) == (False, True)
    assert modes["shell"] is not None
    assert not modes["shell"].canonical
    assert (modes["cat"].rows, modes["cat"].cols, modes["cat"].foreground) == (40, 120, looks[1].reader)
    sessions = await started(engine, OTHERS)
    for session, (name, *_, how) in zip(sessions, OTHERS, strict=True):
        await printed(engine, session.id, "ready")
        for _ in range(5):
            assert (name, (await look_at(engine, session)).how) == (name, how)


async def test_who_has_been_written_to_waits_no_more_and_one_that_ended_is_not_looked_at(engine: Engine) -> None:
    session = await launch(engine, "read x; echo ready; exec sleep 600", **PIPE)
    await seen_waiting(engine, session)
    await engine.supervised.port.write(session.id, b"x\n", eof=False, key="a")
    await printed(engine, session.id, "ready")
    look = await look_at(engine, session)
    assert look.how == "none"
    assert look.quiet_s < SOON
    await engine.supervised.kill(session.id, by=EndedBy.AGENT)
    assert await engine.supervised.port.look(session.id) is None
    done = await run(engine, "true")
    assert await engine.supervised.port.look(done.session.id) is None


async def test_processes_that_come_and_go_while_they_are_looked_at_do_no_harm(engine: Engine) -> None:
    session = await launch(engine, "while :; do (true | true) & (sleep 0.001); wait; done", pty=True)
    for _ in range(300):
        assert (await look_at(engine, session)).how in {"none", "read", "unknown"}


async def test_a_stopped_reader_does_not_wait_and_quiet_counts_from_the_last_output(sup: Rig) -> None:
    began = time.monotonic()
    await sup.start("a", "echo x; exec cat", stdin=b"", keep_stdin_open=True, background=True)

    async def how() -> str:
        look = await sup.client.look("a")
        return "" if look is None else look.how

    async def reading() -> None:
        await answered(how, lambda found: found == "read")

    await reading()
    look = await sup.client.look("a")
    assert look is not None
    assert look.quiet_s <= time.monotonic() - began
    await stop(look.reader)
    assert await how() == "none"
    os.kill(look.pid, signal.SIGCONT)
    await sup.kill_supervisor()
    await reading()
    again = await sup.client.look("a")
    assert again is not None
    assert look.quiet_s <= again.quiet_s <= time.monotonic() - began + 1
    assert await sup.client.look("b") is None


WITHOUT: Final = """
import os, subprocess, sys, time
from shellback.exec.supervisor.process import looks as readers
ours, theirs = os.pipe()
cat = subprocess.Popen(["cat"], stdin=ours, user=65534, group=65534, extra_groups=[])
pipe = os.fstat(ours)
while (seen := readers.reader([cat.pid], readers.Source(pipe=(pipe.st_dev, pipe.st_ino)), 0)).how == "none":
    time.sleep(0.02)
print(seen.name, seen.how, readers.linux.libc.setfsuid(-1), readers.linux.libc.setfsgid(-1))
os.close(theirs), os.close(ours), cat.wait()
"""


@pytest.mark.parametrize("less", ["-sys_ptrace", "-dac_override,-dac_read_search,-sys_ptrace"])
def test_root_without_its_powers_as_in_a_container_sees_what_the_user_sees(less: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has powers to be without")
    if shutil.which("setpriv") is None:
        unavailable("setpriv is not installed")
    weak = ["setpriv", f"--bounding-set={less}", f"--inh-caps={less}"]
    made = run_to_end(*weak, sys.executable, "-c", WITHOUT)
    assert made.stdout.split() == ["cat", "read", "0", "0"], made.stderr


ECHO = "while read line; do echo $line; done"


async def asking(sup: Rig, name: str, beyond: int, **more: Any) -> asyncio.Task[Grown]:
    """A request that has reached the supervisor and is not answered."""
    task = asyncio.ensure_future(sup.client.grown(name, beyond, timeout_s=SOON, **more))
    await asyncio.sleep(0)
    await sup.client.info()
    assert not task.done()
    return task


async def test_who_waits_is_told_of_the_next_output_and_of_the_end(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    task = await asking(sup, "a", 0)
    await sup.client.write("a", b"hello\n")
    assert await task == Grown(size=6)
    assert await sup.client.grown("a", 3) == Grown(size=6)
    tasks = [await asking(sup, "a", 6) for _ in range(3)]
    await sup.client.write("a", b"", eof=True)
    assert await asyncio.gather(*tasks) == [Grown(size=6, ended=True)] * 3
    assert await sup.client.grown("a", 6) == Grown(size=6, ended=True)
    await sup.client.ack("a")
    assert await sup.client.grown("a", 6) == Grown(size=6, ended=True)
    with pytest.raises(SessionNotFound):
        await sup.client.grown("b", 0)


async def test_a_write_is_told_with_the_output_that_it_brings_and_once(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    for _ in range(2):
        told = await sup.client.write("a", b"hello\n", key="1", beyond=5, timeout_s=SOON)
        assert told["accepted"] == 6
        assert await sup.client.grown("a", 0, timeout_s=0) == Grown(size=6)
    told = await sup.client.write("a", b"x", key="2", beyond=6, timeout_s=0.05)
    assert (told["accepted"], await sup.client.grown("a", 6, timeout_s=0)) == (1, Grown(size=6))
    waits = asyncio.ensure_future(sup.client.write("a", b"", eof=True, key="3", beyond=100, timeout_s=SOON))
    assert (await waits)["eof"]
    assert await sup.client.grown("a", 0, timeout_s=0) == Grown(size=6, ended=True)


async def test_a_write_is_told_at_once_where_too_many_wait(sup: Rig) -> None:
    await sup.start("a", "read line; sleep 60", stdin=b"", keep_stdin_open=True)
    waits = [await asking(sup, "a", 0) for _ in range(growth.PER_SESSION)]
    assert (await sup.client.write("a", b"x", key="1", beyond=0, timeout_s=SOON))["accepted"] == 1
    assert not any(task.done() for task in waits)
    for task in waits:
        task.cancel()


async def test_the_second_stream_is_asked_for_by_its_own_size(sup: Rig) -> None:
    await sup.start("a", "echo out; read x; echo err >&2; read x", stdin=b"", keep_stdin_open=True,
                    separate_stderr=True)  # fmt: skip
    await sup.until_log("a", b"out\n")
    task = await asking(sup, "a", 4)
    both = await asking(sup, "a", 4, err_beyond=0)
    await sup.client.write("a", b"\n")
    assert await both == Grown(size=4, err_size=4)
    assert not task.done()
    task.cancel()


async def test_the_time_is_up_and_no_answer_comes_before_the_rest(sup: Rig) -> None:
    await sup.start("a", "echo x; exec sleep 60")
    await sup.until_log("a", b"x\n")
    assert await sup.client.grown("a", 2, timeout_s=0) == Grown(size=2)
    began = time.monotonic()
    assert await sup.client.grown("a", 2, timeout_s=0.2) == Grown(size=2)
    assert await sup.client.grown("a", 0, rest_s=0.2, timeout_s=SOON) == Grown(size=2)
    assert time.monotonic() - began >= 0.4


async def test_what_comes_within_the_rest_is_told_in_one_piece(sup: Rig) -> None:
    await sup.start("a", ECHO, stdin=b"", keep_stdin_open=True)
    task = await asking(sup, "a", 0, rest_s=1.0)
    for _ in range(5):
        await sup.client.write("a", b"1\n")
    await sup.until_log("a", b"1\n" * 5)
    assert (await task).size == 10


async def test_who_stops_waiting_leaves_nothing_behind(sup: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await sup.start("a", "exec sleep 60")
    for _ in range(3):
        tasks = [await asking(sup, "a", 0) for _ in range(growth.PER_SESSION)]
        with pytest.raises(LimitReached):
            await sup.client.grown("a", 0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    other = sup.another()
    tasks = [asyncio.ensure_future(other.grown("a", 0)) for _ in range(growth.PER_SESSION)]
    await asyncio.sleep(0)
    await other.info()
    await other.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    (await asking(sup, "a", 0)).cancel()


async def test_a_follower_hears_of_output_and_end_while_the_supervisor_is_replaced(
    tmp_path: Path, engine: Engine
) -> None:
    session = await launch(engine, ECHO, keep_stdin_open=True)
    follower = Follower(engine, session)
    assert await follower.grown(0, timeout_s=0) == Grown(size=0)
    task = asyncio.ensure_future(follower.grown(0))
    other = SupervisorClient(tmp_path / "home")
    pid = (await other.info())["pid"]
    await other.close()
    await end(pid)
    await engine.supervised.port.write(session.id, b"hello\n", eof=True, key=CallKey("k"))
    assert (await task).size == 6
    assert await follower.grown(6) == Grown(size=6, ended=True)
    ended = await engine.wait(session.id, up_to=SOON)
    assert await Follower(engine, ended).grown(6) == Grown(size=6, ended=True)
    done = await run(engine, "echo over")
    assert await Follower(engine, done.session).grown(99) == Grown(size=5, ended=True)
