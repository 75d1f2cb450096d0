"""What became of sessions that the store still has as live: decided by what can be known, never guessed.

The supervisor's word comes first: running is running, and an exit record is the end. Only where it
knows nothing does the absence tell something, and what it tells is named as evidence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shellback.exec.core.errors import LimitReached, SupervisorUnreachable
from shellback.exec.core.model import EndedBy, Evidence, Session, SessionEnd, SessionId, SessionState
from shellback.exec.core.ports import SessionStore
from shellback.exec.engine.ends import Ends
from shellback.exec.link.supervised import Seen, Supervised
from shellback.exec.wire.crashpoints import reach

log = logging.getLogger(__name__)


class Recovery:
    """Compares the store with the supervisor.

    `absence_tells` is False for a session of which the state directory may lack the records: then it is not known
    what became of one that the supervisor does not know, and it is left to a person.
    """

    def __init__(
        self,
        store: SessionStore,
        supervised: Supervised,
        ends: Ends,
        host_id: str,
        absence_tells: Callable[[Session], bool] = lambda _: True,
    ) -> None:
        self._store = store
        self._supervised = supervised
        self._ends = ends
        self._host_id = host_id
        self._absence_tells = absence_tells

    async def reconcile(self) -> None:
        """Bring the live sessions of this host in line with the supervisor.

        A session that is only claimed, on this boot, and unknown to the supervisor is left alone: its turn may
        be about to start it. So is one whose supervisor cannot be reached while others can: that tells nothing of it.
        Cancelling leaves some sessions done and the others as they were.

        Raises:
            SupervisorUnreachable: None answers.
        """
        reach("sweep.scanning")
        live = [session for session in await self._store.list(live=True) if session.host_id == self._host_id]
        seen = {entry.session_id: entry for entry in await self._supervised.list()}
        for entry in seen.values():
            if entry.end is not None:
                self._ends.received(entry.session_id, entry.end)
        for session in live:
            if not self._ends.recording(session.id):
                try:
                    await self._decide(session, seen.get(session.id))
                except (SupervisorUnreachable, LimitReached) as error:
                    log.warning("session %s could not be compared with its supervisor: %s", session.id, error)
        for session_id in self._ends.awaited:
            # Another worker was told while we were not connected; nobody tells us any more.
            session = await self._store.get(session_id)
            if session is not None and session.end is not None and not self._ends.recording(session_id):
                self._ends.tell(session)

    async def abandon(self, session: Session) -> Session:
        """Give up a claimed session whose turn is gone, unless it has been started; returns it as it is then.

        The supervisor lets either the start or this happen, never both.
        """
        if session.state is not SessionState.CLAIMED:
            return session
        if not self._absence_tells(session):
            seen = await self._supervised.status(session.id)
            return (await self.follow(session, seen) if seen is not None else None) or session
        if await self._supervised.abandon(session.id):
            return await self._lose(session.id, Evidence.NEVER_STARTED)
        return await self._decide(session, await self._supervised.status(session.id)) or await self._now(session)

    async def _decide(self, session: Session, seen: Seen | None) -> Session | None:
        if seen is None:
            # It may have ended and been acknowledged since the list was read: look again, in this order.
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
            await self._supervised.acknowledge(session.id)
            return ended
        if session.state is SessionState.CLAIMED and seen.pid is not None:
            await self._store.started(session.id, pid=seen.pid, started_at=seen.started_at or time.time())
        return None

    async def _lose(self, session_id: SessionId, evidence: Evidence) -> Session:
        end = SessionEnd(state=SessionState.LOST, evidence=evidence, ended_by=EndedBy.ITSELF, ended_at=time.time())
        session = await self._store.finish(session_id, await self._ends.inspected(session_id, end))
        self._ends.tell(session)
        return session

    async def _now(self, session: Session) -> Session:
        return await self._store.get(session.id) or session
