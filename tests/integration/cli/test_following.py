"""Events are followed without losing one that was committed late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import sqlalchemy as sa

from shellback.cli import events
from shellback.cli.events import Events, Tail
from shellback.storage.db import Database
from shellback.work.queue import stream


@dataclass
class Where:
    database: Database


def note(conn: sa.Connection, text: str, conversation: str = "c1") -> None:
    stream.note(conn, conversation, "t1", 1, "text", {"text": text})


def texts(tail: Tail) -> list[str]:
    return [event.payload["text"] for event in tail.new()]


def test_an_event_whose_transaction_takes_longer_than_that_of_a_later_one_is_told_and_once(postgres_url: str) -> None:
    database, other = Database(postgres_url), Database(postgres_url)
    tail, chat = Tail(cast("Any", Where(other)), None, 0), Events(cast("Any", Where(other)), "c1", 0)

    def slow(conn: sa.Connection) -> None:
        note(conn, "first")
        other.write_now(note, "second", "c2")
        assert texts(tail) == ["second"]
        assert texts(chat) == []

    database.write_now(slow)
    assert texts(tail) == ["first"]
    assert texts(chat) == ["first"]
    assert texts(tail) == []
    database.write_now(note, "third")
    assert texts(tail) == ["third"]
    database.close()
    other.close()


def test_a_long_backlog_is_told_once_and_in_order(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    tail = Tail(cast("Any", Where(database)), None, 0)
    for round_ in range(3):
        said = [f"{round_}.{number}" for number in range(7)]
        for text in said:
            database.write_now(note, text)
        assert texts(tail) == said
        assert texts(tail) == []
