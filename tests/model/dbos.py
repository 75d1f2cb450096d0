"""DBOS, simulated: a table of work items with their statuses, and the steps that were recorded of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.rows import insert_new
from shellback.work.queue.items import WorkItem
from shellback.work.queue.queues import note_turn, queue_for

metadata = sa.MetaData()
queue = sa.Table(
    "model_items",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("id", sa.String, unique=True),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Column("queue", sa.String, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("executor_id", sa.String),
    sa.Column("version", sa.String),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
)
WAITING = ("ENQUEUED", "PENDING")
DEAD = ("ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


class SimulatedEnqueuer:
    """Puts an item in the caller's transaction; an id that was used before changes nothing."""

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        note_turn(conn, item)
        insert_new(
            conn,
            queue,
            {"id": item.id, "body": item.to_json(), "queue": queue_for(item, host_id), "status": "ENQUEUED"},
        )

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        pass


@dataclass(frozen=True)
class Found:
    workflow_id: str
    status: str
    executor_id: str | None
    app_version: str | None
    queue_name: str


class SimulatedDbos:
    """What DBOS keeps. Its own writes are transactions of their own, as they are in DBOS."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.steps: dict[str, list[tuple[str, Any]]] = {}

    def of(self, *statuses: str) -> list[str]:
        """Ids of the items with one of these statuses, in the order in which they were put."""
        query = sa.select(queue.c.id).where(queue.c.status.in_(statuses)).order_by(queue.c.seq)
        return self._db.read_now(lambda conn: list(conn.execute(query).scalars()))

    def pending_of(self, executor_id: str) -> list[str]:
        query = sa.select(queue.c.id).where(queue.c.status == "PENDING", queue.c.executor_id == executor_id)
        return self._db.read_now(lambda conn: list(conn.execute(query.order_by(queue.c.seq)).scalars()))

    def status(self, item_id: str) -> str | None:
        query = sa.select(queue.c.status).where(queue.c.id == item_id)
        return self._db.read_now(lambda conn: conn.execute(query).scalar_one_or_none())

    def begin(self, item_id: str, executor_id: str, version: str, most: int) -> WorkItem | None:
        """Give an item to an executor; None where it was given too often and is set aside."""

        def act(conn: sa.Connection) -> WorkItem | None:
            row = conn.execute(sa.select(queue).where(queue.c.id == item_id)).one()
            change = sa.update(queue).where(queue.c.id == item_id)
            if row.attempts > most:
                conn.execute(change.values(status="MAX_RECOVERY_ATTEMPTS_EXCEEDED"))
                return None
            given = {"executor_id": executor_id, "version": version, "attempts": row.attempts + 1}
            conn.execute(change.values(status="PENDING", **given))
            return WorkItem.from_json(row.body)

        return self._db.write_now(act)

    def item(self, item_id: str) -> WorkItem:
        query = sa.select(queue.c.body).where(queue.c.id == item_id)
        return WorkItem.from_json(self._db.read_now(lambda conn: conn.execute(query).scalar_one()))

    def ends(self, item_id: str, status: str) -> None:
        """An execution is over; who is set aside or cancelled already stays so."""
        change = sa.update(queue).where(queue.c.id == item_id, queue.c.status.in_(WAITING)).values(status=status)
        self._db.write_now(lambda conn: conn.execute(change))

    # -- what the product calls ------------------------------------------------------------------

    def list_workflows(self, *, workflow_ids: Sequence[str], **_: Any) -> list[Found]:
        query = sa.select(queue).where(queue.c.id.in_(workflow_ids))
        rows = self._db.read_now(lambda conn: conn.execute(query).all())
        return [Found(row.id, row.status, row.executor_id, row.version, row.queue) for row in rows]

    def cancel_workflow(self, workflow_id: str) -> None:
        self.ends(workflow_id, "CANCELLED")

    def delete_workflows(self, workflow_ids: Sequence[str]) -> None:
        gone = sa.delete(queue).where(queue.c.id.in_(workflow_ids))
        self._db.write_now(lambda conn: conn.execute(gone))
        for name in workflow_ids:
            self.steps.pop(name, None)
