"""That a person typed wakes nobody, is heard with the next turn, and never goes missing or counts twice."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Session
from shellback.storage import retention
from shellback.storage.db import Database
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import audit, sending, typed
from shellback.work.hosts.sweep import _with_unread_rows  # pyright: ignore[reportPrivateUsage]
from shellback.work.queue import mailbox
from shellback.work.queue.items import ItemType, WorkItem, callback_item
from shellback.work.turn import claims, stopping
from shellback.work.turn.claims import Entry, Wakes
from shellback.work.turn.closing import Closing, close
from shellback.work.turn.hearing import texts_of
from tests.items import NotedEnqueuer
from tests.sessions import a_session

HOST = "h"
SESSION: Session = a_session()


@pytest.fixture
def queue() -> NotedEnqueuer:
    return NotedEnqueuer()


def note(db: Database, total: int, *, over: bool, key: str = "a.0") -> None:
    db.write_now(typed.note, SESSION, key=key, total=total, by="ada", over=over)


def heard(db: Database, item: WorkItem, entry: Entry, step: int = 0) -> list[str]:
    assert entry.epoch is not None
    letters, _ = db.write_now(stopping.look, "c1", item.id, entry.epoch, step)
    return texts_of(letters)


def enter(db: Database, item: WorkItem) -> Entry:
    return db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes())


def send(db: Database, queue: NotedEnqueuer, text: str = "hello") -> WorkItem:
    db.write_now(sending.send, queue, "c1", text, host_id=HOST)
    return queue.items[-1]


def finish(db: Database, queue: NotedEnqueuer, item: WorkItem, entry: Entry) -> None:
    assert entry.epoch is not None
    mine = sa.select(rows.c.id).where(rows.c.taken_by == item.id)
    ids = frozenset(db.read_now(lambda conn: list(conn.execute(mine).scalars())))
    facts: dict[str, Any] = {"outcome": "answered", "answer": "done", "heard": ids}
    closing = Closing(conversation_id="c1", turn_id=item.id, epoch=entry.epoch, **facts)
    db.write_now(close, queue, closing, None, [], None)


def told(number: int, more: str = "") -> str:
    return f"[a person typed into session s1 ({number} bytes{more}) at the terminal]"


def test_it_wakes_nobody_and_is_heard_with_the_next_turn(database: Database, queue: NotedEnqueuer) -> None:
    note(database, 7, over=True)
    assert queue.items == []
    assert database.read_now(_with_unread_rows, HOST, "") == []
    assert not database.read_now(stopping.stoppable, "c1")
    # An item that finds nothing else has nothing to do.
    idle = callback_item("c1", "s9", {})
    database.write_now(lambda conn: queue.put(conn, idle, host_id=HOST))
    assert enter(database, idle).outcome == "nothing"

    item = send(database, queue)
    entry = enter(database, item)
    assert heard(database, item, entry) == [told(7), "hello"]
    note(database, 3, over=True, key="a.1")
    before = len(queue.items)
    finish(database, queue, item, entry)
    assert len(queue.items) == before  # no follow-up for what came meanwhile
    send(database, queue, "again")
    item = queue.items[-1]
    assert item.type is ItemType.CHAT
    assert heard(database, item, enter(database, item)) == [told(3), "again"]


def test_what_is_typed_on_after_a_turn_has_heard_of_it_is_told_apart(database: Database, queue: NotedEnqueuer) -> None:
    note(database, 1, over=False)
    note(database, 4, over=False)
    item = send(database, queue)
    entry = enter(database, item)
    assert heard(database, item, entry) == [told(4, " so far"), "hello"]
    note(database, 4, over=False)
    assert heard(database, item, entry, step=1) == []
    note(database, 10, over=False)
    note(database, 12, over=True)
    assert heard(database, item, entry, step=2) == [told(8)]
    finish(database, queue, item, entry)
    note(database, 12, over=True)
    count = sa.select(sa.func.count()).where(rows.c.kind == "typed")
    assert database.read_now(lambda conn: conn.execute(count).scalar_one()) == 2


def test_the_audit_has_who_and_how_much_from_the_first_byte_on(database: Database) -> None:
    note(database, 1, over=False)
    note(database, 5, over=False)
    note(database, 9, over=True)
    found = database.read_now(audit.find, events=("typed",))
    assert [(one.done_by, one.session_id, one.surface, one.facts) for one in found] == [
        ("ada", "s1", "attach", {"bytes": 1, "over": False}),
        ("ada", "s1", "attach", {"bytes": 9, "over": True}),
    ]


def test_what_nobody_heard_of_goes_when_it_is_old(database: Database) -> None:
    note(database, 1, over=True)
    now = time.time()

    def left(rows_before: float) -> tuple[int, int]:
        cut = retention.Cut(host_id=HOST, rows=rows_before, sessions=rows_before, conversations=rows_before)
        idle = database.read_now(lambda conn: len(conn.execute(retention.conversations_to_go(cut, planned=True)).all()))
        return idle, database.write_now(retention.delete_some, "mailbox", cut)

    assert left(now - 60) == (0, 0)
    assert left(now + 60) == (1, 1)


def test_it_is_news_of_its_kind_alone_that_wakes_nobody() -> None:
    condition = str(mailbox.waking().compile(compile_kwargs={"literal_binds": True}))
    assert "'typed'" in condition
    assert "'message'" not in condition
