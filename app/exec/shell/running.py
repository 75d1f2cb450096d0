"""A command that a shell has started and does not wait for: read, written to, signalled, ended."""

from __future__ import annotations

import codecs
import signal
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Literal

from shellback.exec.core.errors import InvalidCommand, TaskCompleted
from shellback.exec.core.limits import BACKGROUND_TIMEOUT_MAX_S
from shellback.exec.core.model import CallOrigin, EndedBy, Session, SessionId, WindowSize
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.log.output import OutputLog
from shellback.exec.shell.ending import captured, result_of
from shellback.exec.shell.results import ExecutionResult

_READ: Final = 256 * 1024
_REST_S: Final = 0.005
"""The pieces of a command that prints without a pause are not closer together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of what a command printed. On a terminal both streams are one, `stdout`."""

    stream: Literal["stdout", "stderr"]
    text: str


class Running:
    """A command in the background, the same for a repeat of the call that started it.

    It is a session like any other: it outlives this object, and in a worker a callback tells its end too. Cancelling
    a method ends the waiting, not the command.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        *,
        command: tuple[str, ...],
        cwd: str,
        timeout_s: float,
        most: int,
        origin: Callable[[], CallOrigin],
    ) -> None:
        self.id: SessionId = session.id
        self.command = command
        self.cwd = cwd
        self._engine = engine
        self._sessions = Sessions(engine, session.conversation_id)
        self._timeout = timeout_s
        self._most = most
        self._origin = origin

    async def session(self) -> Session:
        """The session as it is now."""
        return await self._engine.registry.get(self.id)

    async def wait(self, timeout_seconds: float | None = None) -> ExecutionResult:
        """Its result once it has ended.

        Raises:
            TimeoutError: It has not after `timeout_seconds`; it runs on.
            RuntimeError: How it ended is not known.
        """
        most = BACKGROUND_TIMEOUT_MAX_S * 2 if timeout_seconds is None else timeout_seconds
        session = await self._engine.wait(self.id, up_to=most)
        if session.end is None:
            raise TimeoutError(f"session {self.id} has not ended after {most:g} s; it runs on")
        return await self._result(session)

    async def output(self) -> tuple[str, str]:
        """What it has printed so far, (stdout, stderr), within the bytes that a result may have."""
        session = await self.session()
        out, err = self._engine.streams(session)
        seen = await captured(out, err, self._most)
        return seen.stdout, seen.stderr

    async def stream(self) -> AsyncGenerator[Chunk]:
        """What it prints, as it comes, from the beginning to its end. Leaving leaves the command alone.

        What its log had no room for before it was read here is missing, and a line in its place says how much.
        """
        session = await self.session()
        out, err = self._engine.streams(session)
        readers = [_Reader("stdout", out), *([_Reader("stderr", err)] if err is not None else [])]
        follower = Follower(self._engine, session)
        ended = False
        while True:
            for reader in readers:
                async for text in reader.new(last=ended):
                    yield Chunk(reader.name, text)
            if ended:
                return
            out_at, err_at = readers[0].at, readers[-1].at if err is not None else None
            ended = (await follower.grown(out_at, err_beyond=err_at, rest_s=_REST_S)).ended

    async def write(self, data: str | bytes) -> int:
        """Write to its input, once for this call; the number of bytes it took.

        Raises:
            InvalidCommand: It was started without an open input, or this is more than 64 KiB.
            TaskCompleted: It has ended.
            InputUnknown: Not known whether it arrived; it is not written again.
        """
        given = data.encode() if isinstance(data, str) else data
        return await self._sessions.write(self.id, given, self._origin(), tool="shell", by_model=False)

    async def close_stdin(self) -> None:
        """Let it read the end of its input. Raises what `write` does."""
        await self._sessions.write(self.id, b"", self._origin(), tool="shell", eof=True)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal.

        Raises:
            PtyError: It has none.
            TaskCompleted: It has ended.
        """
        await self._sessions.resize(self.id, WindowSize(rows, cols))

    async def send_signal(self, number: int) -> None:
        """Send a signal to every process of its tree; SIGKILL ends it as `kill` does. Again is again: it has no key.

        Raises:
            InvalidCommand: There is no such signal.
            TaskCompleted: It has ended; nothing was signalled.
        """
        if number not in signal.valid_signals():
            raise InvalidCommand(f"signal is {number}; give one of signal.Signals")
        if number == signal.SIGKILL:
            await self.kill()
            return
        await self._engine.supervised.signal(self.id, int(number))

    async def kill(self) -> ExecutionResult:
        """End its whole tree, SIGTERM and two seconds before SIGKILL; its result. One that has ended keeps its end."""
        session = await self.session()
        if session.end is None:
            try:
                session, _ = await self._sessions.kill(self.id, self._origin(), by=EndedBy.AGENT)
            except TaskCompleted:
                session = await self.session()
        return await self._result(session)

    async def _result(self, session: Session) -> ExecutionResult:
        return await result_of(
            self._engine, session, command=self.command, cwd=self.cwd, timeout_s=self._timeout, most=self._most,
            capture=True,
        )  # fmt: skip


class _Reader:
    """Reads one log from where it stopped."""

    def __init__(self, name: Literal["stdout", "stderr"], log: OutputLog) -> None:
        self.name: Literal["stdout", "stderr"] = name
        self._log = log
        self.at = 0
        self._dropped = 0
        # A piece may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def new(self, *, last: bool) -> AsyncGenerator[str]:
        """What has been added since; with `last` also what is no character yet."""
        size = self._log.size()
        while self.at < size:
            end = min(size, self.at + _READ)
            data = await self._log.raw(self.at, end)
            missing, self.at = end - self.at - len(data), end
            if self._dropped and data:
                yield self._note(missing)
                missing = 0
            if text := self._decoder.decode(data):
                yield text
            self._dropped += missing
        if last and self._dropped:
            yield self._note(0)
        if last and (text := self._decoder.decode(b"", final=True)):
            yield text

    def _note(self, more: int) -> str:
        """What was dropped to keep the log within its bound; the character before it may have lost its rest."""
        cut = self._decoder.decode(b"", final=True)
        dropped, self._dropped = self._dropped + more, 0
        return f"{cut}\n[{dropped:,} bytes were dropped here, not readable]\n"
