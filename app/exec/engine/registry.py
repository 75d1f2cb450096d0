"""`ProcessSession`s at hand: a bounded cache over the store, which stays the authority.

Only what cannot change any more is answered from memory; a live session is read from the store,
because another process may have recorded its end.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.core.errors import SessionNotFound
from shellback.exec.core.model import Session, SessionId
from shellback.exec.core.ports import SessionStore

CACHED: Final = 1024


@dataclass(slots=True)
class ProcessSession:
    """One session as this process knows it. `touched_at` is wall-clock seconds of the last call about it."""

    session: Session
    touched_at: float = field(default=0.0)


class ExecRegistry:
    """Finds sessions. Forgetting one costs a read of the store, never the session."""

    def __init__(self, store: SessionStore, *, capacity: int = CACHED, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._capacity = capacity
        self._clock = clock
        self._cached: OrderedDict[SessionId, ProcessSession] = OrderedDict()
        self.listeners: set[Callable[[Session], None]] = set()
        """Told of each session that is added or looked up, as it is then, however often."""

    def add(self, session: Session) -> ProcessSession:
        """Remember a session, or what is newer about it."""
        entry = self._cached.get(session.id)
        if entry is None:
            entry = self._cached[session.id] = ProcessSession(session, self._clock())
            if len(self._cached) > self._capacity:
                self._cached.popitem(last=False)
        elif entry.session.live:
            entry.session = session
        for told in tuple(self.listeners):
            told(session)
        return entry

    async def get(self, session_id: str, conversation_id: str | None = None) -> Session:
        """The session as it is now; only of `conversation_id` unless that is None.

        Raises:
            SessionNotFound: There is none, or it belongs to another conversation.
        """
        entry = self._cached.get(SessionId(session_id))
        session = entry.session if entry else None
        if session is None or session.live:
            session = await self._store.get(SessionId(session_id))
        if session is None or (conversation_id is not None and session.conversation_id != conversation_id):
            raise SessionNotFound(session_id)
        self.add(session).touched_at = self._clock()
        return session

    async def list(self, conversation_id: str | None = None) -> list[Session]:
        """Sessions of a conversation, or all, oldest first."""
        return list(await self._store.list(conversation_id=conversation_id))

    def mark_exited(self, session: Session) -> None:
        """Take over the recorded end of a session."""
        self.add(session)

    def touched_at(self, session_id: str) -> float:
        """When a call last was about the session, in wall-clock seconds; 0 when not known."""
        entry = self._cached.get(SessionId(session_id))
        return entry.touched_at if entry else 0.0

    def cleanup(self, max_age_hours: float) -> int:
        """Forget ended sessions that nobody asked for since; returns how many."""
        before = self._clock() - max_age_hours * 3600
        old = [key for key, entry in self._cached.items() if not entry.session.live and entry.touched_at < before]
        for key in old:
            del self._cached[key]
        return len(old)
