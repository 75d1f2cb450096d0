"""The nouns of the exec engine: frozen values without behaviour.

States of a session::

    claimed ──▶ running ──▶ exited | signaled | timed_out
       │           └──────▶ lost
       └──▶ start_failed | lost

A status is the kernel's or absent: after an end that the kernel reported, either `exit_code` or `signal` is set. For
`start_failed` and `lost` neither is; they have `errno` and `evidence` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, NewType

from shellback.exec.core.limits import LOG_BYTES, TIMEOUT_GRACE_S

SessionId = NewType("SessionId", str)
CallKey = NewType("CallKey", str)


class SessionState(StrEnum):
    """The state of a session."""

    CLAIMED = "claimed"
    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    START_FAILED = "start_failed"
    LOST = "lost"


WORK: Final = "work"
"""The profile of commands that may write the workspace."""
READ_ONLY: Final = "read_only"
"""The profile of commands that write only a scratch space, and have no network."""

APPROVED: Final = "approved call"
"""Who granted a command in the code of a tool whose call was approved."""
TURN: Final = "turn"
CONVERSATION: Final = "conversation"
DETACHED: Final = "detached"
LIFETIMES: Final = (TURN, CONVERSATION, DETACHED)
"""How long a process may run: until its turn ends, until its conversation ends, or without a bound."""

ON_EXIT: Final = ("always", "failure", "never")
"""Which ends of a background process wake the agent. Each end has its work item; the news of other ends is settled."""

SHELL: Final = "shell"
"""The kind of a persistent shell's session."""

LIVE_STATES: Final = frozenset({SessionState.CLAIMED, SessionState.RUNNING})


class Evidence(StrEnum):
    """Why the status of a lost session is unknown."""

    NEVER_STARTED = "never_started"
    SUPERVISOR_KILLED = "supervisor_killed"
    MACHINE_REBOOTED = "machine_rebooted"
    CONTAINER_RESTARTED = "container_restarted"
    HOST_UNREACHABLE = "host_unreachable"
    RECORD_UNREADABLE = "record_unreadable"


class EndedBy(StrEnum):
    """Who ended the process."""

    ITSELF = "itself"
    AGENT = "agent"
    PERSON = "person"
    TIMEOUT = "timeout"
    LIFETIME = "lifetime"
    SHUTDOWN = "shutdown"
    PROTECTION = "protection"
    """A cover was lost, and could not be restored."""
    LEASE = "lease"
    """Its host lost touch with the database, so that other hosts continue its conversations."""


