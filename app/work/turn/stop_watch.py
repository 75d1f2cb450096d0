"""Ends the waiting of calls whose turn is to end: without it a stop would come when the command does."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

import sqlalchemy as sa

from shellback.exec.core.model import SessionId
from shellback.storage.db import Database
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import conversations, sessions

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5


class Waits(Protocol):
    """Calls of this process that wait for sessions to end, as the exec engine has them."""

    @property
    def awaited(self) -> bool:
        """Whether there are any."""
        ...

    def give_up(self, session_id: SessionId) -> None:
        """Let those for one session return now, the session running on."""
        ...


class StopWatch:
    """Looks for a wish to stop while a call waits for a process; costs nothing while none does."""

    def __init__(self, database: Database, waits: Waits, host_id: str) -> None:
        self._db = database
        self._waits = waits
        self._host_id = host_id
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._watch(), name="stop watch")

    async def stop(self) -> None:
        """Look no more. Twice, or without a start, is fine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self._waits.awaited:
                    for session_id in await self._db.read(_stopped, self._host_id):
                        self._waits.give_up(session_id)
            except Exception as error:  # noqa: BLE001 - the next look may find the database again
                log.warning("could not look for turns to stop: %s", error)


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
