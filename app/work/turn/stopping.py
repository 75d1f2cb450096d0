"""A person's wish to stop a turn at its next step: read in recorded steps, settled by the closing.

A stop ends the running turn, denies the calls that wait for approval, or takes the messages whose turn has not begun.
Messages that came after a running turn or after approvals are kept and run next.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import sqlalchemy as sa

from shellback.exec.core.model import SessionId
from shellback.storage.db import Database
from shellback.storage.rows import change, exists
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import conversations, mailbox, sessions, turns
from shellback.work.approvals import approvals
from shellback.work.errors import UnknownConversation
from shellback.work.queue import stream
from shellback.work.queue.items import IDLE_OUTCOMES, ItemType
from shellback.work.queue.mailbox import AGENT, APART, Letter, lock, set_apart, take, waking
from shellback.work.queue.queues import Enqueuer

if TYPE_CHECKING:
    from shellback.exec.engine.engine import Engine

NEXT: Final = APART
"""In place of a turn's id: the turn that begins next."""
SHOWN: Final = 10

Reach = Literal["running", "approvals", "queued"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The effect of a stop: `reach` is None if there was nothing to stop; `turn_id` names the running turn."""

    conversation_id: str
    reach: Reach | None
    turn_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Who stopped the turn; and the live sessions, as (id, command), with their `count`."""

    by: str
    living: list[tuple[str, str]]
    count: int


def stop(conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str, *, by: str) -> Stopping:
    """Ask the turn of a conversation to end at its next step, and deny calls that wait for approval.

    A repeat keeps the first name; it only adds new messages to the ones that are stopped before their turn began.

    Raises:
        UnknownConversation: No conversation has this name.
    """
    row = lock(conn, conversation_id)
    if row is None:
        raise UnknownConversation(f"no conversation {conversation_id!r}; `shellback conversations list` shows what is")
    if row.driver != AGENT:
        pending = approvals.supersede(conn, enqueuer, conversation_id, by=by, surface="stop", note="stopped")
        return Stopping(conversation_id=conversation_id, reach="approvals" if pending else None, turn_id=None)
    reach = _reach(conn, row)
    turn_id = row.claimed_by if reach == "running" else None
    if reach is not None and row.stop_turn is None:
        _wish(conn, conversation_id, turn_id or NEXT, by)
        stream.note(conn, conversation_id, turn_id or "", 0, "stopping", {"by": by})
        if turn_id and not _begun(conn, turn_id):
            set_apart(conn, conversation_id)
    if reach == "queued":
        set_apart(conn, conversation_id)
    if reach == "approvals":
        _deny(conn, enqueuer, conversation_id, by)
    return Stopping(conversation_id=conversation_id, reach=reach, turn_id=turn_id)


def _deny(conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str, by: str) -> None:
    # The turn that this resumes then ends before its first model request.
    approvals.supersede(conn, enqueuer, conversation_id, by=by, surface="stop", note="stopped")


def _reach(conn: sa.Connection, row: sa.Row[Any]) -> Reach | None:
    if row.state == "claimed":
        return "running"
    if row.state == "blocked":
        return "approvals" if row.blocked_reason == "approval" else None
    unread = sa.select(mailbox.c.id).where(mailbox.c.conversation_id == row.id, waking())
    return "queued" if exists(conn, unread) else None


def _begun(conn: sa.Connection, turn_id: str) -> bool:
    """Whether a turn that holds its conversation has taken its messages, or resumes approvals."""
    if turn_id.startswith(f"{ItemType.APPROVAL.value}:"):
        return True
    return exists(conn, sa.select(mailbox.c.id).where(mailbox.c.taken_by == turn_id))


def _wish(conn: sa.Connection, conversation_id: str, turn_id: str, by: str) -> None:
    change(conn, conversations, conversation_id, stop_turn=turn_id, stop_by=by[:100])


def pass_on(conn: sa.Connection, enqueuer: Enqueuer, conversation: sa.Row[Any]) -> None:
    """Move the wish to the next turn if this turn could not fulfil it, and deny its pending approvals.

    `conversation` is the row while that turn held it.
    """
    if conversation.stop_turn is not None and conversation.stop_turn == conversation.claimed_by:
        _wish(conn, conversation.id, NEXT, conversation.stop_by)
        _deny(conn, enqueuer, conversation.id, conversation.stop_by)


def stoppable(conn: sa.Connection, conversation_id: str) -> bool:
    """Whether a turn runs or is queued, and no stop was asked for yet."""
    row = conn.execute(sa.select(conversations).where(conversations.c.id == conversation_id)).one_or_none()
    return row is not None and row.stop_turn is None and _reach(conn, row) in {"running", "queued"}


def wish_of(row: sa.Row[Any], turn_id: str) -> str | None:
    """Who asked to stop this turn, by the row of its conversation; or None."""
    return row.stop_by if row.stop_turn == turn_id else None


def wish_for(conn: sa.Connection, conversation_id: str, turn_id: str) -> Wish | None:
    """The wish to stop this turn, or None."""
    by = conn.execute(
        sa.select(conversations.c.stop_by).where(
            conversations.c.id == conversation_id, conversations.c.stop_turn == turn_id
        )
    ).scalar_one_or_none()
    return None if by is None else _with_living(conn, conversation_id, by)


def _with_living(conn: sa.Connection, conversation_id: str, by: str) -> Wish:
    query = (
        sa.select(sessions.c.id, sessions.c.command)
        .where(sessions.c.conversation_id == conversation_id, sessions.c.state.in_(LIVE))
        .order_by(sessions.c.created_at)
    )
    found = [(row.id, row.command[:200]) for row in conn.execute(query)]
    return Wish(by=by, living=found[:SHOWN], count=len(found))


def take_unless_stopped(
    conn: sa.Connection, conversation: sa.Row[Any], turn_id: str, step: int
) -> tuple[list[Letter], Wish | None]:
    """Take unread rows for step `step` of the turn that holds the locked `conversation`; none if it is to stop."""
    by = wish_of(conversation, turn_id)
    if by is not None:
        return [], _with_living(conn, conversation.id, by)
    return take(conn, conversation.id, turn_id, step), None


def text_of(wish: Wish) -> str:
    """What the conversation is told instead of an answer."""
    lines = [f"Stopped by {wish.by}."]
    if wish.count:
        lines[0] += f" {wish.count} process(es) of this conversation go on:"
        lines += [f"- {session_id}: {json.dumps(command, ensure_ascii=False)}" for session_id, command in wish.living]
        if wish.count > len(wish.living):
            lines.append(f"- and {wish.count - len(wish.living)} more")
    lines.append("Write to go on.")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The turn that fulfilled a wish to stop, and its outcome."""

    turn_id: str | None
    outcome: str | None


def settled(conn: sa.Connection, conversation_id: str, turn_id: str | None, since: float) -> Settled | None:
    """The result of a wish to stop; None while it is pending."""
    row = conn.execute(sa.select(conversations).where(conversations.c.id == conversation_id)).one()
    if row.stop_turn is not None:
        return None
    query = sa.select(turns.c.id, turns.c.outcome).where(
        turns.c.conversation_id == conversation_id, turns.c.outcome.not_in(IDLE_OUTCOMES)
    )
    # If the turn died or asked for approval, another turn has fulfilled the wish.
    order = [turns.c.outcome != "stopped", turns.c.id != (turn_id or ""), turns.c.ended_at.desc()]
    query = query.where(sa.or_(turns.c.id == (turn_id or ""), turns.c.ended_at >= since))
    last = conn.execute(query.order_by(*order).limit(1)).one_or_none()
    return Settled(turn_id=last.id, outcome=last.outcome) if last else Settled(turn_id=turn_id, outcome=None)


log = logging.getLogger(__name__)

LOOK_S: Final = 0.5


async def watch_for_stops(database: Database, engine: Engine, host_id: str) -> NoReturn:
    """Let waiting calls of stopped turns return. Without this a stop would take effect when the command ends.

    The database is only asked while a call waits for a process.
    """
    told = False
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if engine.awaited:
                for session_id in await database.read(_stopped, host_id):
                    engine.give_up(session_id)
                told = False
        except Exception as error:  # noqa: BLE001 - the next look may find the database again
            if not told:  # twice a second, it would fill a disk in a long outage
                log.warning("could not look for turns to stop: %s", error)
            told = True


def _stopped(conn: sa.Connection, host_id: str) -> list[SessionId]:
    query = (
        sa.select(sessions.c.id)
        .join(conversations, conversations.c.id == sessions.c.conversation_id)
        .where(
            conversations.c.host_id == host_id,
            conversations.c.state == "claimed",
            conversations.c.stop_turn == conversations.c.claimed_by,
            sessions.c.state.in_(LIVE),
        )
    )
    return [SessionId(session_id) for session_id in conn.execute(query).scalars()]
