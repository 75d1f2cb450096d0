"""Records the exits that the supervisor reports as ends in the store, without losing one.

Order for one session: record in the store, wake the calls that wait, acknowledge. If the call that started it waits,
that call is woken first: until the end is recorded, the exit record has it, and a repeat of the call tells it again.
Whoever keeps an answer waits for `recorded` before. Sessions are independent of each other. A failed recording is
retried; the supervisor reports an unacknowledged end again after a reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Final

from shellback.exec.backends.inspection.inspector import Inspector
from shellback.exec.core.end_text import losses_text
from shellback.exec.core.errors import ExecError, LimitReached, SessionNotFound, SupervisorUnreachable
from shellback.exec.core.findings import LOST_MOUNT, Finding, finding_id
from shellback.exec.core.model import Delivery, EndedBy, Evidence, Loss, Session, SessionEnd, SessionId, SessionState
from shellback.exec.core.ports import SessionStore, SessionWatch, Unwatched
from shellback.exec.core.threads import cancelled
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.link.supervised import Seen, Supervised
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.gaps import why
from shellback.log import about

log = logging.getLogger(__name__)

FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 5.0
BEHIND: Final = 64
"""Ends that are told and not recorded yet; with so many, the next one is recorded before it is told."""
FLUSH_S: Final = 2.0
SETTLED_S: Final = 10.0
"""Limit of waiting for ends to be recorded; while the store is down it would be for ever."""


class Ends:
    """Records ends and wakes the calls that wait for them."""

    def __init__(
        self,
        store: SessionStore,
        registry: ExecRegistry,
        acknowledge: Callable[[SessionId], Awaitable[object]],
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
        self.inline: dict[SessionId, Session] = {}
        """Sessions whose starting call waits for the end, so that recording it settles it; as they are recorded."""
        self._behind: dict[SessionId, tuple[str, asyncio.Future[None]]] = {}
        """Told ends that are not recorded yet, each with its conversation."""

    def received(self, session_id: SessionId, end: SessionEnd) -> None:
        """Begin to record an end, unless it is being recorded; returns at once."""
        reach("exit.received")
        if session_id not in self._recording:
            # In a context of its own: any turn may have opened the connection that delivers ends.
            self._recording[session_id] = asyncio.get_running_loop().create_task(
                self._record(session_id, end), name=f"end {session_id}", context=Context()
            )

    def recording(self, session_id: SessionId) -> bool:
        """Whether an end of the session is being recorded."""
        return session_id in self._recording

    def expect(self, session_id: SessionId) -> asyncio.Future[Session | None]:
        """A future for the end of a session, for `forget` afterwards; `give_up` resolves it with None."""
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
        """Wake the calls that wait for a session whose end is recorded."""
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
        """Wake the calls that wait for a session that has not ended."""
        for future in self._waiting.get(session_id, ()):
            if not future.done():
                future.set_result(None)

    @property
    def awaited(self) -> tuple[SessionId, ...]:
        """Sessions whose end a call waits for."""
        return tuple(self._waiting)

    async def settled(self, up_to: float = SETTLED_S) -> None:
        """Wait until every end received so far is recorded and acknowledged, at most `up_to` seconds."""
        if self._recording:
            await asyncio.wait(self._recording.values(), timeout=up_to)

    async def recorded(self, conversation_id: str) -> None:
        """Wait until the ends that a conversation was told so far are recorded; CancelledError if `stop` is first."""
        for of, behind in list(self._behind.values()):
            if of == conversation_id:
                await asyncio.shield(behind)

    async def stop(self) -> None:
        """Stop recording; the supervisor reports unrecorded ends to the next worker. Told ones get `FLUSH_S` before."""
        if self._behind:
            await asyncio.wait([behind for _, behind in self._behind.values()], timeout=FLUSH_S)
        await cancelled(self._recording.values())

    async def _record(self, session_id: SessionId, end: SessionEnd) -> None:
        with about(session=session_id):
            told = None
            try:
                end = await self.inspected(session_id, end)
                if (told := self._told_ahead(session_id, end)) is not None:
                    self.tell(told)
                    reach("exit.told")
                session = await self._finished(session_id, end, told=told is not None)
                self._release(session_id)
                if session is None:
                    if self._forgotten(session_id):
                        await self._acknowledge(session_id)
                    return
                reach("exit.committed")
                if told is None:
                    self.tell(session)
                # The calls that wait run first: the acknowledgement does not delay them.
                await asyncio.sleep(0)
                await self._acknowledge(session_id)
                reach("exit.acked")
            except (ExecError, OSError) as error:
                log.warning("the end of session %s is recorded but not acknowledged yet: %s", session_id, error)
            finally:
                self._recording.pop(session_id, None)
                self._release(session_id, recorded=False)

    def _told_ahead(self, session_id: SessionId, end: SessionEnd) -> Session | None:
        """The ended session, if the call that started it waits and can be told before it is recorded."""
        session = self.inline.get(session_id)
        if session is None or len(self._behind) >= BEHIND:
            return None
        self._behind[session_id] = session.conversation_id, asyncio.get_running_loop().create_future()
        began = end.began_at if session.started_at is None else session.started_at
        return replace(session, state=end.state, delivery=Delivery.SETTLED, end=end, started_at=began)

    def _release(self, session_id: SessionId, *, recorded: bool = True) -> None:
        _, behind = self._behind.pop(session_id, ("", None))
        if behind is not None:
            behind.set_result(None) if recorded else behind.cancel()

    async def inspected(self, session_id: SessionId, end: SessionEnd) -> SessionEnd:
        """The end with the findings in the workspace, before it is reported: everyone gets the same."""
        return end if self._inspected is None else await self._inspected(session_id, end)

    async def _finished(self, session_id: SessionId, end: SessionEnd, *, told: bool) -> Session | None:
        delay = FIRST_DELAY_S
        while True:
            began = time.monotonic()
            try:
                reach("exit.finishing")
                return await self._store.finish(session_id, end, told_inline=told or session_id in self.inline)
            except SessionNotFound:
                if not self._forgotten(session_id):
                    log.warning(
                        "session %s has ended, but this database does not know it; left unacknowledged", session_id
                    )
                return None
            except Exception as error:  # noqa: BLE001 - whatever keeps the store from it, the end must not be lost
                log.warning(
                    "the end of session %s is not recorded yet: %s; again within %.2f s", session_id, error, delay
                )
            await self._store.pause(delay, since=began)
            delay = min(delay * 2, LONGEST_DELAY_S)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Compares the store with the supervisor, which decides what runs and what has ended.

    A session that the supervisor does not know is lost, with evidence. `absence_tells` is False where the state
    directory may lack its records: then a person settles it.
    """

    _store: SessionStore
    _supervised: Supervised
    _ends: Ends
    _host_id: str
    _absence_tells: Callable[[Session], bool] = lambda _: True

    async def reconcile(self, *, live: bool = True) -> None:
        """Record what the supervisor knows of the live sessions of this host. Cancelling leaves it partly done.

        Without `live` the store is known to have none.

        Leaves two kinds alone: sessions claimed on this boot that the supervisor does not know, because their turn may
        be about to start them; and those whose supervisor cannot be reached while others can.

        Raises:
            SupervisorUnreachable: No supervisor answers.
        """
        reach("sweep.scanning")
        sessions = await self._store.list(live=True) if live else ()
        ours = [session for session in sessions if session.host_id == self._host_id]
        seen = {entry.session_id: entry for entry in await self._supervised.list()}
        for entry in seen.values():
            if entry.end is not None:
                self._ends.received(entry.session_id, entry.end)
        for session in ours:
            if not self._ends.recording(session.id):
                try:
                    await self._decide(session, seen.get(session.id))
                except (SupervisorUnreachable, LimitReached) as error:
                    log.warning("session %s could not be compared with its supervisor: %s", session.id, error)
        for session_id in self._ends.awaited:
            # Another worker recorded the end while we were disconnected, so it is not reported to us.
            session = await self._store.get(session_id)
            if session is not None and session.end is not None and not self._ends.recording(session_id):
                self._ends.tell(session)

    async def abandon(self, session: Session) -> Session:
        """Give up a claimed session, unless it was started; the supervisor allows only one. Returns the session."""
        if session.state is not SessionState.CLAIMED:
            return session
        if not self._absence_tells(session):
            seen = await self._supervised.status(session.id)
            return (await self.follow(session, seen) if seen is not None else None) or session
        if await self._supervised.abandon(session.id):
            return await self._lose(session.id, Evidence.NEVER_STARTED)
        ended = await self._decide(session, await self._supervised.status(session.id))
        return ended or await self._store.get(session.id) or session

    async def _decide(self, session: Session, seen: Seen | None) -> Session | None:
        if seen is None:
            # It may have ended and been acknowledged since the list was read: ask again, in this order.
            seen = await self._supervised.status(session.id)
        if seen is not None:
            return await self.follow(session, seen)
        same_boot = session.boot_id == self._supervised.boot_id
        if session.state is SessionState.CLAIMED:
            if same_boot:
                return None
            if await self._supervised.abandon(session.id) and self._absence_tells(session):
                return await self._lose(session.id, Evidence.NEVER_STARTED)
        if not same_boot:
            return await self._lose(session.id, Evidence.MACHINE_REBOOTED)
        if not self._absence_tells(session):
            return None
        return await self._lose(session.id, Evidence.RECORD_UNREADABLE)

    async def follow(self, session: Session, seen: Seen) -> Session | None:
        """Record what the supervisor knows of a session; returns it if that is its end."""
        if seen.abandoned:
            return await self._lose(session.id, Evidence.NEVER_STARTED)
        if seen.end is not None:
            ended = await self._store.finish(session.id, await self._ends.inspected(session.id, seen.end))
            reach("exit.committed")
            self._ends.tell(ended)
            await self._supervised.port.ack(session.id)
            return ended
        if session.state is SessionState.CLAIMED and seen.pid is not None:
            await self._store.started(session.id, pid=seen.pid, started_at=seen.started_at or time.time())
        return None

    async def _lose(self, session_id: SessionId, evidence: Evidence) -> Session:
        end = SessionEnd(state=SessionState.LOST, evidence=evidence, ended_by=EndedBy.ITSELF, ended_at=time.time())
        session = await self._store.finish(session_id, await self._ends.inspected(session_id, end))
        self._ends.tell(session)
        return session


