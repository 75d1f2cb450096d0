"""The protocol of client and supervisor: frames of JSON after a 4-byte length.

A request is `{"id": n, "op": name, ...}`; its answer `{"id": n, "ok": true, ...}` or `{"id": n, "ok": false, "error":
code, "message": text}`. A client that said hello with `watch` also gets `{"event": "exit", "record": {...}}`. A record
is accepted only as a whole: a file may be damaged, a peer may be another program.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, fields
from typing import Final, NotRequired, TypedDict, cast

from shellback.exec.wire.fields import (
    SESSION_ID,
    Message,
    Refused,
    bytes_of,
    encodes,
    field_of,
    id_of,
    number_of,
    optional_id,
    place_of,
    session_id,
    size_of,
    words_of,
)
from shellback.exec.wire.sandbox import Sandbox

VERSION: Final = 4
"""Of protocol and state directory; no other version is accepted. 1 to 3 were never released."""
MAX_FRAME: Final = 2 * 1024 * 1024
MAX_ANSWER: Final = 64 * 1024 * 1024

_LENGTH: Final = struct.Struct(">I")
_json: Final = json.JSONEncoder(separators=(",", ":")).encode


class ProtocolError(Exception):
    """Raised for bytes that are not a frame, and for a frame that is too long."""


class Loss(TypedDict):
    """A cover that was lost while a command ran: file, time (seconds since the epoch), duration.

    `how`: restored, ended (the commands were ended), or changed (the file changed after its cover was restored). `keys`
    are the names of changed settings of a git configuration, never values.
    """

    path: str
    at: float
    ms: float
    how: str
    keys: list[str]


class ExitRecord(TypedDict):
    """How a session ended; `state` is one of exited, signaled, timed_out, start_failed, lost.

    If the kernel reported the end, exactly one of `exit_code` and `signal` is set; otherwise `errno` or `evidence` says
    why not. Byte counts of `err` are 0 without a separate stream. `known` is the last tick since boot at which `pid`
    certainly belonged to the process. `init` is pid and start of the first process of its PID namespace, if it had one.
    `losses` are of covers. `log_errno` is why some output could not be written; with `uncounted` more may be missing.
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
    known: int
    init: list[int] | None
    losses: NotRequired[list[Loss]]
    log_errno: NotRequired[int]
    uncounted: NotRequired[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Everything the supervisor needs to start one command.

    `env` is the whole environment without the marker. `uid` None means our own; `pty` is (rows, cols). `stdin` None is
    /dev/null; other input is written, then closed unless `keep_stdin_open`. 0 means no `timeout_s`, no `log_cap`. With
    `sandbox`, `argv`, `env` and `cwd` are as seen inside. `fence` has the writable paths, None is no fence. `place` is
    the required device and inode of `cwd`, None is any. `lifetime` is turn, conversation or detached, `owner` its turn,
    `scope` its conversation; empty, the command runs until its own end.
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
    sandbox: Sandbox | None = None
    fence: tuple[str, ...] | None = None
    place: tuple[int, int] | None = None
    lifetime: str = ""
    owner: str = ""
    scope: str = ""

    def to_wire(self) -> Message:
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "pty": None if self.pty is None else {"rows": self.pty[0], "cols": self.pty[1]},
            "stdin": None if self.stdin is None else base64.b64encode(self.stdin).decode(),
            "sandbox": None if self.sandbox is None else self.sandbox.to_wire(),
        }

    @classmethod
    def from_wire(cls, message: Message) -> StartRequest:
        """Check all fields; raises Refused if one is missing or of the wrong kind."""
        env = cast("dict[str, object]", field_of(message, "env", dict))
        words = words_of(message, "argv")
        if not words:
            raise Refused("bad_request", "argv is empty")
        for name, value in env.items():
            if not name or "=" in name or not encodes(name) or not isinstance(value, str) or not encodes(value):
                raise Refused("bad_request", "env is not a table of names without '=' to values without NUL")
        cwd = field_of(message, "cwd", str)
        if not encodes(cwd):
            raise Refused("bad_request", "cwd is not a path")
        groups = cast("list[object]", field_of(message, "groups", list))
        stdin, pty, sandbox = message.get("stdin"), message.get("pty"), message.get("sandbox")
        plain: Message = {
            **{name: field_of(message, name, str) for name in ("boot_id", "lifetime", "owner", "scope")},
            **{name: bool(message.get(name)) for name in ("keep_stdin_open", "separate_stderr", "background")},
        }
        return cls(
            session_id=session_id(message),
            argv=words,
            env=cast("dict[str, str]", env),
            cwd=cwd,
            uid=optional_id(message, "uid"),
            gid=optional_id(message, "gid"),
            groups=tuple(map(id_of, groups)),
            pty=None if pty is None else size_of(pty),
            stdin=None if stdin is None else bytes_of(stdin),
            timeout_s=number_of(message, "timeout_s", 0.0),
            grace_s=number_of(message, "grace_s", 1.0),
            log_cap=int(number_of(message, "log_cap", 0)),
            umask=int(number_of(message, "umask", 0o022)) & 0o777,
            sandbox=None if sandbox is None else Sandbox.from_wire(sandbox),
            fence=None if message.get("fence") is None else words_of(message, "fence"),
            place=place_of(message.get("place")),
            **plain,
        )


def encode(message: Message) -> bytes:
    body = _json(message).encode()
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Splits a stream of bytes into messages; keeps one unfinished frame at most."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now; raises ProtocolError if the bytes are not of this protocol."""
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


