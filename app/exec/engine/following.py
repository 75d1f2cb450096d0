"""Waits for output of a session without polling."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from shellback.exec.core.answers import Grown
from shellback.exec.core.errors import ExecError, SessionNotFound
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine

_PAUSE_S: Final = 0.1
"""Pause between two reads of the log when the supervisor cannot be asked."""


class Follower:
    """Waits for output of a session on the host or in a container, also when its supervisor is replaced."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session
        self.out, self._err = engine.streams(session)
        """The log that grows."""

    async def grown(
        self, beyond: int, *, err_beyond: int | None = None, rest_s: float = 0.0, timeout_s: float = 30.0
    ) -> Grown:
        """The sizes when there are more than `beyond` bytes of output, when the session ended, or after `timeout_s`.

        `err_beyond` is the same for stderr. Returns after `rest_s` at the earliest, unless the session has ended. If
        the supervisor cannot be asked or does not know the session yet, reads the log every 0.1 s. `ended` may come
        before the end is in the store; `Engine.wait` waits for that.
        """
        until = time.monotonic() + timeout_s
        while True:
            left = max(0.0, until - time.monotonic())
            if self._session.end is not None:
                return self._seen()
            try:
                told = await self._engine.supervised.port.grown(
                    self._session.id, beyond, err_beyond=err_beyond, rest_s=min(rest_s, left), timeout_s=left
                )
            except ExecError:
                await asyncio.sleep(min(max(rest_s, _PAUSE_S), left))
            else:
                seen = self._seen()
                if not told.ended and (told.size, told.err_size) > (seen.size, seen.err_size):
                    # Output that could not be written is not in the log: the caller would ask again at once.
                    await asyncio.sleep(min(_PAUSE_S, left))
                return told
            try:
                self._session = await self._engine.registry.get(self._session.id)
            except SessionNotFound:
                return Grown(size=self.out.size(), ended=True)
            seen = self._seen()
            more = seen.size > beyond or (err_beyond is not None and seen.err_size > err_beyond)
            if more or seen.ended or time.monotonic() >= until:
                return seen

    def _seen(self) -> Grown:
        return Grown(
            size=self.out.size(),
            err_size=0 if self._err is None else self._err.size(),
            ended=self._session.end is not None,
        )
