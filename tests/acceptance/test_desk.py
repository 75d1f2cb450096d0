"""The desk: a running worker answers what commands ask; without one they answer themselves."""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.cli import send
from shellback.cli.asking import DESK
from shellback.settings import Settings
from shellback.storage.tables import mailbox
from tests.commands import assert_refused, environment, facts, shellback
from tests.stage import Stage, staged
from tests.supervisors import run_to_end

HEAVY = {"asyncio", "dbos", "pydantic", "pydantic_ai", "psycopg", "sqlalchemy", "alembic", "openai", "anthropic"}
READING = [
    ["ps"],
    ["ps", "--all"],
    ["queue"],
    ["queue", "--all-hosts"],
    ["approvals", "list"],
    ["approvals", "list", "--all"],
]
SHOW = "print('', *{name.partition('.')[0] for name in __import__('sys').modules})"

place = staged(worker=True)
alone = staged(scope="function")


def loaded(stage: Stage, *args: str) -> set[str]:
    """Top-level names of all modules that a command has loaded when it ends."""
    code = f"import atexit, sys; atexit.register(lambda: {SHOW}); sys.argv = {['shellback', *args]!r}\n"
    code += "from shellback.cli.main import main; main()"
    done = run_to_end(sys.executable, "-P", "-c", code, cwd=stage.root, env=environment(stage, {}))
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "args", [*READING, ["send", "-c", "light", "hello"], ["send", "-c", "light", "--wait", "hello"]]
)
def test_beside_a_worker_a_command_loads_no_database_no_settings_and_no_agent(place: Stage, args: list[str]) -> None:
    assert loaded(place, *args).isdisjoint(HEAVY)


def without_time(text: str) -> Any:
    """What a command printed for programs, without the time at which it looked."""
    found = json.loads(text)
    if "at" in found:
        del found["at"]
    return found


@pytest.mark.parametrize("args", READING)
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


def test_a_message_is_stored_once_if_the_worker_ends_before_it_answers(alone: Stage) -> None:
    (alone.home / DESK).mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(alone.home / DESK / "ended"))
        listener.listen()
        asked: list[Any] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                for said in ([name.upper() for name in Settings.model_fields], True):
                    lines.write(json.dumps(said) + "\n")
                    lines.flush()
                    asked.append(json.loads(lines.readline()))
                question, how = asked[-1]
                assert question == "send"
                send.deliver(alone.where, **how)

        thread = threading.Thread(target=answer)
        thread.start()
        said = facts(shellback(alone, "send", "-c", "once", "--json", "hello"))
        thread.join()
    assert asked[0]["SHELLBACK_HOME"] == str(alone.home)
    rows = alone.rows(sa.select(mailbox.c.conversation_id, mailbox.c.dedupe_key))
    assert rows == [("once", said["item"])]
