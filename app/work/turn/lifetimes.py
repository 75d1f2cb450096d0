"""Ends sessions of lifetime `turn` when their turn is over: at its close, or in the next sweep.

A turn that closes with pending approvals is not over: another work item continues it after the decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import sqlalchemy as sa

from shellback.exec.core.model import LIVE_STATES, TURN
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.tables import conversations, sessions, turns

log = logging.getLogger(__name__)

Expire = Callable[[str, str], Awaitable[object]]
"""Ends all sessions with this lifetime and owner."""

BATCH: Final = 200
_MISSED_S: Final = 86400.0
"""How far back a new worker looks for turns that may have left processes."""
LATE_S: Final = 60.0
_WAITS: Final = "pending_approval"
_OVER: Final = ("answered", "failed", "stopped")


class TurnEnds:
    """Ends the sessions that turns leave on this host; a repeat changes nothing."""

    def __init__(self, database: Database, expire: Expire, host_id: str) -> None:
        self._db = database
        self._expire = expire
        self._host_id = host_id
        self._since: float | None = None

    async def closed(self, conversation_id: str) -> None:
        """End what the finished turns of a conversation have left; after an error the next sweep does it."""
        try:
            turn_ids, _ = await self._db.read(_lately, self._host_id, LATE_S, conversation_id=conversation_id)
            await self._end(turn_ids)
        except Exception as error:  # noqa: BLE001 - the turn is closed, and must not fail after that
            log.info("what the turn has started is ended by the next sweep: %s", error)

    async def once(self) -> None:
        """End what was missed, because a worker died at the close, or a turn was freed or set aside.

        Raises:
            SupervisorUnreachable: No supervisor answers.
        """
        turn_ids, now = await self._db.read(_lately, self._host_id, _MISSED_S, self._since)
        await self._end(turn_ids)
        self._since = now - LATE_S

    async def _end(self, turn_ids: list[str]) -> None:
        for turn_id in turn_ids:
            await self._expire(TURN, turn_id)


_OF_TURNS: Final = (
    sa.select(sessions.c.id)
    .where(sessions.c.conversation_id == sa.bindparam("conversation"), sessions.c.lifetime == TURN)
    .limit(sa.literal_column("1"))
)


def any_of_turns(conn: sa.Connection, conversation_id: str) -> bool:
    """Whether a conversation has sessions of lifetime `turn`, live or ended."""
    return conn.execute(_OF_TURNS, {"conversation": conversation_id}).first() is not None


def _lately(
    conn: sa.Connection, host_id: str, seconds: float, since: float | None = None, conversation_id: str | None = None
) -> tuple[list[str], float]:
    """What is `due` for so many seconds or `since` then, and the time by the clock of the database."""
    now = rows.now(conn)
    return due(conn, host_id, now - seconds if since is None else since, conversation_id), now


def due(conn: sa.Connection, host_id: str, since: float, conversation_id: str | None = None) -> list[str]:
    """Finished turns with live sessions of lifetime `turn`, or that ended after `since` and left survivors."""
    later = turns.alias("later")
    followed = sa.exists().where(
        later.c.conversation_id == turns.c.conversation_id,
        later.c.outcome.in_(_OVER),
        later.c.ended_at > turns.c.ended_at,
    )
    lately = sa.or_(
        turns.c.ended_at >= since, sa.and_(turns.c.outcome == _WAITS, followed.where(later.c.ended_at >= since))
    )
    waits_no_more = sa.or_(
        conversations.c.state == "free",
        sa.and_(conversations.c.state == "blocked", conversations.c.blocked_reason != "approval"),
    )
    query = (
        sa.select(sessions.c.turn_id, sessions.c.state, sessions.c.end)
        .join(turns, turns.c.id == sessions.c.turn_id)
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(
            sessions.c.lifetime == TURN,
            sessions.c.host_id == host_id,
            turns.c.outcome.is_not(None),
            sa.or_(turns.c.outcome != _WAITS, followed, waits_no_more),
        )
    )
    if conversation_id is not None:
        query = query.where(sessions.c.conversation_id == conversation_id)
    else:
        # Each of `lately` is in one of these conversations; without this condition SQLite reads all sessions.
        heard_of = sa.select(turns.c.conversation_id).where(turns.c.ended_at >= since)
        lately = sa.and_(sessions.c.conversation_id.in_(heard_of), lately)
    live = query.where(sessions.c.state.in_([state.value for state in LIVE_STATES]))
    ended = query.where(lately, sessions.c.ended_at.is_not(None))
    found = {row.turn_id for row in conn.execute(live.limit(BATCH))}
    found |= {row.turn_id for row in conn.execute(ended) if row.end and row.end.get("survivors")}
    return sorted(found)
