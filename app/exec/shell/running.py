"""Commands that a shell has started, persistent shells, and their results."""

from __future__ import annotations

import codecs
import errno
import os
import signal
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self

from shellback.exec.core.end_text import lost_text
from shellback.exec.core.errors import BackendUnavailable, CommandDenied, InvalidCommand, TaskCompleted
from shellback.exec.core.identity import call_key
from shellback.exec.core.limits import BACKGROUND_TIMEOUT_MAX_S
from shellback.exec.core.model import (
    SHELL,
    CallOrigin,
    CommandSpec,
    EndedBy,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
    WindowSize,
)
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.following import Follower
from shellback.exec.engine.sessions import Sessions
from shellback.exec.log.output import OutputLog, Slice
from shellback.exec.log.plain_text import continuation_bytes, whole_characters
from shellback.exec.persistent import Executed, PersistentShells, Read
from shellback.exec.shell.permit import Authority
from shellback.exec.shell.protocol import ExecutionResult
from shellback.exec.shell.words import CommandValidator

_READ: Final = 256 * 1024
_REST_S: Final = 0.005
"""The least seconds between two pieces of streamed output."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output. On a terminal both streams are one, `stdout`."""

    stream: Literal["stdout", "stderr"]
    text: str


class Running:
    """A background command, the same for a replay of the call that started it.

    It is an ordinary session: it outlives this object, and in a worker a callback reports its end too. Cancelling a
    method ends the wait, not the command.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
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
        """The present state of the session."""
        return await self._engine.registry.get(self.id)

    async def wait(self, timeout_seconds: float | None = None) -> ExecutionResult:
        """Wait for its end, and return its result.

        Raises:
            TimeoutError: It has not ended after `timeout_seconds`; it continues.
            RuntimeError: Its end is unknown.
        """
        most = BACKGROUND_TIMEOUT_MAX_S * 2 if timeout_seconds is None else timeout_seconds
        session = await self._engine.wait(self.id, up_to=most)
        if session.end is None:
            raise TimeoutError(f"session {self.id} has not ended after {most:g} s; it runs on")
        return await self.result(session)

    async def output(self) -> tuple[str, str]:
        """Its output so far, (stdout, stderr), within the bound of a result."""
        session = await self.session()
        out, err = self._engine.streams(session)
        seen = await captured(out, err, self._most)
        return seen.stdout, seen.stderr

    async def stream(self) -> AsyncGenerator[Chunk]:
        """Yield its output from the beginning to its end; closing the generator does not affect the command.

        A line replaces output that the log dropped before it was read here, and says how much was dropped.
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
        """Write to its input, once for this call; returns the number of bytes that it read.

        Raises:
            InvalidCommand: Its input is not open, or the data exceeds 64 KiB.
            TaskCompleted: It has ended.
            InputUnknown: It is unknown whether the data arrived; it is not written again.
        """
        given = data.encode() if isinstance(data, str) else data
        return await self._sessions.write(self.id, given, self._origin(), tool="shell", by_model=False)

    async def close_stdin(self) -> None:
        """Close its input. Raises as `write`."""
        await self._sessions.write(self.id, b"", self._origin(), tool="shell", eof=True, by_model=False)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal; PtyError without a terminal, TaskCompleted if it has ended."""
        await self._sessions.resize(self.id, WindowSize(rows, cols))

    async def send_signal(self, number: int) -> None:
        """Send a signal to its process tree; SIGKILL works as `kill`. Each call sends it: there is no key.

        Raises:
            InvalidCommand: There is no such signal.
            TaskCompleted: It has ended; no process was signalled.
        """
        if number not in signal.valid_signals():
            raise InvalidCommand(f"signal is {number}; give one of signal.Signals")
        if number == signal.SIGKILL:
            await self.kill()
            return
        await self._engine.supervised.port.signal(self.id, int(number))

    async def kill(self) -> ExecutionResult:
        """End its process tree by SIGTERM, and SIGKILL two seconds later; an ended command keeps its result."""
        session = await self.session()
        if session.end is None:
            try:
                session, _ = await self._sessions.kill(self.id, self._origin(), by=EndedBy.AGENT)
            except TaskCompleted:
                session = await self.session()
        return await self.result(session)

    async def result(self, session: Session, *, capture: bool = True) -> ExecutionResult:
        """The result of the ended or timed-out `session`; without `capture` both texts are "".

        Raises:
            RuntimeError: Its end is unknown.
        """
        end = session.end or SessionEnd(state=SessionState.TIMED_OUT, duration_s=self._timeout)
        if end.state is SessionState.LOST:
            raise BackendUnavailable(lost_text(session.id, end))
        stdout, stderr, truncated = "", "", False
        if capture:
            said = self._said(end, late="" if session.end is not None else " and has not ended yet")
            room = self._most - len(said.encode()) - 1
            streams = self._engine.streams(session)
            stdout, stderr, truncated = await captured(*streams, max(0, room if said else self._most))
            if said:
                stderr += f"\n{said}" if stderr and not stderr.endswith("\n") else said
        return ExecutionResult(
            exit_code=_exit_code(end),
            stdout=stdout,
            stderr=stderr,
            command=self.command,
            cwd=self.cwd,
            duration_seconds=end.duration_s,
            truncated=truncated,
            timed_out=end.state is SessionState.TIMED_OUT,
            signal=end.signal,
        )

    def _said(self, end: SessionEnd, *, late: str) -> str:
        """The line that is added to the end of stderr."""
        if end.state is SessionState.START_FAILED:
            return f"{self.command[0]}: {os.strerror(end.errno or errno.EIO)}\n"
        return f"Command timed out after {self._timeout:g}s{late}" if end.state is SessionState.TIMED_OUT else ""


class _Reader:
    """Reads one log from where it stopped."""

    def __init__(self, name: Literal["stdout", "stderr"], log: OutputLog) -> None:
        self.name: Literal["stdout", "stderr"] = name
        self._log = log
        self.at = 0
        self._dropped = 0
        # A piece may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def new(self, *, last: bool) -> AsyncGenerator[str]:
        """Yield new output; with `last` also the bytes of an incomplete character."""
        size = self._log.size()
        while self.at < size:
            end = min(size, self.at + _READ)
            data, missing = await self._log.shown(self.at, end)
            self.at = end
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
        """The line for dropped output; the character before it may be incomplete."""
        cut = self._decoder.decode(b"", final=True)
        dropped, self._dropped = self._dropped + more, 0
        return f"{cut}\n[{dropped:,} bytes were dropped here, not readable]\n"


MISSING: Final = 127
NOT_EXECUTABLE: Final = 126
OUT_OF_TIME: Final = -1


def _exit_code(end: SessionEnd) -> int:
    match end.state:
        case SessionState.TIMED_OUT:
            return OUT_OF_TIME
        case SessionState.START_FAILED:
            return MISSING if end.errno == errno.ENOENT else NOT_EXECUTABLE
        case _:
            return -end.signal if end.signal is not None else end.exit_code or 0


_NOTE_BYTES: Final = 64
"""Bytes that are reserved for the line about left-out output."""


class Captured(NamedTuple):
    """Both streams as text, within their common bound."""

    stdout: str
    stderr: str
    truncated: bool


class _Seen(NamedTuple):
    """One stream, whole or its two ends. `size` is the size of the whole output, `room` the size of this text."""

    head: bytes
    tail: bytes
    size: int
    whole: bool

    @property
    def room(self) -> int:
        return len(self.head) if self.whole else self.size


async def captured(out: OutputLog, err: OutputLog | None, most: int) -> Captured:
    """Both streams, together at most `most` bytes; each stream may use at least half."""
    seen_out = await _seen(out, most)
    seen_err = _Seen(b"", b"", 0, whole=True) if err is None else await _seen(err, most)
    half = most // 2
    out_text, out_cut = _within(seen_out, max(half, most - seen_err.room))
    err_text, err_cut = _within(seen_err, max(half, most - seen_out.room))
    return Captured(out_text, err_text, out_cut or err_cut)


def fitted(text: str, most: int) -> str:
    """A text, cut at its end to at most `most` bytes."""
    data = text.encode()
    return text if len(data) <= most else data[: whole_characters(data[:most])].decode()


async def _seen(log: OutputLog, most: int) -> _Seen:
    size = log.size()
    if size <= most:
        # If bytes are dropped, the log was emptied to free disk space.
        data, dropped = await log.shown(0, size)
        return _Seen(_text(data), b"", size, whole=not dropped)
    head, _ = await log.shown(0, min(size, most))
    tail, _ = await log.shown(max(0, size - most), size)
    return _Seen(_text(head[: whole_characters(head)]), _text(tail[continuation_bytes(tail) :]), size, whole=False)


def _text(data: bytes) -> bytes:
    """The data with invalid bytes replaced; it may be three times as long."""
    return data.decode("utf-8", "replace").encode()


def _within(seen: _Seen, most: int) -> tuple[str, bool]:
    if seen.whole and len(seen.head) <= most:
        return seen.head.decode(), False
    tail_of = seen.head if seen.whole else seen.tail
    room = max(0, most - _NOTE_BYTES)
    head = seen.head[: room - room // 2]
    head = head[: whole_characters(head)]
    tail = tail_of[len(tail_of) - min(room // 2, len(tail_of)) :]
    tail = tail[continuation_bytes(tail) :]
    note = f"\n[left out here: the middle of {seen.size} bytes]\n"
    return fitted(f"{head.decode()}{note}{tail.decode()}", most), True


_TOOL = "shell"


class ShellSession:
    """A persistent shell in its terminal. It outlives this object; leaving its context ends it.

    The authority of the shell that made it permits each command. Cancelling a method ends only the wait.
    """

    def __init__(
        self,
        engine: Engine,
        shells: PersistentShells,
        authority: Authority,
        session: Session,
        prompt: str,
        origin: Callable[[], CallOrigin],
        validator: CommandValidator,
    ) -> None:
        self.id: SessionId = session.id
        self.prompt = prompt
        self._engine = engine
        self._shells = shells
        self._authority = authority
        self._session = session
        self._origin = origin
        self._validator = validator

    async def session(self) -> Session:
        """Its session as it is now."""
        return await self._engine.registry.get(self.id)

    async def exec(self, command: str, *, timeout_seconds: float = 30.0, raw: bool = False) -> Executed:
        """Run a command; what it printed, its status, and the directory that it left the shell in.

        After `timeout_seconds`, at most 300, it runs on, and the result says so.

        Raises:
            CommandDenied: It may not run.
            InvalidCommand: It is not acceptable, or another one runs (`ShellBusy`).
            TaskCompleted: The shell has ended.
        """
        self._validator.validate(command)
        origin = self._origin()
        by, digest = "", ""
        if await self._engine.store.recalled(call_key(origin)) is None:
            # What holds the shell holds its commands: one that may write runs none that may only read.
            spec = CommandSpec(command=command, cwd=self._session.cwd, kind=SHELL, profile=self._session.profile)
            grant = await self._authority.permit(spec, self._session.conversation_id)
            if grant.spec.profile != self._session.profile:
                raise CommandDenied(f"this command has no approval, and shell {self.id} cannot enforce read_only")
            by, digest = grant.by, grant.digest
        done = await self._shells.exec(
            self.id, command, origin, timeout_s=timeout_seconds, raw=raw, tool=_TOOL, by_model=False, granted_by=by,
            digest=digest,
        )  # fmt: skip
        seen = await self._printed(done.slice)
        return replace(done, output=seen.text, slice=seen)

    async def write(self, data: str | bytes) -> int:
        """Type into what runs in the shell, once for this call; the number of bytes it took. Raises what `exec` does.

        InputUnknown: Not known whether it arrived; it is not written again.
        """
        given = data.encode() if isinstance(data, str) else data
        return await self._shells.write(self.id, given, self._origin(), tool=_TOOL, by_model=False)

    async def read(self, *, raw: bool = False) -> Read:
        """What was printed since it was read, or a command returned, last; with `raw` as a terminal gets it."""
        found = await self._shells.read(self.id, self._origin(), raw=raw)
        return found if raw else replace(found, output=(await self._printed(found.slice)).text)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal.

        Raises:
            InvalidCommand: The size is out of range.
            TaskCompleted: The shell has ended.
        """
        await self._shells.resize(self.id, WindowSize(rows, cols), self._session.conversation_id)

    async def close(self) -> None:
        """End the shell and all that runs in it; repeating it changes nothing."""
        try:
            await self._shells.kill(self.id, self._origin())
        except TaskCompleted:
            return

    async def _printed(self, told: Slice) -> Slice:
        """The same range for code, which gets every character that is no part of a control sequence."""
        return await self._engine.output(self._session).with_controls().ends(told.start, told.end)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
