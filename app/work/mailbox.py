"""What a conversation has to hear, and the claim that makes one turn at a time read it.

Every function is a part of the caller's transaction and locks the conversation's row before it
looks at anything else: without that a row put between a turn's last look and its release is
never read on Postgres.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from app.exec.supervisor.crashpoints import reach
from app.storage.errors import StaleTurn
from app.storage.rows import insert_new
from app.storage.tables import approvals, conversations, mailbox, turns
from app.work import stream
from app.work.items import BY_A_PERSON, ItemType, Priority, WorkItem, epoch_item
from app.work.queues import Enqueuer

ROWS_PER_TURN: Final = 100
"""Rows one look takes; the rest waits for the next look or the follow-up."""

Kind = Literal["message", "exit", "turn_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakes:
    """How often a conversation may be woken without a person (design section 2)."""

    per_hour: int = 30
    chain: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One mailbox row as a turn hears it."""

    id: int
    kind: str
    priority: int
    payload: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What came of an item's attempt to claim its conversation.

    `epoch` is set when the turn may run. Otherwise `outcome` says why it ends at once.
    """

    epoch: int | None = None
    outcome: str | None = None


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


def enter(conn: sa.Connection, item: WorkItem, *, executor_id: str, wakes: Wakes) -> Entry:
    """Claim the conversation for the turn of `item` and raise its epoch.

    The first act of every execution, outside any recorded step: an execution that a newer one has
    overtaken carries an old epoch, and nothing it does afterwards counts.
    """
    turn = conn.execute(sa.select(turns).where(turns.c.id == item.id)).one_or_none()
    if turn is not None and turn.outcome is not None:
        return Entry(outcome=turn.outcome)
    conversation = lock(conn, item.conversation_id)
    if conversation is None:
        return _end_at_once(conn, item, "gone")
    held = conversation.state == "claimed" and conversation.claimed_by != item.id
    if held or not _admitted(conn, conversation, item):
        return _end_at_once(conn, item, "busy")
    first = turn is None or turn.executions == 0
    by_person = item.type in BY_A_PERSON
    chain = 0 if by_person else conversation.chain + (1 if first else 0)
    if first and not by_person and _worn_out(conn, item.conversation_id, chain, wakes):
        _block(conn, item.conversation_id, "wake_limit")
        stream.note(
            conn,
            item.conversation_id,
            item.id,
            0,
            "blocked",
            {
                "reason": "wake_limit",
                "text": "woken too often without a person; the news is kept until somebody writes",
            },
        )
        return _end_at_once(conn, item, "busy")
    epoch = conversation.epoch + 1
    now = time.time()
    conn.execute(
        sa.update(conversations)
        .where(conversations.c.id == item.conversation_id)
        .values(
            state="claimed",
            blocked_reason=None,
            claimed_by=item.id,
            claimed_at=now,
            epoch=epoch,
            chain=chain,
            failures=0 if item.type is ItemType.CHAT else conversations.c.failures,
        )
    )
    conn.execute(
        sa.update(turns)
        .where(turns.c.id == item.id)
        .values(
            executor_id=executor_id,
            epoch=epoch,
            executions=turns.c.executions + 1,
            started_at=sa.func.coalesce(turns.c.started_at, now),
        )
    )
    return Entry(epoch=epoch)


def _end_at_once(conn: sa.Connection, item: WorkItem, outcome: str) -> Entry:
    now = time.time()
    conn.execute(sa.update(turns).where(turns.c.id == item.id).values(outcome=outcome, started_at=now, ended_at=now))
    return Entry(outcome=outcome)


def _admitted(conn: sa.Connection, conversation: sa.Row[Any], item: WorkItem) -> bool:
    if conversation.state != "blocked":
        return True
    if conversation.blocked_reason == "approval":
        return item.type is ItemType.APPROVAL and not undecided(conn, item.conversation_id)
    return item.type in BY_A_PERSON


def undecided(conn: sa.Connection, conversation_id: str) -> int:
    """How many calls of the conversation wait for a decision."""
    query = sa.select(sa.func.count()).where(
        approvals.c.conversation_id == conversation_id, approvals.c.state == "pending"
    )
    return conn.execute(query).scalar_one()


def _worn_out(conn: sa.Connection, conversation_id: str, chain: int, wakes: Wakes) -> bool:
    if chain > wakes.chain:
        return True
    query = sa.select(sa.func.count()).where(
        turns.c.conversation_id == conversation_id,
        turns.c.item_type.not_in([kind.value for kind in BY_A_PERSON]),
        turns.c.started_at > time.time() - 3600,
        sa.or_(turns.c.outcome.is_(None), turns.c.outcome.not_in(["busy", "nothing", "gone"])),
    )
    return conn.execute(query).scalar_one() >= wakes.per_hour


def _block(conn: sa.Connection, conversation_id: str, reason: str) -> None:
    conn.execute(
        sa.update(conversations)
        .where(conversations.c.id == conversation_id)
        .values(state="blocked", blocked_reason=reason, claimed_by=None, claimed_at=None)
    )


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
    return [Letter(id=row.id, kind=row.kind, priority=row.priority, payload=row.payload) for row in rows]


def hear(conn: sa.Connection, conversation_id: str, turn_id: str, told: frozenset[str]) -> None:
    """Settle what the turn took, and the unread exits of sessions that the agent has been told about."""
    settled = {"state": "heard", "heard_at": time.time()}
    conn.execute(sa.update(mailbox).where(mailbox.c.taken_by == turn_id, mailbox.c.state == "taken").values(settled))
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
    """Make what a failed turn took unread again."""
    conn.execute(
        sa.update(mailbox)
        .where(mailbox.c.taken_by == turn_id, mailbox.c.state == "taken")
        .values(state="unread", taken_by=None, taken_step=None)
    )


def release(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    *,
    blocked: str | None = None,
    follow: ItemType = ItemType.FOLLOW_UP,
) -> None:
    """Let go of a claimed conversation; unread rows get one item, unless it becomes blocked."""
    reach("turn.closing")
    conn.execute(
        sa.update(conversations)
        .where(conversations.c.id == conversation.id)
        .values(
            state="blocked" if blocked else "free",
            blocked_reason=blocked,
            claimed_by=None,
            claimed_at=None,
        )
    )
    if not blocked:
        follow_up(conn, enqueuer, conversation, kind=follow)


def follow_up(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    *,
    kind: ItemType = ItemType.FOLLOW_UP,
    suffix: str = "",
) -> bool:
    """Enqueue one item for the unread rows of `conversation`, as urgent as the most urgent of them."""
    unread = conn.execute(
        sa.select(mailbox.c.priority, mailbox.c.payload).where(
            mailbox.c.conversation_id == conversation.id, mailbox.c.state == "unread"
        )
    ).all()
    if not unread:
        return False
    item = epoch_item(
        kind,
        conversation.id,
        conversation.epoch,
        priority=Priority(min(row.priority for row in unread)),
        waiting=any(row.payload.get("waiting") for row in unread),
        suffix=suffix,
    )
    enqueuer.put(conn, item, host_id=conversation.host_id)
    return True
