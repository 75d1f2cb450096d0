"""A running session as somebody at a terminal has it: what it shows, what comes, and what is typed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, cast

from shellback.exec.core.answers import Grown
from shellback.exec.core.errors import SessionNotFound, SupervisorUnreachable, TaskCompleted
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CallKey, Session, SessionEnd, WindowSize
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.link.supervised import Supervised
from shellback.exec.log.output import OutputLog
from shellback.exec.terminals.screen import Screen, Screens
from shellback.exec.wire import layout

if TYPE_CHECKING:
    from shellback.exec.engine.engine import Engine

T = TypeVar("T")
AWAY_S: Final = 30.0
"""How long a supervisor that is being replaced is waited for."""
_AGAIN_S: Final = 0.5
_ASK_S: Final = 30.0


class Attachment:
    """One session through its supervisor, without an engine: nothing is recorded, acknowledged or started here.

    What is typed is sent once. `host_id`, `supervised`, `output` and `streams` are what
    readers of screens want of an engine.
    """

    def __init__(self, port: SupervisorPort, session: Session, home: Path) -> None:
        self.session = session
        self.host_id = session.host_id
        self.supervised = Supervised(port, Limits())
        self._sessions = home / layout.SESSIONS
        self._screens = Screens(cast("Engine", self))
        self.out, self.err = self.streams(session)

    def output(self, session: Session, *, err: bool = False) -> OutputLog:
        """The log of a session."""
        return OutputLog(self._sessions / session.id, session.id, err=err)

    def streams(self, session: Session) -> tuple[OutputLog, OutputLog | None]:
        """Its log, and that of its second stream where the streams are apart."""
        return self.output(session), self.output(session, err=True) if session.separate_stderr else None

    async def screen(self) -> Screen:
        """What its terminal shows. Raises what `Screens.of` does."""
        return await self._screens.of(self.session)

    async def size(self) -> WindowSize | None:
        """The size of its terminal; None where nobody can tell."""
        look = await self.supervised.look(self.session.id)
        found = None if look is None else look.terminal
        return None if found is None else WindowSize(found.rows, found.cols)

    async def grown(self, beyond: int, err_beyond: int | None) -> Grown:
        """Wait until there is more output than that, or the session has ended.

        Raises:
            SupervisorUnreachable: It was away for 30 s.
        """
        try:
            return await _once_there(
                lambda: self.supervised.grown(
                    self.session.id, beyond, err_beyond=err_beyond, rest_s=0.0, timeout_s=_ASK_S
                )
            )
        except SessionNotFound:
            return Grown(size=self.out.size(), err_size=0 if self.err is None else self.err.size(), ended=True)

    async def write(self, data: bytes) -> None:
        """Type `data`, waiting as long as the program does not read; cancelling leaves a part of it typed.

        Raises:
            TaskCompleted: The session has ended, or closed its input.
            InputUnknown: The supervisor went away: not known how much of it arrived.
        """
        while data:
            # Without a key: those that are remembered for repeats are few, and belong to calls of the agent.
            told = await self.supervised.write(self.session.id, data, eof=False, key=CallKey(""))
            if told["closed"]:
                raise TaskCompleted(self.session.id, "it reads no more input")
            data = data[int(str(told["accepted"])) :]

    async def close_input(self) -> None:
        """Let the program read the end of its input. Raises what `write` does."""
        await self.supervised.write(self.session.id, b"", eof=True, key=CallKey(""))

    async def resize(self, size: WindowSize) -> None:
        """Change the size of its terminal.

        Raises:
            SessionNotFound, TaskCompleted: The session has ended.
            SupervisorUnreachable: It was away for 30 s.
        """
        await _once_there(lambda: self.supervised.resize(self.session.id, size))

    async def end(self) -> SessionEnd | None:
        """Its end, where the supervisor still has that to tell."""
        try:
            seen = await self.supervised.status(self.session.id)
        except SupervisorUnreachable:
            return None
        return None if seen is None else seen.end


async def _once_there(asking: Callable[[], Awaitable[T]]) -> T:
    """Ask the supervisor, again where it is being replaced: for what changes nothing when it is done twice."""
    since = time.monotonic()
    while True:
        try:
            return await asking()
        except SupervisorUnreachable:
            if time.monotonic() - since > AWAY_S:
                raise
            await asyncio.sleep(_AGAIN_S)
