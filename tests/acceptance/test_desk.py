"""The desk: a running worker answers what commands ask; without one they answer themselves."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TextIO

import pytest
import sqlalchemy as sa

from shellback.cli import chat, send
from shellback.cli.asking import DESK, VERSION, WAITS
from shellback.settings import Settings
from shellback.storage.tables import mailbox
from tests.commands import assert_refused, environment, facts, shellback
from tests.stage import Stage, staged
from tests.supervisors import run_to_end

HEAVY = {"asyncio", "dbos", "pydantic", "pydantic_ai", "psycopg", "sqlalchemy", "alembic", "openai", "anthropic"}
SHORT = [["ps"], ["queue"], ["queue", "--all-hosts"], ["approvals", "list"]]
SHOW = "print('', *{name.partition('.')[0] for name in __import__('sys').modules})"

place = staged(worker=True)
alone = staged(scope="function")


def loaded(stage: Stage, *args: str, program: str = "from shellback.cli.main import main; main()") -> set[str]:
    """Top-level names of all modules that a command has loaded when it ends."""
    code = f"import atexit, sys; atexit.register(lambda: {SHOW}); sys.argv = {['shellback', *args]!r}\n{program}"
    done = run_to_end(sys.executable, "-P", "-c", code, cwd=stage.root, env=environment(stage, {}))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("args", [*SHORT, ["send", "-c", "light", "hello"], ["send", "-c", "light", "--wait", "hello"]])
def test_beside_a_worker_a_command_loads_no_database_no_settings_and_no_agent(place: Stage, args: list[str]) -> None:
    assert loaded(place, *args).isdisjoint(HEAVY)


def test_beside_a_worker_chat_has_its_prompt_before_it_loads_database_settings_and_agent(place: Stage) -> None:
    program = """
import os
import shellback.cli.chat as chat
os.get_terminal_size = lambda _: os.terminal_size((80, 24))
chat._seat = lambda _: sys.exit(0)
sys.stdin.isatty = sys.stdout.isatty = lambda: True
chat.chat(["-c", "seen"], standalone_mode=False)
"""
    assert loaded(place, program=program).isdisjoint(HEAVY - {"asyncio"})


def test_a_worker_tells_chat_what_chat_finds_itself(place: Stage) -> None:
    told = """
import json
from shellback.cli.asking import of_a_worker
print(json.dumps(of_a_worker("chat", conversation="seen", workspace=None)))
"""
    done = run_to_end(sys.executable, "-P", "-c", told, cwd=place.root, env=environment(place, {}))
    found = chat.begun(place.where, conversation="seen", workspace=None)
    assert json.loads(done.stdout) == found
    assert found["greeting"][0].startswith("conversation seen, the running worker")


def without_time(text: str) -> Any:
    """What a command printed for programs, without the time at which it looked."""
    found = json.loads(text)
    if "at" in found:
        del found["at"]
    return found


@pytest.mark.parametrize("args", SHORT)
def test_a_worker_answers_as_the_command_itself_does(place: Stage, args: list[str]) -> None:
    if not place.requests():
        place.send("$ touch waits.txt", "waits")
    place.pending("waits")
    place.until("nothing else is under way", place.at_rest)
    asked = [shellback(place, *args, *more) for more in ((), ("--json",))]
    sockets = place.home / DESK
    sockets.rename(place.home / "away")
    try:
        itself = [shellback(place, *args, *more) for more in ((), ("--json",))]
    finally:
        (place.home / "away").rename(sockets)
    assert [one.returncode for one in asked] == [0, 0]
    assert len(asked[0].stdout.splitlines()) == len(itself[0].stdout.splitlines())
    assert asked[0].stdout.splitlines()[0] == itself[0].stdout.splitlines()[0]
    assert without_time(asked[1].stdout) == without_time(itself[1].stdout)


def test_a_worker_with_another_database_is_not_asked(place: Stage) -> None:
    other = f"sqlite:///{place.root}/other.db"
    place.ended(place.send("hello", "here"))
    shellback(place, "send", "-c", "there", "hello", DATABASE_URL=other)
    assert "there" not in shellback(place, "conversations", "list").stdout
    assert "NORMAL" in shellback(place, "queue", DATABASE_URL=other).stdout


def test_a_wrong_setting_is_refused_beside_a_worker_too(place: Stage) -> None:
    assert_refused(shellback(place, "ps", TURN_SLOTS="many"), "TURN_SLOTS='many'")


def test_a_refused_message_is_refused_beside_a_worker_too(place: Stage) -> None:
    assert_refused(shellback(place, "send", "-c", "-wrong", "hello"), "conversation name '-wrong'")


@contextmanager
def met(alone: Stage, act: Callable[[TextIO], None]) -> Generator[None]:
    """A worker's socket, with `act` instead of the worker for the first command that comes."""
    (alone.home / DESK).mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        path = alone.home / DESK / "ours"
        listener.bind(str(path))
        listener.listen()

        def meet() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                act(lines)

        thread = threading.Thread(target=meet)
        thread.start()
        yield
        thread.join()
        path.unlink()


def say(lines: TextIO, said: object) -> Any:
    """Say this; returns what the command says then, None if it leaves."""
    lines.write(json.dumps(said) + "\n")
    lines.flush()
    heard = lines.readline()
    return json.loads(heard) if heard else None


GREETING: Final = [VERSION, [name.upper() for name in Settings.model_fields]]


def test_a_message_is_stored_once_if_the_worker_ends_before_it_answers(alone: Stage) -> None:
    asked: list[Any] = []

    def answer(lines: TextIO) -> None:
        asked.extend((say(lines, GREETING), say(lines, True)))
        question, how = asked[-1]
        assert question == "send"
        send.deliver(alone.where, **how)

    with met(alone, answer):
        said = facts(shellback(alone, "send", "-c", "once", "--json", "hello"))
    assert asked[0]["SHELLBACK_HOME"] == str(alone.home)
    rows = alone.rows(sa.select(mailbox.c.conversation_id, mailbox.c.dedupe_key))
    assert rows == [("once", said["item"])]


def test_a_worker_of_another_version_is_asked_nothing(alone: Stage) -> None:
    heard: list[Any] = []
    with met(alone, lambda lines: heard.append(say(lines, [VERSION + 1, GREETING[1]]))):
        assert facts(shellback(alone, "ps", "--json"))["sessions"] == []
    assert heard == [None]


def test_a_command_that_a_worker_tells_nothing_any_more_looks_for_the_answer_itself(alone: Stage) -> None:
    left: list[Any] = []

    def hang(lines: TextIO) -> None:
        say(lines, GREETING)
        _, how = say(lines, True)
        assert say(lines, send.deliver(alone.where, **how))[0] == "outcome"
        left.append(say(lines, WAITS))

    with met(alone, hang):
        late = shellback(alone, "send", "-c", "late", "--wait", "--timeout", "6", "hello")
    assert left == [None], "it has left"
    assert "no answer within 6 s" in late.stderr
