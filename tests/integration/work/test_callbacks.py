"""The end of a background session becomes one mailbox row and one item, however often it is delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery
from shellback.storage.db import Database
from shellback.storage.tables import events, mailbox
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.items import Priority
from tests.items import NotedEnqueuer
from tests.sessions import EXITED, a_session

ENDED = replace(a_session(delivery=Delivery.CALLBACK), state=EXITED.state, end=EXITED)


def counted(conn: sa.Connection, query: sa.Select[int]) -> int:
    return conn.execute(query).scalar_one()


def test_one_end_delivered_twice_is_one_row_and_one_item_with_high_priority(database: Database) -> None:
    queue = NotedEnqueuer()
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id, "exit_code": 3})
    for _ in range(2):
        database.write_now(lambda conn: sink.ended(conn, ENDED))
    rows = database.read_now(lambda conn: conn.execute(sa.select(mailbox)).all())
    assert [(row.kind, row.dedupe_key) for row in rows] == [("exit", f"exit:{ENDED.id}")]
    assert rows[0].payload["command"] == ENDED.command
    assert [(item.id, item.priority) for item in queue.items] == [(f"EXEC_CALLBACK:{ENDED.id}", Priority.HIGH)]
    assert queue.items[0].payload == {"session_id": ENDED.id, "exit_code": 3}


def test_news_that_is_rolled_back_leaves_nothing_behind(database: Database) -> None:
    """The row, the item and the end are one transaction: all of it or none."""
    queue = NotedEnqueuer()
    sink = CallbackSink(queue, "host1", lambda session: {"session_id": session.id})

    def broken(conn: sa.Connection) -> None:
        sink.ended(conn, ENDED)
        raise ConnectionError("the machine went away")

    with pytest.raises(ConnectionError):
        database.write_now(broken)
    for table in (mailbox, events):
        query = sa.select(sa.func.count()).select_from(table)
        assert database.read_now(counted, query) == 0
