"""Turns as spans and counts."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from sqlalchemy.exc import SQLAlchemyError

from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.storage.tables import sessions, turns
from shellback.telemetry.telemetry import Telemetry
from shellback.work.queue.items import BY_A_PERSON, ItemType, WorkItem
from shellback.work.queue.tracing import cause_of
from shellback.work.turn.watching import TurnWatch

log = logging.getLogger(__name__)


class WatchedTurns(TurnWatch):
    """Adds to the span that DBOS makes of a turn: the wait before it, what it is about, and the counts."""

    def __init__(self, telemetry: Telemetry, database: Database) -> None:
        self._telemetry = telemetry
        self._counts = telemetry.counts
        self._db = database

    async def began(self, item: WorkItem, over: str | None = None) -> None:
        span = trace.get_current_span()
        span.set_attributes(_subject(item))
        if over is not None:
            span.set_attribute("shellback.outcome", over)
        try:
            turn, cause, process_ended_at = await self._db.read(_recorded, item)
        except (StorageError, SQLAlchemyError) as error:
            log.debug("the wait of a work item is not traced: %s", error)
            return
        if turn.executions > 1:
            self._counts.retries.add(1, {"reason": "recovered"})
            return
        if over is None:
            self._count(item, turn.started_at, process_ended_at)
        if turn.traceparent is not None:
            self._telemetry.past(
                "shellback.queue",
                turn.traceparent,
                (turn.created_at, turn.started_at),
                cause=cause,
                kind=SpanKind.CONSUMER,
                attributes={**_subject(item), "shellback.priority": int(item.priority)},
            )

    def _count(self, item: WorkItem, began_at: float, process_ended_at: float | None) -> None:
        if item.type not in BY_A_PERSON:
            self._counts.wakes.add(1, {"item_type": item.type.value})
        if process_ended_at is not None:
            self._counts.wake_latency.record(max(0.0, began_at - process_ended_at))

    def ended(self, item: WorkItem, outcome: str, seconds: float) -> None:
        trace.get_current_span().set_attribute("shellback.outcome", outcome)
        self._counts.turn_duration.record(seconds, {"item_type": item.type.value, "outcome": outcome})

    def failed(self, came: str) -> None:
        self._counts.retries.add(1, {"reason": came})


def _subject(item: WorkItem) -> dict[str, str]:
    return {
        "shellback.conversation": item.conversation_id,
        "shellback.work_item": item.id,
        "shellback.item_type": item.type.value,
    }


def _recorded(conn: sa.Connection, item: WorkItem) -> tuple[sa.Row[Any], str | None, float | None]:
    turn = conn.execute(sa.select(turns).where(turns.c.id == item.id)).one()
    process_ended_at = None
    if item.type is ItemType.EXEC_CALLBACK:
        query = sa.select(sessions.c.ended_at).where(sessions.c.id == item.id.partition(":")[2])
        process_ended_at = conn.execute(query).scalar_one_or_none()
    return turn, cause_of(conn, item), process_ended_at
