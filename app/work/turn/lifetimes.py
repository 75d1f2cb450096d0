"""What was to run no longer than its turn is ended when the turn is over, at its close or by the next sweep.

A turn that closes with calls to approve is not over: it goes on when somebody has decided, as another work item.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.model import LIVE_STATES, TURN
from shellback.storage.db import Database
from shellback.storage.tables import conversations, sessions, turns

log = logging.getLogger(__name__)

Expire = Callable[[str, str], Awaitable[object]]
"""Ends all that has this lifetime and owner."""

BATCH: Final = 200
_MISSED_S: Final = 86400.0
"""How far back a worker that starts looks for turns of which something may have been left."""
_LATE_S: Final = 60.0
_WAITS: Final = "pending_approval"
_OVER: Final = ("answered", "failed", "stopped")


class TurnEnds:
    """Ends what turns leave on this host; asking for it again changes nothing."""

    def __init__(self, database: Database, expire: Expire, host_id: str) -> None:
        self._db = database
        self._expire = expire
        self._host_id = host_id
        self._since = time.time() - _MISSED_S

    async def closed(self, conversation_id: str) -> None:
        """End what the turns of a conversation that are over have left; what cannot be done now the sweep does."""
        try:
            await self._end(await self._db.read(due, self._host_id, time.time() - _LATE_S, conversation_id))
        except Exception as error:  # noqa: BLE001 - the turn is closed, and must not fail after that
            log.info("what the turn has started is ended by the next sweep: %s", error)

    async def once(self) -> None:
        """End what was missed: a worker that died at the close, a turn that was freed or set aside.

        Raises:
            SupervisorUnreachable: Nobody can end anything now.
        """
        began = time.time()
        await self._end(await self._db.read(due, self._host_id, self._since))
        # Back with the clock, if that was set.
        self._since = min(began, time.time()) - _LATE_S

    async def _end(self, turn_ids: list[str]) -> None:
        for turn_id in turn_ids:
            await self._expire(TURN, turn_id)


def due(conn: sa.Connection, host_id: str, since: float, conversation_id: str | None = None) -> list[str]:
    """Turns that are over, of which something runs that was to end with them, or that were over `since` and left it."""
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
    live = query.where(sessions.c.state.in_([state.value for state in LIVE_STATES]))
    ended = query.where(lately, sessions.c.ended_at.is_not(None))
    found = {row.turn_id for row in conn.execute(live.limit(BATCH))}
    found |= {row.turn_id for row in conn.execute(ended) if _left_something(row.end)}
    return sorted(found)


def _left_something(end: dict[str, Any] | None) -> bool:
    return bool(end and end.get("survivors"))
