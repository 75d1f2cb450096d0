"""Requests about one session, passed on to whoever has it."""

from __future__ import annotations

from abc import abstractmethod

from shellback.exec.core.answers import Grown, Killed, Look, Written
from shellback.exec.core.ports import SupervisorPort


class Forwarding(SupervisorPort):
    """A port that finds the port to ask."""

    @abstractmethod
    async def _live(self, session_id: str) -> SupervisorPort:
        """Who has the process of a session.

        Raises:
            TaskCompleted: It has ended with its container.
            SessionNotFound: It was never started there.
        """

    @abstractmethod
    async def _teller(self, session_id: str) -> SupervisorPort:
        """The same for a question that starts nobody. Raises what `_live` does."""

    async def write(
        self,
        session_id: str,
        data: bytes,
        *,
        eof: bool = False,
        key: str = "",
        beyond: int | None = None,
        timeout_s: float = 0.0,
    ) -> Written:
        """See `SupervisorPort.write`."""
        port = await self._live(session_id)
        return await port.write(session_id, data, eof=eof, key=key, beyond=beyond, timeout_s=timeout_s)

    async def written(self, session_id: str, key: str) -> Written | None:
        """See `SupervisorPort.written`."""
        return await (await self._live(session_id)).written(session_id, key)

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        """See `SupervisorPort.resize`."""
        await (await self._live(session_id)).resize(session_id, rows, cols)

    async def signal(self, session_id: str, number: int) -> None:
        """See `SupervisorPort.signal`."""
        await (await self._live(session_id)).signal(session_id, number)

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> Killed:
        """See `SupervisorPort.kill`."""
        return await (await self._live(session_id)).kill(session_id, grace_s=grace_s, ended_by=ended_by)

    async def grown(
        self,
        session_id: str,
        beyond: int,
        *,
        err_beyond: int | None = None,
        rest_s: float = 0.0,
        timeout_s: float = 30.0,
    ) -> Grown:
        """See `SupervisorPort.grown`."""
        port = await self._teller(session_id)
        return await port.grown(session_id, beyond, err_beyond=err_beyond, rest_s=rest_s, timeout_s=timeout_s)

    async def look(self, session_id: str) -> Look | None:
        """See `SupervisorPort.look`."""
        return await (await self._teller(session_id)).look(session_id)
