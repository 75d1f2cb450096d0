"""The claim of a conversation: one turn at a time, entered by a work item, released by its closing.

Every function is a part of the caller's transaction and locks the conversation's row before it looks at
anything else, as those of the mailbox do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from app.exec.supervisor.crashpoints import reach
from app.storage.tables import approvals, conversations, mailbox, turns
from app.work import stream
from app.work.approvals import asked_last
from app.work.items import BY_A_PERSON, ItemType, Priority, WorkItem, epoch_item
from app.work.mailbox import lock, undecided
from app.work.notices import SILENT, Outbox
from app.work.queues import Enqueuer
from app.work.stopping import NEXT

WORN_OUT: Final = "woken too often without a person; the news is kept until somebody writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakes:
    """How often a conversation may be woken without a person (design section 2)."""

    per_hour: int = 30
    chain: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What came of an item's attempt to claim its conversation.

    `epoch` is set when the turn may run. Otherwise `outcome` says why it ends at once.
    """

    epoch: int | None = None
    outcome: str | None = None


def enter(conn: sa.Connection, item: WorkItem, *, executor_id: str, wakes: Wakes, outbox: Outbox = SILENT) -> Entry:
    """Claim the conversation for the turn of `item` and raise its epoch.

    The first act of every execution, outside any recorded step: an execution that a newer one has
    overtaken carries an old epoch, and nothing it does afterwards counts.
    """
    conversation = lock(conn, item.conversation_id)
    turn = conn.execute(sa.select(turns).where(turns.c.id == item.id)).one_or_none()
    if turn is not None and turn.outcome is not None:
        return Entry(outcome=turn.outcome)
    if conversation is None:
        return _end_at_once(conn, item, "gone")
    held = conversation.state == "claimed" and conversation.claimed_by != item.id
    if held or not _admitted(conn, conversation, item):
        return _end_at_once(conn, item, "busy")
    chain = conversation.chain
    if turn is None or turn.executions == 0:
        unread = _unread_kinds(conn, item.conversation_id)
        if not unread and item.type not in BY_A_PERSON:
            return _end_at_once(conn, item, "nothing")
        chain = 0 if "message" in unread or _person_behind(conn, item) else chain + 1
        if chain and _worn_out(conn, item.conversation_id, chain, wakes):
            _let_go(conn, item.conversation_id, blocked="wake_limit")
            told = {"reason": "wake_limit", "text": WORN_OUT}
            stream.note(conn, item.conversation_id, item.id, 0, "blocked", told)
            key = f"{item.conversation_id}:{conversation.epoch}"
            outbox.put(conn, "alarm", item.conversation_id, key, f"{item.conversation_id} was {WORN_OUT}")
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
            stop_turn=item.id if conversation.stop_turn in {NEXT, item.id} else None,
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


def _unread_kinds(conn: sa.Connection, conversation_id: str) -> set[str]:
    query = (
        sa.select(mailbox.c.kind)
        .where(mailbox.c.conversation_id == conversation_id, mailbox.c.state == "unread")
        .distinct()
    )
    return set(conn.execute(query).scalars())


def _person_behind(conn: sa.Connection, item: WorkItem) -> bool:
    """Whether a person caused the item: a clock that let requests expire is none."""
    if item.type is not ItemType.APPROVAL:
        return item.type in BY_A_PERSON
    query = sa.select(approvals.c.id).where(
        approvals.c.turn_id == asked_last(item.conversation_id), approvals.c.state != "expired"
    )
    return conn.execute(query.limit(1)).first() is not None


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


def _let_go(conn: sa.Connection, conversation_id: str, *, blocked: str | None) -> None:
    conn.execute(
        sa.update(conversations)
        .where(conversations.c.id == conversation_id)
        .values(
            state="blocked" if blocked else "free",
            blocked_reason=blocked,
            claimed_by=None,
            claimed_at=None,
            stop_turn=None,
            stop_by=None,
        )
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
    _let_go(conn, conversation.id, blocked=blocked)
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
    waits = mailbox.c.payload["waiting"].as_boolean()
    unread = conn.execute(
        sa.select(mailbox.c.priority, waits.label("waits"))
        .where(mailbox.c.conversation_id == conversation.id, mailbox.c.state == "unread")
        .distinct()
    ).all()
    if not unread:
        return False
    item = epoch_item(
        kind,
        conversation.id,
        conversation.epoch,
        priority=Priority(min(row.priority for row in unread)),
        waiting=any(row.waits for row in unread),
        suffix=suffix,
    )
    enqueuer.put(conn, item, host_id=conversation.host_id)
    return True
