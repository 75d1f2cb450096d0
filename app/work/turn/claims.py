"""The claim of a conversation: one turn at a time holds it, until the turn closes or dies.

Every function runs in the caller's transaction and locks the conversation's row first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.model import Delivery
from shellback.exec.wire.crashpoints import reach
from shellback.storage.rows import CLOCK, change, change_some, count, exists
from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns, workers
from shellback.work.approvals.approvals import asked_last
from shellback.work.errors import WorkError
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import mailbox as box
from shellback.work.queue import stream
from shellback.work.queue.items import BY_A_PERSON, IDLE_OUTCOMES, MOVED, ItemType, Priority, WorkItem, epoch_item
from shellback.work.queue.mailbox import lock, undecided
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import stopping
from shellback.work.turn.stopping import NEXT

STRIKES: Final = 3
"""Failed turns in a row after which a conversation is set aside."""
RECOVERIES: Final = 5
"""Executions of one turn. A turn that has not closed by then is a poison item."""
POISON: Final = f"it was begun {RECOVERIES} times and each time its worker died or was stopped"
WORN_OUT: Final = "woken too often without a message from a person; its news is kept until a person writes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wakes:
    """How often a conversation may be woken without a person (design section 2)."""

    per_hour: int = 30
    chain: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The result of claiming a conversation for an item.

    `epoch` is set when the turn may run. Otherwise `outcome` says why it ends at once; `alarm` is a text for a person.
    With `first` no earlier execution has come this far, so none has recorded a step. `kept` is what an earlier one has
    begun with; `wish` says who asked to stop the turn. `host_id` is the host of the conversation, `now` the
    time by the clock of the database.
    """

    epoch: int | None = None
    first: bool = False
    kept: dict[str, Any] | None = None
    wish: str | None = None
    workspace: box.Workspace = field(default_factory=box.Workspace)
    host_id: str = ""
    now: float = 0.0
    outcome: str | None = None
    alarm: str | None = None


_HOLDER: Final = sa.select(workers.c.token).where(workers.c.executor_id == sa.bindparam("executor"))
_TURN: Final = sa.select(turns, _HOLDER.scalar_subquery().label("holder")).where(turns.c.id == sa.bindparam("id"))
"""The turn, and the token of the worker that holds the name of the one that asks."""


class NameLost(WorkError):
    """Raised when another worker holds the name of this one. Nothing was changed."""


def enter(  # noqa: PLR0911 - one for each reason not to
    conn: sa.Connection,
    item: WorkItem,
    *,
    executor_id: str,
    wakes: Wakes,
    outbox: Outbox = SILENT,
    hosts: Container[str] | None = None,
    token: str = "",
) -> Entry:
    """Claim the conversation for the turn of `item` and raise its epoch, if it lives on one of these `hosts`.

    Every execution does this first, outside of any recorded step. A replay therefore gets a new epoch, and the older
    execution can no longer write. As nothing else gives an epoch, a worker that lost its name can begin nothing here.

    Raises:
        NameLost: Another `token` than ours holds the name `executor_id`.
    """
    conversation = lock(conn, item.conversation_id)
    turn = _turn(conn, item.id, executor_id, token)
    if turn is not None and turn.outcome is not None:
        return Entry(outcome=turn.outcome)
    if conversation is None or conversation.driver != box.AGENT:
        return _end_at_once(conn, item, "gone")
    if hosts is not None and conversation.host_id not in hosts:
        return _end_at_once(conn, item, MOVED)
    ours = conversation.state == "claimed" and conversation.claimed_by == item.id
    if ours and turn is not None and turn.executions >= RECOVERIES:
        _died(conn, conversation, POISON)
        return Entry(outcome="failed", alarm=set_aside(conn, conversation, f"A turn failed: {POISON}", POISON, outbox))
    held = conversation.state == "claimed" and not ours
    if held or not _admitted(conn, conversation, item):
        return _end_at_once(conn, item, "busy")
    chain = conversation.chain
    if turn is None or turn.executions == 0:
        unread = _unread_kinds(conn, item.conversation_id)
        if not unread and item.type not in BY_A_PERSON:
            return _end_at_once(conn, item, "nothing")
        chain = 0 if "message" in unread or _person_behind(conn, item) else chain + 1
        if chain and _worn_out(conn, conversation, chain, wakes):
            _let_go(conn, item.conversation_id, blocked="wake_limit")
            told = {"reason": "wake_limit", "text": WORN_OUT}
            stream.note(conn, item.conversation_id, item.id, 0, "blocked", told)
            key = f"{item.conversation_id}:{conversation.epoch}"
            outbox.put(conn, "alarm", item.conversation_id, key, f"{item.conversation_id} was {WORN_OUT}")
            return _end_at_once(conn, item, "busy")
    epoch, now = conversation.epoch + 1, conversation.now
    stops = conversation.stop_turn in {NEXT, item.id}
    change(
        conn,
        conversations,
        item.conversation_id,
        state="claimed",
        blocked_reason=None,
        claimed_by=item.id,
        claimed_at=now,
        epoch=epoch,
        chain=chain,
        failures=0 if item.type is ItemType.CHAT else conversation.failures,
        stop_turn=item.id if stops else None,
    )
    if turn is not None:
        again = {"executions": turn.executions + 1, "started_at": turn.started_at or now}
        change(conn, turns, item.id, executor_id=executor_id, epoch=epoch, **again)
    return Entry(
        epoch=epoch,
        first=turn is not None and turn.executions == 0,
        kept=None if turn is None else turn.begun,
        wish=conversation.stop_by if stops else None,
        workspace=box.bound_to(conversation),
        host_id=conversation.host_id,
        now=now,
    )


