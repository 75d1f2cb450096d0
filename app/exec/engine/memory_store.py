"""Sessions and containers in memory, for agents that need no durability and for tests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shellback.exec.core.errors import InvalidTransition, LimitReached, SessionNotFound
from shellback.exec.core.limits import SESSIONS_PER_CONVERSATION
from shellback.exec.core.model import (
    TYPED,
    Act,
    CallKey,
    CallKind,
    Delivery,
    PodmanWorkspace,
    Polled,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from shellback.exec.core.ports import ExitSink, SessionStore, WorkspaceStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Call:
    session_id: SessionId
    kind: CallKind
    outcome: dict[str, object] | None = None


class MemorySessionStore(SessionStore):
    """A `SessionStore` in memory. No method awaits, so each one is atomic on the event loop.

    Args:
        sink: Told about ends; its transaction is None.
    """

    def __init__(self, *, sink: ExitSink | None = None) -> None:
        self._sink = sink
        self._sessions: dict[SessionId, Session] = {}
        self._calls: dict[CallKey, _Call] = {}
        self._live: Counter[str] = Counter()

    async def claim(self, session: Session, *, limit: int = SESSIONS_PER_CONVERSATION) -> Session:
        existing = self._sessions.get(session.id)
        if existing is not None:
            return existing
        live = self._live[session.conversation_id]
        if live >= limit:
            raise LimitReached(
                f"this conversation has {live} live sessions and {limit} is the limit; end one with process_kill first"
            )
        self._sessions[session.id] = session
        self._live[session.conversation_id] += 1
        return session

    async def started(self, session_id: SessionId, *, pid: int, started_at: float) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.state is SessionState.CLAIMED:
            running = replace(session, state=SessionState.RUNNING, pid=pid, started_at=started_at)
            self._sessions[session_id] = running

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        if session.end is not None:
            if session.state is SessionState.LOST and end.state is not SessionState.LOST:
                log.warning("session %s was given up as lost and has now ended: %s", session_id, end)
            if told_inline:
                await self.settle_inline(session_id)
            return self._sessions[session_id]
        settles = told_inline and session.delivery is Delivery.INLINE
        ended = replace(
            session,
            state=end.state,
            end=end,
            started_at=end.began_at if session.started_at is None else session.started_at,
            delivery=Delivery.SETTLED if settles else session.delivery,
        )
        self._tell(ended)
        self._sessions[session_id] = ended
        self._live[session.conversation_id] -= 1
        return ended

    async def settle_inline(self, session_id: SessionId) -> bool:
        session = self._sessions.get(session_id)
        if session is not None and session.delivery is Delivery.INLINE:
            session = self._sessions[session_id] = replace(session, delivery=Delivery.SETTLED)
        return session is not None and session.delivery is Delivery.SETTLED

    async def hand_over(self, session_id: SessionId) -> bool:
        session = self._sessions.get(session_id)
        if session is not None and session.delivery is Delivery.INLINE:
            session = replace(session, delivery=Delivery.CALLBACK)
            self._tell(session)
            self._sessions[session_id] = session
        return session is not None and session.delivery is Delivery.CALLBACK

    async def get(self, session_id: SessionId) -> Session | None:
        return self._sessions.get(session_id)

    async def list(self, *, conversation_id: str | None = None, live: bool | None = None) -> Sequence[Session]:
        found = (one for one in self._sessions.values() if conversation_id in (None, one.conversation_id))
        found = [session for session in found if live is None or session.live == live]
        return sorted(found, key=lambda session: (session.created_at, session.id))

    async def begin_call(self, act: Act) -> dict[str, object] | None:
        call = self._calls.get(act.key)
        if call is None:
            self._calls[act.key] = _Call(act.session_id, act.kind)
            return None
        return dict(call.outcome or {})

    async def recalled(self, key: CallKey) -> dict[str, object] | None:
        call = self._calls.get(key)
        return None if call is None else dict(call.outcome or {})

    async def acted_on(self, key: CallKey) -> SessionId | None:
        call = self._calls.get(key)
        return None if call is None else call.session_id

    async def typed_last(self, session_id: SessionId, *, besides: str = "") -> dict[str, object] | None:
        typed = [one for key, one in self._calls.items() if one.session_id == session_id and key != besides]
        return next((dict(one.outcome or {}) for one in reversed(typed) if one.kind in TYPED), None)

    async def end_call(self, key: CallKey, outcome: dict[str, object]) -> None:
        call = self._calls.get(key)
        if call is None:
            raise InvalidTransition(f"call {key} ends but was never begun")
        if call.outcome is None:
            call.outcome = dict(outcome)

    async def advance_poll(self, key: CallKey, session_id: SessionId, upto: int, err_upto: int = 0) -> Polled:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        before = await self.begin_call(Act(key=key, session_id=session_id, tool="process_poll"))
        if before:
            return Polled.recorded(before)
        start, err_start = session.poll_offset, session.poll_err_offset
        passed = Polled(start, max(start, upto), err_start, max(err_start, err_upto))
        self._sessions[session_id] = replace(session, poll_offset=passed.end, poll_err_offset=passed.err_end)
        await self.end_call(key, passed._asdict())
        return passed

    async def pin(self, session_id: SessionId, pinned: bool | None) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        self._sessions[session_id] = replace(session, pinned=pinned)

    def ended(self) -> Sequence[Session]:
        """Ended sessions, oldest first."""
        return [session for session in self._sessions.values() if session.end is not None]

    def forget(self, session_id: SessionId) -> None:
        """Forget an ended session and its calls."""
        del self._sessions[session_id]
        self._calls = {key: call for key, call in self._calls.items() if call.session_id != session_id}

    def _tell(self, session: Session) -> None:
        if self._sink is not None and session.end is not None and session.delivery is Delivery.CALLBACK:
            self._sink.ended(None, session)


class MemoryWorkspaceStore(WorkspaceStore):
    """A `WorkspaceStore` in memory, for the containers of one host."""

    def __init__(self, host_id: str = "local") -> None:
        self._host_id = host_id
        self._found: dict[str, PodmanWorkspace] = {}

    async def made(self, workspace: PodmanWorkspace) -> None:
        self._found[workspace.name] = replace(workspace, host_id=self._host_id)

    async def started(self, name: str, at: float) -> None:
        self._change(name, state="running", last_used_at=at)

    async def touched(self, name: str, at: float) -> None:
        self._change(name, last_used_at=at)

    async def stopped(self, name: str, at: float) -> None:
        self._change(name, state="stopped", last_used_at=at)

    async def removed(self, name: str, at: float) -> None:
        self._change(name, state="removed", removed_at=at)

    async def list(self, *, scope: str | None = None, live: bool | None = None) -> Sequence[PodmanWorkspace]:
        found = sorted(self._found.values(), key=lambda one: one.created_at)
        return [
            one
            for one in found
            if (scope is None or one.scope == scope) and (live is None or (one.state != "removed") is live)
        ]

    def latest(self, scope: str, profile: str) -> PodmanWorkspace | None:
        """The newest container of this scope and profile, or None."""
        found = [one for one in self._found.values() if (one.scope, one.profile) == (scope, profile)]
        return max(found, key=lambda one: one.created_at, default=None)

    def _change(self, name: str, **values: Any) -> None:
        found = self._found.get(name)
        if found is not None and found.state != "removed":
            self._found[name] = replace(found, **values)
