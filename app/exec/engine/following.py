"""Being told that a session has printed something, instead of looking again and again."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from shellback.exec.core.answers import Grown
from shellback.exec.core.errors import ExecError, SessionNotFound
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine

_PAUSE_S: Final = 0.1
"""How long output may go unseen where nobody can be asked for it."""


class Follower:
    """Tells when a session's output grows, whoever runs it: the host, a container, a supervisor that is replaced."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self._engine = engine
        self._session = session
        self.out, self._err = engine.streams(session)
        """The log that grows."""

    async def grown(
        self, beyond: int, *, err_beyond: int | None = None, rest_s: float = 0.0, timeout_s: float = 30.0
    ) -> Grown:
        """The sizes once there are more than `beyond` bytes of output, or the session has ended, or after `timeout_s`.

        `err_beyond` asks the same of the second stream. What is so already is told at once, but never before `rest_s`
        seconds have passed, unless the session has ended. Where the supervisor cannot be asked, or knows nothing
        of the session yet, the log is looked at every 0.1 s. `ended` may be told a moment before the store has the
        end: `Engine.wait` has it. Cancelling leaves nothing behind.
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
                    # What no disk takes nobody can read: whoever asks for it would ask again at once.
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
