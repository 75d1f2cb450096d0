"""From a session that has ended to the result of a command."""

from __future__ import annotations

import errno
import os
from typing import Final

from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import Session, SessionEnd, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.shell.captured import captured
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
