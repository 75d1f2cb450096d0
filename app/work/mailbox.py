"""What a conversation has to hear: rows that are put, taken by a turn, and heard when it closes.

Every function is a part of the caller's transaction and locks the conversation's row before it
looks at anything else: without that a row put between a turn's last look and its release is
never read on Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from app.storage.errors import StaleTurn
from app.storage.rows import insert_new
from app.storage.tables import approvals, conversations, mailbox
from app.work.items import WorkItem
from app.work.queues import Enqueuer

ROWS_PER_TURN: Final = 100
"""Rows one look takes; the rest waits for the next look or the follow-up."""

Kind = Literal["message", "exit", "turn_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One mailbox row as a turn hears it."""

    id: int
    kind: str
    payload: dict[str, Any] = field(default_factory=dict[str, Any])


def lock(conn: sa.Connection, conversation_id: str) -> sa.Row[Any] | None:
    """The conversation's row, held against every other put, enter and release until commit."""
    query = sa.select(conversations).where(conversations.c.id == conversation_id)
    return conn.execute(query.with_for_update()).one_or_none()


def open_conversation(conn: sa.Connection, conversation_id: str, *, host_id: str) -> sa.Row[Any]:
    """The locked row of a conversation, made for this host if there is none yet."""
    insert_new(conn, conversations, {"id": conversation_id, "host_id": host_id, "created_at": time.time()})
    row = lock(conn, conversation_id)
    assert row is not None
    return row


def put(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    item: WorkItem,
    *,
    kind: Kind,
    payload: dict[str, Any],
    dedupe_key: str | None = None,
) -> None:
    """Add a row and the item that will make somebody read it; `conversation` is the locked row.

    A `dedupe_key` that was used before leaves everything as it is.
    """
    added = add_row(
        conn,
        conversation.id,
        kind=kind,
        priority=int(item.priority),
        payload={**payload, "waiting": item.waiting},
        dedupe_key=dedupe_key,
    )
    if added:
        enqueuer.put(conn, item, host_id=conversation.host_id)


def add_row(
    conn: sa.Connection,
    conversation_id: str,
    *,
    kind: Kind,
    priority: int,
    payload: dict[str, Any],
    dedupe_key: str | None = None,
) -> bool:
    """Add an unread row; False when its key was used before. The caller holds the conversation's row."""
    return insert_new(
        conn,
        mailbox,
        {
            "conversation_id": conversation_id,
            "kind": kind,
            "priority": priority,
            "dedupe_key": dedupe_key,
            "payload": payload,
            "created_at": time.time(),
        },
    )


def undecided(conn: sa.Connection, conversation_id: str) -> int:
    """How many calls of the conversation wait for a decision."""
    query = sa.select(sa.func.count()).where(
        approvals.c.conversation_id == conversation_id, approvals.c.state == "pending"
    )
    return conn.execute(query).scalar_one()


def held(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int) -> sa.Row[Any]:
    """The locked conversation, if this execution of this turn still holds it.

    Raises:
        StaleTurn: A newer execution or the sweep has taken it.
    """
    row = lock(conn, conversation_id)
    if row is None or row.state != "claimed" or row.claimed_by != turn_id or row.epoch != epoch:
        raise StaleTurn(conversation_id, turn_id, epoch)
    return row


def take(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int, step: int) -> list[Letter]:
    """Take what is unread for step `step` of a turn; repeating the step gives the same rows again.

    Raises:
        StaleTurn: This execution no longer holds the conversation.
    """
    held(conn, conversation_id, turn_id, epoch)
    mine = sa.and_(mailbox.c.state == "taken", mailbox.c.taken_by == turn_id, mailbox.c.taken_step == step)
    query = (
        sa.select(mailbox)
        .where(mailbox.c.conversation_id == conversation_id, sa.or_(mailbox.c.state == "unread", mine))
        .order_by(mailbox.c.id)
        .limit(ROWS_PER_TURN)
    )
    rows = conn.execute(query).all()
    if rows:
        conn.execute(
            sa.update(mailbox)
            .where(mailbox.c.id.in_([row.id for row in rows]))
            .values(state="taken", taken_by=turn_id, taken_step=step)
        )
    return [Letter(id=row.id, kind=row.kind, payload=row.payload) for row in rows]


def hear(
    conn: sa.Connection, conversation_id: str, turn_id: str, heard: Collection[int], told: Collection[str]
) -> None:
    """Settle the rows `heard`, and unread exits of sessions that the agent was `told` of; the rest is unread again.

    What the turn has taken but its history does not have was taken by an execution that came no further.
    """
    settled = {"state": "heard", "heard_at": time.time()}
    if heard:
        conn.execute(sa.update(mailbox).where(mailbox.c.taken_by == turn_id, mailbox.c.id.in_(heard)).values(settled))
    give_back(conn, turn_id)
    if told:
        conn.execute(
            sa.update(mailbox)
            .where(
                mailbox.c.conversation_id == conversation_id,
                mailbox.c.state == "unread",
                mailbox.c.dedupe_key.in_([f"exit:{session_id}" for session_id in told]),
            )
            .values(settled)
        )


def give_back(conn: sa.Connection, turn_id: str) -> None:
    """Make what a turn has taken and not settled unread again."""
    conn.execute(
        sa.update(mailbox)
        .where(mailbox.c.taken_by == turn_id, mailbox.c.state == "taken")
        .values(state="unread", taken_by=None, taken_step=None)
    )