class Delivery(StrEnum):
    """How the end of a session is reported.

    `inline`: the call that started it waits for it. `callback`: an EXEC_CALLBACK item reports it. `settled`: it was
    reported. One compare-and-set moves a session from `inline` to one of the others.
    """

    INLINE = "inline"
    CALLBACK = "callback"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class WindowSize:
    """The size of a terminal, rows first as in `struct winsize`."""

    rows: int
    cols: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command to run, before a backend turns it into argv.

    `env` are variables on top of the base; with `env_mode` "replace" the base is PATH alone. `timeout_s` 0 is none;
    `grace_s` is the time from SIGTERM to SIGKILL at the timeout. `stdin` None is /dev/null; other input is written, and
    closed unless `keep_stdin_open`. `log_bytes` bounds the stored output. `lifetime` is one of LIFETIMES, `on_exit` of
    ON_EXIT; `kind` is "" or SHELL. With `login` a login shell runs it, whose home is the workspace.
    """

    command: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 0.0
    stdin: bytes | None = None
    keep_stdin_open: bool = False
    pty: WindowSize | None = None
    background: bool = False
    separate_stderr: bool = False
    profile: str = WORK
    log_bytes: int = LOG_BYTES
    env_mode: Literal["extend", "replace"] = "extend"
    grace_s: float = TIMEOUT_GRACE_S
    lifetime: str = CONVERSATION
    on_exit: str = "always"
    kind: str = ""
    login: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOrigin:
    """The source of a command, from which each replay derives the same keys.

    `ordinal` numbers the commands that the code of one tool call starts; 0 is the call itself.
    """

    conversation_id: str
    response_run_id: str
    response_timestamp: str
    call_index: int
    tool_call_id: str
    turn_id: str = ""
    epoch: int = 0
    ordinal: int = 0


CallKind = Literal["", "typed", "fed", "input", "changed"]
"""What a call does: types into a session for a model or a tool's code, gives it other input, or changes files."""
TYPED: Final = ("typed", "fed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """The record of a call that is about to change something.

    `conversation_id` is None if the session has one. `granted_by` and `digest` are as in `Session`.
    """

    key: CallKey
    session_id: SessionId
    tool: str
    kind: CallKind = ""
    conversation_id: str | None = None
    turn_id: str = ""
    epoch: int = 0
    granted_by: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A protected file whose cover was lost while a command ran: when, and for how many milliseconds.

    `path` is the supervisor's; `how` is restored, ended or changed; `keys` are new git settings that may be harmful.
    """

    path: str
    at: float
    ms: float
    how: str
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Loss:
        """The loss in a record."""
        return cls(path=row["path"], at=row["at"], ms=row["ms"], how=row["how"], keys=tuple(row["keys"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """The end of a session: the exit record as the rest of the system uses it.

    `duration_s` is monotonic; `ended_at` is wall-clock seconds. `findings` are sentences of the inspection at the end.
    `log_errno` is why some output could not be written; with `uncounted` there was more output than the counts say.
    """

    state: SessionState
    exit_code: int | None = None
    signal: int | None = None
    errno: int | None = None
    evidence: Evidence | None = None
    ended_by: EndedBy = EndedBy.ITSELF
    ended_at: float = 0.0
    duration_s: float = 0.0
    bytes_total: int = 0
    bytes_dropped: int = 0
    err_bytes_total: int = 0
    log_errno: int = 0
    uncounted: bool = False
    survivors: tuple[int, ...] = ()
    findings: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> SessionEnd:
        """The end in a record of the supervisor, in a database row, or in news, which has fewer fields."""
        known = {one.name: record[one.name] for one in fields(cls) if record.get(one.name) is not None}
        return cls(**known | {name: made(known[name]) for name, made in _MADE.items() if name in known})

    @property
    def began_at(self) -> float | None:
        """The time of its start, from its end; None if it never started or the time is unknown."""
        ran = self.state not in {SessionState.START_FAILED, SessionState.LOST} and self.ended_at > 0
        return self.ended_at - self.duration_s if ran else None


_MADE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "state": SessionState,
    "evidence": Evidence,
    "ended_by": EndedBy,
    "survivors": tuple,
    "findings": tuple,
    "losses": lambda rows: tuple(map(Loss.of, rows)),
}
"""The fields of an end that are no plain values in a record."""


class Polled(NamedTuple):
    """The byte ranges of both streams that one poll read; the second is empty if the streams are one."""

    start: int
    end: int
    err_start: int = 0
    err_end: int = 0

    @classmethod
    def recorded(cls, outcome: Mapping[str, object]) -> Polled:
        """The ranges in the recorded outcome of a call."""
        return cls(**{name: int(str(outcome.get(name, 0))) for name in cls._fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One start of a command, as stores keep it.

    `granted_by` is `approval`, `classifier`, `trusted classifier`, `rule ID ...` for saved rules, `policy FILE:LINE`,
    or `operator`. `pinned` shows or hides its block; None: shown until it ends.
    """

    id: SessionId
    conversation_id: str
    tool_call_id: str
    turn_id: str
    epoch: int
    host_id: str
    boot_id: str
    uid: int
    backend: str
    profile: str
    command: str
    cwd: str
    workspace: str
    pty: bool
    background: bool
    separate_stderr: bool
    stdin_open: bool
    lifetime: str
    delivery: Delivery
    state: SessionState
    log_path: str
    pid: int | None = None
    approval_id: str | None = None
    digest: str = ""
    granted_by: str = ""
    created_at: float = 0.0
    started_at: float | None = None
    poll_offset: int = 0
    poll_err_offset: int = 0
    end: SessionEnd | None = None
    traceparent: str | None = None
    on_exit: str = "always"
    kind: str = ""
    pinned: bool | None = None

    @property
    def end_is_news(self) -> bool:
        """Whether this end wakes the agent, by `on_exit`; `failure` is any end but exit code 0.

        The end of a process with the lifetime of a turn is no news once the turn is over.
        """
        if self.end is not None and self.end.ended_by is EndedBy.LIFETIME:
            return False
        if self.on_exit == "failure":
            return self.end is None or self.end.exit_code != 0 or self.end.state is not SessionState.EXITED
        return self.on_exit != "never"

    @property
    def live(self) -> bool:
        """Whether the process may still be running."""
        return self.state in LIVE_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanWorkspace:
    """A container and its working directory.

    `name` is unique on a host. `overlay_path` is the host's path of the mount at `workdir`. `env` has the names of its
    variables, never a value. `last_used_at` may be up to a minute before the last use.
    """

    container_id: str
    name: str
    image: str
    workdir: str
    overlay_path: str
    env: tuple[str, ...] = ()
    created_at: float
    last_used_at: float
    scope: str
    profile: str = WORK
    host_id: str = "local"
    state: Literal["running", "stopped", "removed"] = "running"
    removed_at: float | None = None
