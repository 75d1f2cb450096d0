"""Secrets that were found in output, as rows of the audit: how many in that of a session, summed up for a while."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.tables import sessions
from shellback.work.approvals import audit

log = logging.getLogger(__name__)

SUM_S: Final = 60.0
"""What is found within this time of the first is one row of each session; of a killed process it is lost."""
SESSIONS: Final = 1000
"""Of so many at a time; finds in others are counted without one."""


@dataclass(eq=False, repr=False, kw_only=True)
class SecretsFound:
    """Adds the rows while it is started; `mode` is that of the mask."""

    database: Database
    mode: str
    _found: Counter[str] = field(init=False, default_factory=Counter[str])
    _one: threading.Lock = field(init=False, default_factory=threading.Lock)
    _loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)
    _any: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _ends: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = field(init=False, default=None)

    def count(self, number: int, session_id: str) -> None:
        """So many were found in output of a session, "" if it is not known of which. Any thread may call this."""
        with self._one:
            self._add(number, session_id)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self._any.set)

    async def start(self) -> None:
        """Add rows from now on, also of what was found before."""
        self._ends.clear()
        self._loop = asyncio.get_running_loop()
        if self._found:
            self._any.set()
        self._task = self._loop.create_task(self._follow())

    async def stop(self) -> None:
        """Add those of what was found last."""
        self._loop = None
        if self._task is not None:
            # It is not cancelled: nobody would know whether a row that is being added is there.
            self._ends.set()
            self._any.set()
            await self._task
            self._task = None
            await self._note()

    async def _follow(self) -> None:
        while not self._ends.is_set():
            await self._any.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUM_S):
                    await self._ends.wait()
            self._any.clear()
            await self._note()

    async def _note(self) -> None:
        with self._one:
            found, self._found = self._found, Counter()
        if not found:
            return
        try:
            await self.database.write(note, found, self.mode)
        except Exception as error:  # noqa: BLE001 - the output was masked all the same
            with self._one:
                for session_id, lost in found.items():
                    self._add(lost, session_id)
            self._any.set()
            log.warning("how many secrets output had is no row of the audit yet: %s", error)

    def _add(self, number: int, session_id: str) -> None:
        known = session_id in self._found or len(self._found) < SESSIONS
        self._found[session_id if known else ""] += number


def note(conn: sa.Connection, found: Counter[str], mode: str) -> None:
    """Add a row for each session."""
    query = sa.select(sessions.c.id, sessions.c.conversation_id).where(sessions.c.id.in_([*found]))
    of = {row.id: row.conversation_id for row in conn.execute(query)}
    for session_id, number in found.items():
        entry = audit.Entry(
            event="secrets",
            conversation_id=of.get(session_id),
            session_id=session_id or None,
            facts={"found": number, "as": mode},
        )
        audit.note(conn, entry)
