"""What client and supervisor say to each other: frames of JSON behind a 4-byte length.

A request is `{"id": n, "op": name, ...}`; its answer `{"id": n, "ok": true, ...}` or
`{"id": n, "ok": false, "error": code, "message": text}`. `{"event": "exit", "record": {...}}`
comes by itself to whoever said hello with `watch`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import struct
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict, TypeVar, cast

VERSION: Final = 1
OLDEST: Final = 1
"""The oldest version of a supervisor that a client of this one can still speak to."""
MAX_FRAME: Final = 2 * 1024 * 1024
MAX_ANSWER: Final = 64 * 1024 * 1024
SESSION_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}\Z")

Message = dict[str, Any]
_T = TypeVar("_T")
_LENGTH: Final = struct.Struct(">I")


class ProtocolError(Exception):
    """Raised for bytes that are not a frame, or a frame that is too long."""


class Refused(Exception):
    """A request that is answered with an error code and acts on nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ExitRecord(TypedDict):
    """How a session ended; `state` is one of exited, signaled, timed_out, start_failed, lost.

    Exactly one of `exit_code` and `signal` is set after an end that the kernel reported, else
    neither, and `errno` or `evidence` says why. Byte counts of `err` are 0 where streams are one.
    `known` is the last tick since boot at which the number `pid` was the process's for certain.
    """

    version: int
    session_id: str
    boot_id: str
    pid: int | None
    starttime: int | None
    state: str
    exit_code: int | None
    signal: int | None
    errno: int | None
    evidence: str | None
    ended_by: str
    started_at: float | None
    ended_at: float
    duration_s: float
    bytes_total: int
    bytes_dropped: int
    err_bytes_total: int
    err_bytes_dropped: int
    survivors: list[int]
    known: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Everything the supervisor needs to start one command.

    `env` is the whole environment but the session's marker. `uid` None runs as we are; `pty` is
    (rows, cols); `stdin` None is /dev/null, else it is written and then closed unless
    `keep_stdin_open`. `timeout_s` 0 is none, `log_cap` 0 is none.
    """

    session_id: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    boot_id: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    pty: tuple[int, int] | None = None
    stdin: bytes | None = None
    keep_stdin_open: bool = False
    separate_stderr: bool = False
    timeout_s: float = 0.0
    grace_s: float = 1.0
    log_cap: int = 64 * 1024 * 1024
    background: bool = False
    umask: int = 0o022

    def to_wire(self) -> Message:
        return {
            "session_id": self.session_id,
            "argv": self.argv,
            "env": self.env,
            "cwd": self.cwd,
            "boot_id": self.boot_id,
            "uid": self.uid,
            "gid": self.gid,
            "groups": self.groups,
            "pty": None if self.pty is None else {"rows": self.pty[0], "cols": self.pty[1]},
            "stdin": None if self.stdin is None else base64.b64encode(self.stdin).decode(),
            "keep_stdin_open": self.keep_stdin_open,
            "separate_stderr": self.separate_stderr,
            "timeout_s": self.timeout_s,
            "grace_s": self.grace_s,
            "log_cap": self.log_cap,
            "background": self.background,
            "umask": self.umask,
        }

    @classmethod
    def from_wire(cls, message: Message) -> StartRequest:
        """Check every field.

        Raises:
            Refused: A field is missing or of the wrong kind.
        """
        argv = cast("list[object]", field_of(message, "argv", list))
        env = cast("dict[str, object]", field_of(message, "env", dict))
        words = tuple(word for word in argv if isinstance(word, str) and _encodes(word))
        if not words or len(words) != len(argv):
            raise Refused("bad_request", "argv is not a list of strings that the kernel could be given")
        for name, value in env.items():
            if not name or "=" in name or not _encodes(name) or not isinstance(value, str) or not _encodes(value):
                raise Refused("bad_request", "env is not a table of names without '=' to values without NUL")
        cwd = field_of(message, "cwd", str)
        if not _encodes(cwd):
            raise Refused("bad_request", "cwd is not a path")
        groups = cast("list[object]", field_of({"groups": [], **message}, "groups", list))
        stdin = message.get("stdin")
        pty = message.get("pty")
        return cls(
            session_id=session_id(message),
            argv=words,
            env=cast("dict[str, str]", env),
            cwd=cwd,
            boot_id=field_of(message, "boot_id", str),
            uid=optional_id(message, "uid"),
            gid=optional_id(message, "gid"),
            groups=tuple(_id(group) for group in groups),
            pty=None if pty is None else size_of(pty),
            stdin=None if stdin is None else bytes_of(stdin),
            keep_stdin_open=bool(message.get("keep_stdin_open")),
            separate_stderr=bool(message.get("separate_stderr")),
            timeout_s=number_of(message, "timeout_s", 0.0),
            grace_s=number_of(message, "grace_s", 1.0),
            log_cap=int(number_of(message, "log_cap", 0)),
            background=bool(message.get("background")),
            umask=int(number_of(message, "umask", 0o022)) & 0o777,
        )


def field_of(message: Message, name: str, kind: type[_T]) -> _T:
    value = message.get(name)
    if not isinstance(value, kind):
        raise Refused("bad_request", f"{name} is missing or not a {kind.__name__}")
    return value


def session_id(message: Message) -> str:
    value = message.get("session_id")
    if not isinstance(value, str) or not SESSION_ID.match(value):
        raise Refused("bad_request", "session_id is missing or not a plain name")
    return value


def number_of(message: Message, name: str, default: float) -> float:
    value = message.get(name, default)
    if not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise Refused("bad_request", f"{name} is not a number from 0")
    return value


def optional_id(message: Message, name: str) -> int | None:
    return None if message.get(name) is None else _id(message[name])


def _id(value: object) -> int:
    # The last number means "as it is" to the kernel, and those above it wrap around to root.
    if not isinstance(value, int) or not 0 <= value < (1 << 32) - 1:
        raise Refused("bad_request", "not the id of a user or group")
    return value


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def size_of(value: object) -> tuple[int, int]:
    if isinstance(value, dict):
        size = cast("dict[str, object]", value)
        rows, cols = size.get("rows"), size.get("cols")
        if isinstance(rows, int) and isinstance(cols, int) and 1 <= rows <= 9999 and 1 <= cols <= 9999:
            return rows, cols
    raise Refused("bad_request", "rows and cols are not numbers from 1 to 9999")


def bytes_of(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        raise Refused("bad_request", "not base64") from None


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a stream of bytes into messages; keeps at most one unfinished frame."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[Message]:
        """Messages that are complete now.

        Raises:
            ProtocolError: The peer does not speak this protocol.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        while len(buffer) >= 4:
            end = 4 + _LENGTH.unpack_from(buffer)[0]
            if end > self._limit:
                raise ProtocolError(f"a frame of {end} bytes; the limit is {self._limit}")
            if len(buffer) < end:
                break
            try:
                message = json.loads(buffer[4:end])
            except (ValueError, RecursionError) as error:
                raise ProtocolError("a frame that is not JSON") from error
            if not isinstance(message, dict):
                raise ProtocolError("a frame that is not an object")
            messages.append(cast("Message", message))
            del buffer[:end]
        return messages
