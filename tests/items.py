"""An enqueuer for tests: notes the items instead of giving them to DBOS, in the same transaction."""

from __future__ import annotations

import sqlalchemy as sa

from shellback.storage.tables import turns
from shellback.work.queue.items import WorkItem
from shellback.work.queue.queues import note_turn


class NotedEnqueuer:
    """Writes the row in `turns` as the real one does, and remembers every item it was given."""

    def __init__(self) -> None:
        self.items: list[WorkItem] = []

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        note_turn(conn, item)
        self.items.append(item)


def committed(conn: sa.Connection) -> list[str]:
    """Ids of the items whose transaction committed."""
    return list(conn.execute(sa.select(turns.c.id).order_by(turns.c.created_at)).scalars())
