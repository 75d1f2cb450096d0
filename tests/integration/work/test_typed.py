"""That a person typed wakes nobody, is heard with the next turn, and never goes missing or counts twice."""

from __future__ import annotations

import time

import sqlalchemy as sa

from shellback.exec.core.model import Session
from shellback.storage import retention
from shellback.storage.db import Database
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import audit, typed
from shellback.work.hosts.sweep import _with_unread_rows  # pyright: ignore[reportPrivateUsage]
from shellback.work.queue import mailbox
from shellback.work.queue.items import ItemType, WorkItem, callback_item
from shellback.work.turn import stopping
from shellback.work.turn.hearing import texts_of
from tests.items import HOST, Talk
from tests.sessions import a_session

SESSION: Session = a_session(host_id=HOST)


def note(db: Database, total: int, *, over: bool, key: str = "a.0") -> None:
    db.write_now(typed.note, SESSION, key=key, total=total, by="ada", over=over)


def heard(talk: Talk, item: WorkItem, epoch: int, step: int = 0) -> list[str]:
    return texts_of(talk.letters(item, epoch, step))


def told(number: int, more: str = "") -> str:
    return f"[a person typed into session s1 ({number} bytes{more}) at the terminal]"


def test_it_wakes_nobody_and_is_heard_with_the_next_turn(talk: Talk) -> None:
    note(talk.db, 7, over=True)
    assert talk.queue.items == []
    assert talk.db.read_now(_with_unread_rows, HOST, "") == []
    assert not talk.db.read_now(stopping.stoppable, "c1")
    # An item that finds nothing else has nothing to do.
    idle = callback_item("c1", "s9", {})
    talk.db.write_now(lambda conn: talk.queue.put(conn, idle, host_id=HOST))
    assert talk.enter(idle).outcome == "nothing"

    item, epoch = talk.entered()
    assert heard(talk, item, epoch) == [told(7), "hello"]
    note(talk.db, 3, over=True, key="a.1")
    before = len(talk.queue.items)
    talk.finish(item, epoch)
    assert len(talk.queue.items) == before  # no follow-up for what came meanwhile
    talk.send("again")
    item = talk.last(ItemType.CHAT)
    assert heard(talk, item, talk.epoch(item)) == [told(3), "again"]


def test_what_is_typed_on_after_a_turn_has_heard_of_it_is_told_apart(talk: Talk) -> None:
    note(talk.db, 1, over=False)
    note(talk.db, 4, over=False)
    item, epoch = talk.entered()
    assert heard(talk, item, epoch) == [told(4, " so far"), "hello"]
    note(talk.db, 4, over=False)
    assert heard(talk, item, epoch, step=1) == []
    note(talk.db, 10, over=False)
    note(talk.db, 12, over=True)
    assert heard(talk, item, epoch, step=2) == [told(8)]
    talk.finish(item, epoch)
    note(talk.db, 12, over=True)
    count = sa.select(sa.func.count()).where(rows.c.kind == "typed")
    assert talk.db.read_now(lambda conn: conn.execute(count).scalar_one()) == 2


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
