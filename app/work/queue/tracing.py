"""The trace of a work item, as W3C trace context, computed without a tracer.

A span that is made from records has an id derived from its subject, so repeats make the same span, and children know
their parent's id before it exists. A trace therefore spans queues, processes and restarts of workers::

    message ── its wait in the queue ── turn ── ... ── tool call ── process ── wait of its EXEC_CALLBACK ── turn
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from shellback.storage.tables import sessions, turns, watches
from shellback.work.queue.items import ItemType, WorkItem


def process_context(session_id: str, started_in: str) -> str:
    """The `traceparent` of a session's process; `started_in` is the one of the call that started it."""
    return _traceparent(_trace_of(started_in), "process", session_id)


def context_of(conn: sa.Connection, item: WorkItem) -> str:
    """The `traceparent` of an item's wait, the parent of its turn; a message begins a new trace."""
    cause = cause_of(conn, item)
    trace = _trace_of(cause) if cause else _derived("trace", item.id)[:32]
    return _traceparent(trace, "queue", item.id)


def cause_of(conn: sa.Connection, item: WorkItem) -> str | None:
    """The `traceparent` of the cause of `item`: a process, or the item of the turn before; None for a message."""
    match item.type:
        case ItemType.CHAT:
            return None
        case ItemType.EXEC_CALLBACK | ItemType.CONNECT:
            session_id = item.payload.get("session_id")
            started_in = conn.execute(
                sa.select(sessions.c.traceparent).where(sessions.c.id == session_id)
            ).scalar_one_or_none()
            return process_context(session_id, started_in) if session_id and started_in else None
        case ItemType.EXEC_WATCH:
            placed = (
                sa.select(turns.c.traceparent)
                .join(watches, watches.c.turn_id == turns.c.id)
                .where(watches.c.id == item.id.split(":")[1])
            )
            return conn.execute(placed).scalar_one_or_none()
        case _:
            epoch = item.id.removeprefix(f"{item.type.value}:{item.conversation_id}:").partition(":")[0]
            query = sa.select(turns.c.traceparent).where(
                turns.c.conversation_id == item.conversation_id, turns.c.epoch == int(epoch)
            )
            return conn.execute(query.limit(1)).scalar_one_or_none()


def _traceparent(trace: str, purpose: str, key: str) -> str:
    return f"00-{trace}-{_derived(purpose, key)[:16]}-01"


def _trace_of(traceparent: str) -> str:
    return traceparent.split("-")[1]


def _derived(purpose: str, key: str) -> str:
    return hashlib.sha256(f"{purpose} {key}".encode()).hexdigest()