@dataclass(frozen=True, slots=True)
class Losses:
    """Records losses as findings, if an inspector looks at the workspace of the session."""

    _inspectors: Callable[[], Sequence[Inspector]]
    _inspector_of: Callable[[Session], Inspector | None]
    _session_of: Callable[[SessionId], Awaitable[Session | None]]

    async def heard(self, session_id: SessionId, losses: Sequence[Loss]) -> None:
        """Record losses of a running session; known ones are not reported again."""
        await self._record(session_id, losses, told=False)

    async def ended(self, session_id: SessionId, end: SessionEnd) -> SessionEnd:
        """The end with the findings in the workspace. Its losses are reported with the end itself."""
        if end.losses:
            await self._record(session_id, end.losses, told=True)
        for inspector in self._inspectors():
            # Only the one of its workspace knows it, and changes the end.
            end = await inspector.ended(session_id, end)
        return end

    async def _record(self, session_id: SessionId, losses: Sequence[Loss], *, told: bool) -> None:
        session = await self._session_of(session_id) if self._inspectors() else None
        inspector = None if session is None else self._inspector_of(session)
        if session is None or inspector is None:
            return
        root = inspector.root
        met = dict[str, Finding]()
        for loss in losses:
            # In a container the supervisor reports the inner path.
            path = loss.path.removeprefix(f"{root.inner}/")
            path = f"{root.workspace}/{path}" if path != loss.path else path
            one = Finding(
                id=finding_id(LOST_MOUNT, path, session.id, *loss.keys),
                kind=LOST_MOUNT,
                path=path,
                detail=losses_text([loss])[0],
                session_id=session.id,
                conversation_id=session.conversation_id,
            )
            met.setdefault(one.id, one)
        await inspector.add(list(met.values()), told=told)
