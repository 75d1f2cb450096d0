"""The supervisor's answers as values of the engine."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Final, Literal, cast

from shellback.exec.core.errors import (
    ExecError,
    InvalidCommand,
    LimitReached,
    PtyError,
    SessionNotFound,
    SpawnFailed,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.wire.fields import SESSION_ID
from shellback.exec.wire.protocol import ExitRecord, Message

log = logging.getLogger(__name__)

SILENT: Final = (
    "the supervisor in {home} does not answer: it is stopped, or hangs; nothing is started in its place until it ends"
)
MISUNDERSTOOD: Final = (
    "what listens in {home} says what this program does not understand: {said}; it may be of another version: "
    "let what runs end, then start the supervisor anew"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The output of a session so far, in bytes, and whether the session has ended."""

    size: int
    err_size: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A terminal as the kernel reports it: rows, columns, echo, line mode, and its foreground process group."""

    rows: int
    cols: int
    echo: bool
    canonical: bool
    foreground: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The present state of a running session.

    `pid` is its main process, `quiet_s` the time since its last output. `reader` is the process that waits for input,
    or 0. `how` is `read` if it reads, `poll` if it waits for several descriptors, `unknown` if the kernel does not show
    it.
    """

    pid: int
    quiet_s: float
    terminal: Terminal | None = None
    reader: int = 0
    name: str = ""
    how: Literal["read", "poll", "none", "unknown"] = "unknown"


def looked(answer: Message) -> Look | None:
    """The look in an answer; None if the session does not run."""
    found = answer.get("look")
    if found is None:
        return None
    terminal = found.pop("terminal", None)
    return Look(**found, terminal=None if terminal is None else Terminal(**terminal))


def named(records: object) -> list[ExitRecord]:
    """The records that name their session; others are logged, since they cannot be reported."""
    found: list[ExitRecord] = []
    for record in cast("list[object]", records) if isinstance(records, list) else [records]:
        name = cast("Message", record).get("session_id") if isinstance(record, dict) else None
        if isinstance(name, str) and SESSION_ID.match(name):
            found.append(cast("ExitRecord", cast("object", record)))
        else:
            log.error("the supervisor tells an end that names no session: %s", json.dumps(record)[:200])
    return found


def checked(answer: Message, message: Message) -> Message:
    """The answer to `message`; an ExecError by the code of the answer if it is a refusal."""
    if answer["ok"]:
        return answer
    raise _error(str(answer["error"]), str(answer["message"]), str(message.get("session_id", "")))


_ERRORS: Final[dict[str, type[ExecError]]] = {
    "descriptors": LimitReached,
    "busy": LimitReached,
    "no_pty": PtyError,
    "no_stdin": InvalidCommand,
    "bad_request": InvalidCommand,
    "unknown_op": SupervisorUnreachable,
    "unsupported_version": SupervisorUnreachable,
    "malformed": SupervisorUnreachable,
}


def _error(code: str, text: str, session_id: str) -> ExecError:
    if code == "not_found":
        return SessionNotFound(session_id)
    if code == "ended":
        return TaskCompleted(session_id, "it is over")
    return _ERRORS.get(code, SpawnFailed)(text)