def _turn(conn: sa.Connection, turn_id: str, executor_id: str, token: str) -> sa.Row[Any] | None:
    found = conn.execute(_TURN, {"id": turn_id, "executor": executor_id}).one_or_none()
    if token and found is not None and found.holder not in {token, None}:
        raise NameLost(f"another process holds the name of worker {executor_id}, which was paused or cut off")
    return found


def _end_at_once(conn: sa.Connection, item: WorkItem, outcome: str) -> Entry:
    change(conn, turns, item.id, outcome=outcome, started_at=CLOCK, ended_at=CLOCK)
    return Entry(outcome=outcome)


def _admitted(conn: sa.Connection, conversation: sa.Row[Any], item: WorkItem) -> bool:
    if conversation.state != "blocked":
        return True
    if conversation.blocked_reason == "approval":
        return item.type is ItemType.APPROVAL and not undecided(conn, item.conversation_id)
    return item.type in BY_A_PERSON


def _unread_kinds(conn: sa.Connection, conversation_id: str) -> set[str]:
    return set(conn.execute(_UNREAD_KINDS, {"conversation": conversation_id}).scalars())


_THEIRS: Final = (mailbox.c.conversation_id == sa.bindparam("conversation"), box.waking())
_UNREAD_KINDS: Final = sa.select(mailbox.c.kind).where(*_THEIRS).distinct()
_UNREAD_PRIORITIES: Final = (
    sa.select(mailbox.c.priority, mailbox.c.payload["waiting"].as_boolean().label("waits")).where(*_THEIRS).distinct()
)


def _person_behind(conn: sa.Connection, item: WorkItem) -> bool:
    """Whether a person caused the item. Requests that expired do not count."""
    if item.type is not ItemType.APPROVAL:
        return item.type in BY_A_PERSON
    query = sa.select(approvals.c.id).where(
        approvals.c.turn_id == asked_last(item.conversation_id), approvals.c.state != "expired"
    )
    return exists(conn, query)


def _worn_out(conn: sa.Connection, conversation: sa.Row[Any], chain: int, wakes: Wakes) -> bool:
    if chain > wakes.chain:
        return True
    woken = (
        turns.c.conversation_id == conversation.id,
        turns.c.item_type.not_in([kind.value for kind in BY_A_PERSON]),
        # A time further ahead was written before the clock was set back.
        turns.c.started_at.between(conversation.now - 3600, conversation.now + 3600),
        sa.or_(turns.c.outcome.is_(None), turns.c.outcome.not_in(IDLE_OUTCOMES)),
    )
    return count(conn, turns, *woken) >= wakes.per_hour


def _let_go(conn: sa.Connection, conversation_id: str, *, blocked: str | None) -> None:
    free = dict.fromkeys(("claimed_by", "claimed_at", "stop_turn", "stop_by"))
    change(conn, conversations, conversation_id, state="blocked" if blocked else "free", blocked_reason=blocked, **free)