KILLERS: Final = frozenset({"agent", "person", "timeout", "lifetime", "shutdown"})
"""Allowed `ended_by` values of a kill; workers reject others."""
PROTECTION: Final = "protection"
"""`ended_by` of commands that lost a cover for good; clients cannot use it."""
LEASE: Final = "lease"
"""`ended_by` of commands whose host was not heard of by the database; clients cannot use it."""
_ENDERS: Final = KILLERS | {"itself", PROTECTION, LEASE}
_EVIDENCE: Final = frozenset({
    "never_started", "supervisor_killed", "machine_rebooted", "container_restarted", "host_unreachable",
    "record_unreadable",
})  # fmt: skip
_NUMBERS: Final = {"exit_code": (0, 255), "signal": (1, 64), "errno": (1, 4095)}
_SIZES: Final = ("bytes_total", "bytes_dropped", "err_bytes_total", "err_bytes_dropped")
_NEEDED: Final = ExitRecord.__annotations__.keys() - {"losses", "log_errno", "uncounted"}
_SAYS: Final = {
    "exited": ({"exit_code"},),
    "signaled": ({"signal"},),
    "timed_out": ({"exit_code"}, {"signal"}),
    "start_failed": ({"errno"},),
    "lost": ({"evidence"},),
}
"""The fields of a record that are set in each state; the others are None."""


def exit_record(value: object, session_id: str | None = None) -> ExitRecord | None:
    """`value` if it is a complete record of our version, and of `session_id`; else None."""
    if not isinstance(value, dict):
        return None
    record = cast("Message", value)
    says = {name for name in (*_NUMBERS, "evidence") if record.get(name) is not None}
    name = record.get("session_id")
    whole = (
        record.keys() >= _NEEDED
        and record["version"] == VERSION
        and isinstance(name, str)
        and (name == session_id if session_id is not None else SESSION_ID.match(name) is not None)
        and isinstance(record["boot_id"], str)
        and _known(record["state"], _SAYS)
        and says in _SAYS[record["state"]]
        and all(_whole(record[one], *_NUMBERS[one]) for one in says & _NUMBERS.keys())
        and (record["evidence"] is None or _known(record["evidence"], _EVIDENCE))
        and _known(record["ended_by"], _ENDERS)
        and all(record[one] is None or _whole(record[one], 1) for one in ("pid", "starttime"))
        and (record["started_at"] is None or _number(record["started_at"]))
        and _number(record["ended_at"])
        and _number(record["duration_s"])
        and record["duration_s"] >= 0
        and all(_whole(record[size], 0) for size in _SIZES)
        and _whole(record["known"], 0)
        and _identity(record["init"])
        and _losses(record.get("losses", []))
        and _whole(record.get("log_errno", 0), 0, 4095)
        and isinstance(record.get("uncounted", False), bool)
        and isinstance(record["survivors"], list)
        and all(_whole(pid, 1) for pid in cast("list[object]", record["survivors"]))
    )
    return cast("ExitRecord", cast("object", record)) if whole else None


def running(value: object) -> Message | None:
    """`value` if it has everything that adopting the process needs; else None."""
    if not isinstance(value, dict):
        return None
    row = cast("Message", value)
    whole = (
        row.get("version") == VERSION
        and _whole(row.get("pid"), 2)
        and _whole(row.get("start"), 0)
        and isinstance(row.get("boot_id"), str)
        and isinstance(row.get("container_id"), str)
        and _known(row.get("ended_by"), _ENDERS)
        and (row.get("deadline") is None or _number(row["deadline"]))
        and all(_number(row.get(name)) for name in ("began", "grace_s"))
        and (row.get("started_at") is None or _number(row["started_at"]))
        and _whole(row.get("log_cap"), 0)
        and all(isinstance(row.get(name), bool) for name in ("background", "separate_stderr"))
        and (row.get("pty") is None or isinstance(row["pty"], list))
        and _identity(row.get("init"))
        and isinstance(row.get("instance", ""), str)
        and _words(row.get("stubs", []))
        and _losses(row.get("losses", []))
    )
    return row if whole else None


def laid(value: object) -> Message:
    """`value` if it is a complete `laid.json`; else {}."""
    row = cast("Message", value) if isinstance(value, dict) else {}
    files = row.get("placeholders")
    covered, who = row.get("covered"), row.get("who")
    whole = (
        isinstance(row.get("instance"), str)
        and _words(row.get("stubs"))
        and _words(row.get("pinned"))
        and isinstance(files, list)
        and all(_words(pair) and len(cast("list[object]", pair)) == 2 for pair in cast("list[object]", files))
        and isinstance(covered, dict)
        and all(isinstance(kind, str) for kind in cast("dict[str, object]", covered).values())
        and (who is None or _pair(who, 0, 0))
    )
    return row if whole else {}


def losses(value: object) -> list[Loss]:
    """`value` if it is a list of losses; else []."""
    return cast("list[Loss]", value) if _losses(value) else []


def _whole(value: object, least: int, most: int = (1 << 63) - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _identity(value: object) -> bool:
    return value is None or _pair(value, 2, 0)


def _pair(value: object, least: int, second: int) -> bool:
    pair = cast("list[object]", value) if isinstance(value, list) else []
    return len(pair) == 2 and _whole(pair[0], least) and _whole(pair[1], second)


def _losses(value: object) -> bool:
    rows = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(isinstance(row, dict) and _loss(cast("Message", row)) for row in rows)


def _loss(row: Message) -> bool:
    return (
        isinstance(row.get("path"), str)
        and isinstance(row.get("how"), str)
        and _number(row.get("at"))
        and _number(row.get("ms"))
        and _words(row.get("keys"))
    )


def _words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in cast("list[object]", value))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e15 < value < 1e15


def _known(value: object, words: frozenset[str] | dict[str, tuple[set[str], ...]]) -> bool:
    return isinstance(value, str) and value in words
