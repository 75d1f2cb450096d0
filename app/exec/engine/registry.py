"""A bounded cache of sessions over the store.

Ended sessions come from memory; live ones from the store, because another process may have recorded their end.
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
    """A cached session. `touched_at` is the wall-clock time of the last call about it."""

    session: Session
    touched_at: float = field(default=0.0)


class ExecRegistry:
    """Finds sessions by id."""

    def __init__(self, store: SessionStore, *, capacity: int = CACHED, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._capacity = capacity
        self._clock = clock
        self._cached: OrderedDict[SessionId, ProcessSession] = OrderedDict()
        self.listeners: set[Callable[[Session], None]] = set()
        """Called with each session that is added or looked up, each time."""

    def add(self, session: Session) -> ProcessSession:
        """Cache a session or its newer state."""
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

    async def get(self, session_id: str, conversation_id: str | None = None, *, remembered: bool = False) -> Session:
        """The session as it is now, if it is of `conversation_id` (None: of any).

        With `remembered` a live one is as this process saw it last, for calls that a supervisor refuses after its end.

        Raises:
            SessionNotFound: There is none, or it belongs to another conversation.
        """
        entry = self._cached.get(SessionId(session_id))
        session = entry.session if entry else None
        if session is None or (session.live and not remembered):
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
        """Wall-clock time of the last call about the session; 0 if unknown."""
        entry = self._cached.get(SessionId(session_id))
        return entry.touched_at if entry else 0.0

    def cleanup(self, max_age_hours: float) -> int:
        """Forget ended sessions that were not looked up for so long; returns how many."""
        before = self._clock() - max_age_hours * 3600
        old = [key for key, entry in self._cached.items() if not entry.session.live and entry.touched_at < before]
        for key in old:
            del self._cached[key]
        return len(old)