def release(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    *,
    blocked: str | None = None,
    follow: ItemType = ItemType.FOLLOW_UP,
) -> None:
    """Release a claimed conversation. Its unread rows get one item, unless it becomes blocked."""
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
    unread = conn.execute(_UNREAD_PRIORITIES, {"conversation": conversation.id}).all()
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


def fail(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    *,
    reason: str,
    outbox: Outbox = SILENT,
    poison: bool = False,
) -> str:
    """Free a conversation whose turn died. Its rows become unread again, and a new item retries.

    After `STRIKES` failures in a row, or with `poison`, the conversation is set aside instead. `conversation` is the
    locked row, still claimed by the dead turn. Returns `retried`, `set_aside`, or `released` if the turn had closed.
    """
    turn_id, failures = conversation.claimed_by, conversation.failures + 1
    if not _died(conn, conversation, reason):
        release(conn, enqueuer, conversation)
        return "released"
    if poison or failures >= STRIKES:
        what = f"A turn failed: {reason}" if poison else f"{failures} turns in a row failed ({reason})"
        set_aside(conn, conversation, what, reason, outbox)
        return "set_aside"
    text = f"A turn failed ({reason}); it is tried again."
    stream.note(conn, conversation.id, turn_id, conversation.epoch, "failed", {"text": text})
    _tell_the_next(conn, conversation, reason)
    release(conn, enqueuer, conversation, follow=ItemType.RETRY)
    stopping.pass_on(conn, enqueuer, conversation)
    return "retried"


def set_aside(conn: sa.Connection, conversation: sa.Row[Any], what: str, reason: str, outbox: Outbox) -> str:
    """Block the conversation of a dead turn until a person writes; its news is kept. Returns the text of the alarm."""
    text = f"{what}; this conversation is set aside. Nothing is lost: write to try again."
    stream.note(conn, conversation.id, conversation.claimed_by, conversation.epoch, "alarm", {"text": text})
    outbox.put(conn, "set_aside", conversation.id, f"{conversation.id}:{conversation.epoch}", text)
    _tell_the_next(conn, conversation, reason)
    _let_go(conn, conversation.id, blocked="set_aside")
    return text


def _died(conn: sa.Connection, conversation: sa.Row[Any], reason: str) -> bool:
    """End the turn that holds the conversation as failed; False if it had closed."""
    turn_id = conversation.claimed_by
    box.give_back(conn, conversation.id, turn_id, apart=stopping.wish_of(conversation, turn_id) is not None)
    if not ended(conn, turn_id, outcome="failed", error=reason):
        return False
    # No call waits for these sessions any more. The next sweep hands over ends that are already recorded.
    waiting = (sessions.c.delivery == Delivery.INLINE.value, sessions.c.end.is_(sa.null()))
    change_some(conn, sessions, sessions.c.turn_id == turn_id, *waiting, delivery=Delivery.CALLBACK.value)
    change(conn, conversations, conversation.id, failures=conversations.c.failures + 1)
    return True


def ended(conn: sa.Connection, turn_id: str, *which: sa.ColumnElement[bool], outcome: str, error: str | None) -> int:
    """End a turn that is open and matches `which`; returns 1, or 0 if there is none."""
    still = (turns.c.id == turn_id, turns.c.outcome.is_(None), *which)
    return change_some(conn, turns, *still, outcome=outcome, error=error, ended_at=CLOCK)


def _tell_the_next(conn: sa.Connection, conversation: sa.Row[Any], reason: str) -> None:
    box.add_row(
        conn,
        conversation.id,
        kind="turn_failed",
        priority=100,
        payload={"reason": reason, "started": _started_by(conn, conversation.claimed_by)},
        dedupe_key=f"turn_failed:{conversation.id}:{conversation.epoch}",
    )


def _started_by(conn: sa.Connection, turn_id: str) -> list[dict[str, Any]]:
    query = sa.select(sessions).where(sessions.c.turn_id == turn_id).order_by(sessions.c.created_at).limit(50)
    return [{"session_id": row.id, "state": row.state, "command": row.command[:500]} for row in conn.execute(query)]
