"""Events are followed without losing one that was committed late, and without one that a repeated turn tells again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.client import following
from shellback.client.following import Events, Once, Position, Tail, require_kept
from shellback.storage.db import Database
from shellback.storage.tables import events
from shellback.work.errors import Deleted, InvalidRequest
from shellback.work.queue import stream
from shellback.work.queue.stream import Event

START = Position()


def note(conn: sa.Connection, text: str, conversation: str = "c1", epoch: int = 1) -> int:
    return stream.note(conn, conversation, "t1", epoch, "text", {"text": text})


def texts(tail: Tail) -> list[str]:
    return [told.event.payload["text"] for told in tail.new()]


def test_an_event_whose_transaction_takes_longer_than_that_of_a_later_one_is_told_and_once(postgres_url: str) -> None:
    database, other = Database(postgres_url), Database(postgres_url)
    tail, chat, killed = Tail(other, None, START), Events(other, "c1", START), Tail(other, "c1", START)
    places: list[str] = []

    def slow(conn: sa.Connection) -> None:
        note(conn, "first")
        other.write_now(note, "second", "c2")
        other.write_now(note, "third")
        assert texts(tail) == ["second", "third"]
        assert texts(chat) == ["third"]
        places.extend(str(told.place) for told in killed.new())

    database.write_now(slow)
    assert texts(tail) == ["first"]
    assert texts(chat) == ["first"]
    assert texts(tail) == []
    # Its place names what was missing, so the next program is told it.
    again = Tail(other, "c1", Position.of(places[-1]))
    assert again.waits
    assert texts(again) == ["first"]
    assert texts(again) == []
    assert not again.waits
    database.write_now(note, "fourth")
    assert texts(tail) == ["fourth"]
    assert texts(again) == ["fourth"]
    database.close()
    other.close()


def test_a_transaction_that_is_rolled_back_is_not_waited_for_for_long(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(conn: sa.Connection) -> None:
        note(conn, "never")
        raise LookupError

    with pytest.raises(LookupError):
        postgres.write_now(failing)
    postgres.write_now(note, "told")
    tail = Tail(postgres, "c1", START)
    assert texts(tail) == ["told"]
    assert tail.waits
    late = time.monotonic() + following.LATE_S
    monkeypatch.setattr(following.time, "monotonic", lambda: late)
    assert texts(tail) == []
    assert not tail.waits


def test_a_long_backlog_is_told_once_and_in_order(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAGE", 3)
    tail = Tail(database, None, START)
    for round_ in range(3):
        said = [f"{round_}.{number}" for number in range(7)]
        for text in said:
            database.write_now(note, text)
        assert texts(tail) == said
        assert texts(tail) == []


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "1-x", "1.5", "1" * 30, "5-1."])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not the id of an event"):
        Position.of(text)


@pytest.mark.parametrize("text", ["0", "17", "17-1", "900-3.5.20"])
def test_a_place_is_read_as_it_is_written(text: str) -> None:
    assert str(Position.of(text)) == text


def test_events_that_were_deleted_are_not_skipped_silently_and_numbers_never_begin_anew(database: Database) -> None:
    first = database.write_now(note, "old")
    newest = [database.write_now(note, f"old {number}") for number in range(3)][-1]
    database.write_now(lambda conn: conn.execute(sa.update(events).values(created_at=0.0)))
    assert database.write_now(stream.prune) == 3
    assert database.write_now(note, "new") > newest
    with pytest.raises(Deleted, match="kept for a day"):
        database.read_now(require_kept, Position(first))
    database.read_now(require_kept, Position(newest))
    database.read_now(require_kept, START)
    with pytest.raises(InvalidRequest, match="has no event"):
        database.read_now(require_kept, Position(newest + 100))


Told = tuple[int, str, Any]
CALL: dict[str, Any] = {"tool": "t", "args": {"x": 1}}
RESULT: dict[str, Any] = {"tool": "t", "text": "done", "outcome": "success"}
BEFORE: list[Told] = [
    (1, "text", "let me "),
    (1, "text", "look"),
    (1, "tool_call", CALL),
    (1, "tool_result", RESULT),
    (1, "text", "it is "),
]
REPEATED: list[Told] = [(2, "tool_call", CALL), (2, "tool_result", RESULT)]
CASES: dict[str, tuple[list[Told], list[tuple[Any, bool]]]] = {
    "goes on in its last text": (
        [*BEFORE, *REPEATED, (2, "text", "it "), (2, "text", "is done"), (2, "text", ".")],
        [("done", False), (".", False)],
    ),
    "says something else": (
        [*BEFORE, *REPEATED, (2, "text", "it "), (2, "text", "was done"), (2, "text", ".")],
        [("it was done", True), (".", False)],
    ),
    "makes another call": (
        [*BEFORE, *REPEATED, (2, "text", "it is "), (2, "tool_call", {**CALL, "args": {}})],
        [({**CALL, "args": {}}, False)],
    ),
    "makes the same call twice": (
        [*BEFORE, *REPEATED, (2, "tool_call", CALL), (2, "tool_result", RESULT)],
        [(CALL, False), (RESULT, False)],
    ),
    "is repeated twice": (
        [*BEFORE, *REPEATED, *((3, kind, what) for _, kind, what in REPEATED), (3, "text", "it is so")],
        [("so", False)],
    ),
    "is told late by the execution that was overtaken": (
        [*BEFORE, *REPEATED, (1, "text", "lost"), (2, "text", "it is so")],
        [("so", False)],
    ),
}


def written(conn: sa.Connection, told: list[Told]) -> None:
    for epoch, kind, what in told:
        stream.note(conn, "c1", "t1", epoch, kind, {"text": what} if kind == "text" else what)


def facts(found: list[tuple[Event, bool] | None]) -> list[tuple[Any, bool]]:
    new = [one for one in found if one is not None]
    return [(event.payload["text"] if event.kind == "text" else event.payload, replaces) for event, replaces in new]


@pytest.mark.parametrize("case", CASES)
def test_a_turn_that_is_executed_again_tells_only_what_is_new(sqlite: Database, case: str) -> None:
    """And so does a reader that comes again at any place of it."""
    told, expected = CASES[case]
    sqlite.write_now(written, told)
    stored = sqlite.read_now(stream.after, "c1", 0)
    first = [(what, False) for _, _, what in BEFORE]
    for begin in range(len(stored) + 1):
        place = Position(begin)
        seen, again = Once(sqlite, "c1", START), Once(sqlite, "c1", place)
        upto = facts([seen.told(event) for event in stored[:begin]])
        rest = facts([again.told(event) for event in stored[begin:]])
        assert upto + rest == first + expected
