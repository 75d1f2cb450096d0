"""From an exit that the supervisor rings to an end that the store has, without losing one.

Order for one session: recorded in the store, then told to whoever waits, then acknowledged.
Sessions do not wait for each other. An end that cannot be recorded is tried again until it can;
what is not acknowledged the supervisor rings again after a reconnect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from shellback.exec.core.errors import ExecError, SessionNotFound
from shellback.exec.core.model import Session, SessionEnd, SessionId, SessionState
from shellback.exec.core.ports import SessionStore, SessionWatch, Unwatched
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.gaps import why
from shellback.log import about

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 5.0
SETTLED_S: Final = 10.0
"""Longer nobody waits for ends to be recorded: where the store takes none, that may be for ever."""


class Ends:
    """Records ends and wakes who waits for them."""

    def __init__(
        self,
        store: SessionStore,
        registry: ExecRegistry,
        acknowledge: Callable[[SessionId], Awaitable[None]],
        watch: SessionWatch | None = None,
        forgotten: Callable[[SessionId], bool] = lambda _: False,
        inspected: Callable[[SessionId, SessionEnd], Awaitable[SessionEnd]] | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._acknowledge = acknowledge
        self._watch = watch or Unwatched()
        self._forgotten = forgotten
        self._inspected = inspected
        self._recording: dict[SessionId, asyncio.Task[None]] = {}
        self._waiting: dict[SessionId, set[asyncio.Future[Session | None]]] = {}
        self.inline: set[SessionId] = set()
        """Sessions whose starting call waits for the end, so that recording it settles it."""

    def received(self, session_id: SessionId, end: SessionEnd) -> None:
        """Take an end; returns at once. The same end again while it is being recorded changes nothing."""
        reach("exit.received")
        if session_id not in self._recording:
            # In a context of its own: the connection that brings ends may have been opened by any turn.
            self._recording[session_id] = asyncio.get_running_loop().create_task(
                self._record(session_id, end), name=f"end {session_id}", context=Context()
            )

    def recording(self, session_id: SessionId) -> bool:
        """Whether an end of the session is on its way to the store."""
        return session_id in self._recording

    def expect(self, session_id: SessionId) -> asyncio.Future[Session | None]:
        """A future for the end of a session; give it back with `forget`. Resolved with None by whoever gives up."""
        future: asyncio.Future[Session | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, set()).add(future)
        return future

    def forget(self, session_id: SessionId, future: asyncio.Future[Session | None]) -> None:
        """Stop waiting."""
        waiting = self._waiting.get(session_id)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[session_id]

    def tell(self, session: Session) -> None:
        """Wake who waits for a session that the store has as ended."""
        self._registry.mark_exited(session)
        self._watch.ended(session)
        ids = {"session": session.id, "conversation": session.conversation_id, "work_item": session.turn_id or None}
        log.log(
            logging.WARNING if session.state is SessionState.LOST else logging.INFO,
            "process ended: %s",
            session.end.evidence if session.end and session.end.evidence else session.state,
            extra=ids,
        )
        if session.end and session.end.log_errno:
            log.warning("output of a process was dropped: %s", why(session.end.log_errno), extra=ids)
        for future in self._waiting.get(session.id, ()):
            if not future.done():
                future.set_result(session)

    def give_up(self, session_id: SessionId) -> None:
        """Wake who waits for a session that has not ended."""
        for future in self._waiting.get(session_id, ()):
            if not future.done():
                future.set_result(None)

    @property
    def awaited(self) -> tuple[SessionId, ...]:
        """Sessions whose end somebody waits for."""
        return tuple(self._waiting)

    async def settled(self, up_to: float = SETTLED_S) -> None:
        """Wait until every end received so far is recorded and acknowledged, or given back; at most so many seconds."""
        if self._recording:
            await asyncio.wait(self._recording.values(), timeout=up_to)

    async def stop(self) -> None:
        """End the recording; what is not recorded is rung again to the next worker."""
        tasks = list(self._recording.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _record(self, session_id: SessionId, end: SessionEnd) -> None:
        with about(session=session_id):
            try:
                session = await self._finished(session_id, end)
                if session is None:
                    if self._forgotten(session_id):
                        await self._acknowledge(session_id)
                    return
                reach("exit.committed")
                self.tell(session)
                # Whoever waits goes first: the acknowledgement is in nobody's way.
                await asyncio.sleep(0)
                await self._acknowledge(session_id)
                reach("exit.acked")
            except (ExecError, OSError) as error:
                log.warning("the end of session %s is recorded but not acknowledged yet: %s", session_id, error)
            finally:
                self._recording.pop(session_id, None)

    async def inspected(self, session_id: SessionId, end: SessionEnd) -> SessionEnd:
        """The end with what the workspace shows of it: before anybody is told, so that all are told the same."""
        return end if self._inspected is None else await self._inspected(session_id, end)

    async def _finished(self, session_id: SessionId, end: SessionEnd) -> Session | None:
        end = await self.inspected(session_id, end)
        delay = FIRST_DELAY_S
        while True:
            try:
                reach("exit.finishing")
                return await self._store.finish(session_id, end, told_inline=session_id in self.inline)
            except SessionNotFound:
                if not self._forgotten(session_id):
                    log.warning(
                        "session %s has ended, but this database does not know it; left unacknowledged", session_id
                    )
                return None
            except Exception as error:  # noqa: BLE001 - whatever keeps the store from it, the end must not be lost
                log.warning("the end of session %s is not recorded yet: %s; again in %.2f s", session_id, error, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_DELAY_S)
