"""Covers that were lost while commands ran, as findings: told as the supervisor tells them, and again with the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from shellback.exec.backends.inspection.inspector import Inspector
from shellback.exec.core.end_text import losses_text
from shellback.exec.core.findings import LOST_MOUNT, Finding, finding_id
from shellback.exec.core.model import Loss, Session, SessionEnd, SessionId


class Losses:
    """Makes findings of losses; `session_of` knows the sessions. Without an inspector nobody is told."""

    def __init__(
        self, inspector: Inspector | None, session_of: Callable[[SessionId], Awaitable[Session | None]]
    ) -> None:
        self._inspector = inspector
        self._session_of = session_of

    async def heard(self, session_id: SessionId, losses: Sequence[Loss]) -> None:
        """Record losses of a session that runs; those that are known already are not told again."""
        await self._record(session_id, losses, told=False)

    async def ended(self, session_id: SessionId, end: SessionEnd) -> SessionEnd:
        """The end with what the workspace shows of it; the agent hears of its losses by the end itself."""
        if end.losses:
            await self._record(session_id, end.losses, told=True)
        return end if self._inspector is None else await self._inspector.ended(session_id, end)

    async def _record(self, session_id: SessionId, losses: Sequence[Loss], *, told: bool) -> None:
        session = await self._session_of(session_id) if self._inspector is not None else None
        if session is None or self._inspector is None:
            return
        root = self._inspector.root
        met = dict[str, Finding]()
        for loss in losses:
            # As commands name it, in a container.
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
        await self._inspector.add(list(met.values()), told=told)
