"""Shells that nobody uses end: one timer for each, set anew when it fires early, and nothing that looks in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from shellback.exec.core.errors import ExecError
from shellback.exec.core.model import SessionId

log = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
"""When it is tried again where a shell could not be ended."""


class Expiry:
    """Calls `expired(session id)` once a shell was idle for long enough.

    `live` are the shells that run. `left(session id)` is how many seconds it still has, None of one that has ended.
    """

    def __init__(
        self,
        live: Callable[[], Awaitable[Sequence[SessionId]]],
        left: Callable[[SessionId], Awaitable[float | None]],
        expired: Callable[[SessionId], Awaitable[None]],
    ) -> None:
        self._live = live
        self._left = left
        self._expired = expired
        self._timers: dict[SessionId, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """End the shells that were idle for too long while nobody watched, and watch the others; repeating is fine."""
        for session_id in await self._live():
            self.watch(session_id, 0)

    def watch(self, session_id: SessionId, after_s: float) -> None:
        """Look at a shell after this time; one that is watched already keeps its timer."""
        if session_id not in self._timers:
            self._timers[session_id] = asyncio.get_running_loop().call_later(after_s, self._fire, session_id)

    def forget(self, session_id: SessionId) -> None:
        """Look at it no more."""
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    async def stop(self) -> None:
        """Look at nothing any more; shells go on. Stopping twice, or without a start, is fine."""
        for session_id in list(self._timers):
            self.forget(session_id)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fire(self, session_id: SessionId) -> None:
        del self._timers[session_id]
        task = asyncio.get_running_loop().create_task(self._look(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, session_id: SessionId) -> None:
        try:
            left = await self._left(session_id)
            if left is not None and left <= 0:
                await self._expired(session_id)
            elif left is not None:
                self.watch(session_id, left)
        except ExecError as error:
            log.warning("shell %s, idle for too long, could not be ended and is tried again: %s", session_id, error)
            self.watch(session_id, _AGAIN_S)
