"""Outcomes of calls that are recorded behind their answers, because another record already holds them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from shellback.exec.core.model import CallKey, SessionId
from shellback.exec.core.ports import SessionStore

log = logging.getLogger(__name__)


class Behind:
    """Outcomes on their way to the store, at most one for a session.

    If this process dies first, or the store fails, a repeat of the call finds the outcome in that other record.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._tasks: dict[SessionId, tuple[CallKey, asyncio.Task[None]]] = {}

    async def end_call(self, key: CallKey, session_id: SessionId, outcome: dict[str, Any]) -> None:
        """Record an outcome soon; waits for the previous one of the session."""
        await self.settled(session_id)
        task = asyncio.get_running_loop().create_task(self._store.end_call(key, outcome))
        self._tasks[session_id] = key, task
        task.add_done_callback(lambda done: self._done(session_id, key, done))

    async def settled(self, session_id: SessionId, key: CallKey | None = None) -> None:
        """Return when the outcome of this session, or of this call, is recorded; what reads outcomes waits for it."""
        of, task = self._tasks.get(session_id, (None, None))
        if task is not None and key in {None, of}:
            await asyncio.wait([task])

    async def stop(self) -> None:
        """Return when all outcomes are recorded."""
        if tasks := [task for _, task in self._tasks.values()]:
            await asyncio.wait(tasks)

    def _done(self, session_id: SessionId, key: CallKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id, (None, None))[1] is task:
            del self._tasks[session_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the outcome of call %s is not recorded, a repeat of the call finds it: %s", key, error)
