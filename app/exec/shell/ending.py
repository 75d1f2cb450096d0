"""From a session that has ended to the result of a command."""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import Session, SessionEnd, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.log.output import OutputLog
from shellback.exec.log.plain_text import continuation_bytes, whole_characters
from shellback.exec.shell.results import ExecutionResult

MISSING: Final = 127
NOT_EXECUTABLE: Final = 126
OUT_OF_TIME: Final = -1


async def result_of(
    engine: Engine,
    session: Session,
    *,
    command: tuple[str, ...],
    cwd: str,
    timeout_s: float,
    most: int,
    capture: bool,
) -> ExecutionResult:
    """The result of a session whose time is over; what it printed takes at most `most` bytes.

    Raises:
        BackendUnavailable: How it ended is not known.
    """
    end = session.end or SessionEnd(state=SessionState.TIMED_OUT, duration_s=timeout_s)
    if end.state is SessionState.LOST:
        raise BackendUnavailable(
            f"how session {session.id} ended is not known ({end.evidence}); it may have done all, part or nothing of "
            "its work: look at what it was to change before you run it again"
        )
    said = _said(session, end, command, timeout_s)
    stdout, stderr, truncated = "", "", False
    if capture:
        room = most - len(said.encode()) - 1
        stdout, stderr, truncated = await captured(*engine.streams(session), max(0, room if said else most))
        if said:
            stderr += f"\n{said}" if stderr and not stderr.endswith("\n") else said
    timed_out = end.state is SessionState.TIMED_OUT
    return ExecutionResult(
        exit_code=_exit_code(end),
        stdout=stdout,
        stderr=stderr,
        command=command,
        cwd=cwd,
        duration_seconds=end.duration_s,
        truncated=truncated,
        timed_out=timed_out,
        signal=end.signal,
    )


def _exit_code(end: SessionEnd) -> int:
    match end.state:
        case SessionState.TIMED_OUT:
            return OUT_OF_TIME
        case SessionState.START_FAILED:
            return MISSING if end.errno == errno.ENOENT else NOT_EXECUTABLE
        case _:
            return -end.signal if end.signal is not None else end.exit_code or 0


def _said(session: Session, end: SessionEnd, command: tuple[str, ...], timeout_s: float) -> str:
    """What we add to what the command printed: the last line of stderr."""
    if end.state is SessionState.START_FAILED:
        return f"{command[0]}: {os.strerror(end.errno or errno.EIO)}\n"
    if end.state is not SessionState.TIMED_OUT:
        return ""
    late = "" if session.end is not None else " and has not ended yet"
    return f"Command timed out after {timeout_s:g}s{late}"


_NOTE_BYTES: Final = 64
"""Kept free for the line that says what was left out."""


class Captured(NamedTuple):
    """Both streams as text, within the bytes they share."""

    stdout: str
    stderr: str
    truncated: bool


class _Seen(NamedTuple):
    """One stream: all of it, or its two ends. `size` counts all that was printed, `room` what it takes as text."""

    head: bytes
    tail: bytes
    size: int
    whole: bool

    @property
    def room(self) -> int:
        return len(self.head) if self.whole else self.size


async def captured(out: OutputLog, err: OutputLog | None, most: int) -> Captured:
    """Read both streams; together they take at most `most` bytes, and each is sure of half of them."""
    seen_out = await _seen(out, most)
    seen_err = _Seen(b"", b"", 0, whole=True) if err is None else await _seen(err, most)
    half = most // 2
    out_text, out_cut = _within(seen_out, max(half, most - seen_err.room))
    err_text, err_cut = _within(seen_err, max(half, most - seen_out.room))
    return Captured(out_text, err_text, out_cut or err_cut)


def fitted(text: str, most: int) -> str:
    """Text of at most `most` bytes: the end of it is left out where it has more."""
    data = text.encode()
    return text if len(data) <= most else data[: whole_characters(data[:most])].decode()


async def _seen(log: OutputLog, most: int) -> _Seen:
    size = log.size()
    if size <= most:
        data = await log.raw(0, size)
        # Where there are fewer bytes than that, the log was emptied for its room.
        return _Seen(_text(data), b"", size, whole=len(data) == size)
    head = await log.raw(0, min(size, most))
    tail = await log.raw(max(0, size - most), size)
    return _Seen(_text(head[: whole_characters(head)]), _text(tail[continuation_bytes(tail) :]), size, whole=False)


def _text(data: bytes) -> bytes:
    """The same with every byte that is no text replaced; it may take three times the room."""
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
