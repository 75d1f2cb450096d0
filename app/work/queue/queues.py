"""Puts items on DBOS queues; nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypedDict

import sqlalchemy as sa

from shellback.storage.db import after_commit
from shellback.storage.rows import insert_new
from shellback.storage.tables import turns
from shellback.work.queue.items import Priority, WorkItem
from shellback.work.queue.tracing import context_of

if TYPE_CHECKING:
    from dbos import DBOSClient
    from opentelemetry.context import Context

APPLICATION: Final = "shellback"
WORKFLOW: Final = "shellback.turn"
EVERYWHERE: Final = "*"
"""Instead of a host's id: that of workers which run turns of many hosts."""
CHANNEL: Final = "shellback_items"
"""The channel of Postgres on which a notification names the queue of a new item."""
LOOK_S: Final = 5.0
"""The time between two looks for items whose ring was lost."""
POLL_S: Final = 120.0
"""The time between two polls of a queue that does not ring."""


def turns_queue(host_id: str) -> str:
    """The queue for items that can wait."""
    return f"turns.{host_id}"


def wakes_queue(host_id: str) -> str:
    """The queue for urgent items: HIGH and above, and NORMAL if a person waits."""
    return f"wakes.{host_id}"


def queues_of(host_id: str) -> list[str]:
    """Names of both queues of a host."""
    return [turns_queue(host_id), wakes_queue(host_id)]


def queue_for(item: WorkItem, host_id: str) -> str:
    """The queue of an item. It belongs to the conversation's host, where workspaces and processes are."""
    urgent = item.priority <= Priority.HIGH or (item.waiting and item.priority <= Priority.NORMAL)
    return wakes_queue(host_id) if urgent else turns_queue(host_id)


def decisions_queue(host_id: str) -> str:
    """The name under which MCP servers of a host hear of decisions. Nothing is ever enqueued on it."""
    return f"decisions.{host_id}"


TOKENS: Final = "tokens"
"""The name under which servers of all hosts hear that a token was revoked. Nothing is ever enqueued on it."""


class Enqueuer(Protocol):
    """Puts items on queues in the caller's transaction."""

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        """Enqueue `item` when `conn` commits; an id that was used before changes nothing."""
        ...

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        """Tell the MCP servers of a host, when `conn` commits, that a person has decided."""
        ...


class _Carried(TypedDict, total=False):
    otel_context: Context


class DbosEnqueuer:
    """Enqueues without a version: an item with one would never run after an upgrade.

    It calls `ring(host id, queue)` after the commit.
    """

    def __init__(self, client: DBOSClient, ring: Callable[[str, str], None], *, traced: bool = False) -> None:
        self._client = client
        self._ring = ring
        self._traced = traced

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        """Enqueue `item` and its row in `turns` when `conn` commits."""
        from dbos import WorkflowSerializationFormat

        context = context_of(conn, item) if self._traced else None
        note_turn(conn, item, context)
        queue = queue_for(item, host_id)
        after_commit(conn, self._ring, host_id, queue)
        self._client.enqueue_in_transaction(
            conn,
            {
                "workflow_name": WORKFLOW,
                "queue_name": queue,
                "workflow_id": item.id,
                "priority": int(item.priority),
                "application_name": APPLICATION,
                "serialization_type": WorkflowSerializationFormat.PORTABLE,
                **_carrying(context),
            },
            item.to_json(),
        )

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        """See `Enqueuer.decided`."""
        after_commit(conn, self._ring, host_id, decisions_queue(host_id))


def _carrying(context: str | None) -> _Carried:
    if context is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return {"otel_context": TraceContextTextMapPropagator().extract({"traceparent": context})}


def note_turn(conn: sa.Connection, item: WorkItem, context: str | None = None) -> None:
    """Write the row of an item's turn, unless it exists."""
    insert_new(
        conn,
        turns,
        {
            "id": item.id,
            "conversation_id": item.conversation_id,
            "item_type": item.type.value,
            "priority": int(item.priority),
            "traceparent": context,
        },
    )
