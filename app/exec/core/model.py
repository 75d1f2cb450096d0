"""The nouns of the exec engine: frozen values without behaviour of their own.

States of a session::

    claimed ──▶ running ──▶ exited | signaled | timed_out
       │           └──────▶ lost
       └──▶ start_failed | lost

A number for the end of a process is the kernel's or absent: `exit_code` and `signal` are two
fields, exactly one of them set after an end that the kernel reported, none for `start_failed`
and `lost`, which carry `errno` and `evidence` instead.
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
    """Where a session is in its life."""

    CLAIMED = "claimed"
    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    START_FAILED = "start_failed"
    LOST = "lost"


WORK: Final = "work"
"""Profile of a command that may write the workspace."""
READ_ONLY: Final = "read_only"
"""Profile of a command that writes nothing but a scratch space of its own, and has no network."""

TURN: Final = "turn"
CONVERSATION: Final = "conversation"
DETACHED: Final = "detached"
LIFETIMES: Final = (TURN, CONVERSATION, DETACHED)
"""How long a process may run: to the end of the turn that started it, of its conversation, or as long as it likes."""

ON_EXIT: Final = ("always", "failure", "never")
"""Which ends of a background process wake the agent. The work item exists for each; the news of others is settled."""

SHELL: Final = "shell"
"""Kind of a session that is a persistent shell."""

LIVE_STATES: Final = frozenset({SessionState.CLAIMED, SessionState.RUNNING})


class Evidence(StrEnum):
    """Why the status of a lost session is not known."""

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
    """A cover was lost, and could not be laid again."""


class Delivery(StrEnum):
    """How the end of a session is told.

    `inline`: the tool call that started it waits for it. `callback`: an EXEC_CALLBACK item tells it.
    `settled`: it has been told. One compare-and-set moves a session from `inline` to one of the others.
    """

    INLINE = "inline"
    CALLBACK = "callback"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class WindowSize:
    """Size of a terminal, rows first as in `struct winsize`."""

    rows: int
    cols: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """What somebody wants run, before a backend has turned it into argv.

    `env` holds only what was given on top of the built-up base. `timeout_s` 0 means none.
    `stdin` None is /dev/null; text is written and then closed unless `keep_stdin_open`. `log_bytes` is the most that is
    kept of what it prints. With `env_mode` "replace" the environment is PATH and what was given. `grace_s` is what is
    left between SIGTERM and SIGKILL at the timeout. `lifetime` is one of LIFETIMES, `on_exit` of ON_EXIT; `kind` is ""
    or SHELL. With `login` it runs as the command of a login shell, whose home is the workspace.
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
    """Who asked: enough to derive the same keys on every replay of the same call.

    `ordinal` tells the commands apart that the code of one tool call starts; 0 is the call itself.
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
"""What a call does: types into a session for a model or for code of a tool, is other input to it, or changes files."""
TYPED: Final = ("typed", "fed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A call that is about to change something, as it is recorded: what with, for whom, and who let it.

    `conversation_id` is None where the session has one. `granted_by` and `digest` are as a session has them.
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
    """A protected file whose cover was lost while a command ran: when, for how many milliseconds, and how that ended.

    `path` is as the supervisor names it; `how` is restored, ended or changed; `keys` are names of settings of a git
    configuration that came meanwhile and are not known to be harmless.
    """

    path: str
    at: float
    ms: float
    how: str
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Loss:
        """One as it is on record."""
        return cls(path=row["path"], at=row["at"], ms=row["ms"], how=row["how"], keys=tuple(row["keys"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """How a session ended: the exit record as the rest of the system sees it.

    `duration_s` is monotonic; `ended_at` is wall-clock seconds for people. `findings` is what the look at the workspace
    at the end of it found, in sentences. `log_errno` is why some output could not be written; with `uncounted` there
    was more than the counts say.
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
        """One as it is on record: of the supervisor, in its row, or in the news of it, which leaves some of it out."""
        known = {one.name: record[one.name] for one in fields(cls) if record.get(one.name) is not None}
        return cls(**known | {name: made(known[name]) for name, made in _MADE.items() if name in known})

    @property
    def began_at(self) -> float | None:
        """When it was started, as its end tells; None for what never was, or where nobody knows."""
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
"""What of an end is no plain number on record."""


class Polled(NamedTuple):
    """The ranges of both streams that one poll has passed over; that of the second is empty where they are one."""

    start: int
    end: int
    err_start: int = 0
    err_end: int = 0

    @classmethod
    def recorded(cls, outcome: Mapping[str, object]) -> Polled:
        """The ranges that were recorded as the outcome of a call."""
        return cls(**{name: int(str(outcome.get(name, 0))) for name in cls._fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One launch of a command, as the store knows it.

    `granted_by` says who let it run: `approval`, `classifier`, `trusted classifier`,
    `rule ID ...` for saved rules, `policy FILE:LINE`, `operator`. `pinned` is what somebody wants of its block, None
    leaves it to its end.
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
        """Whether the agent wants to be woken by the end as it is: `failure` is any but exit code 0.

        What was to run no longer than a turn is no news when that turn is over.
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
    """One container and the directory that it works in.

    `name` is the container's, of which a host has one. `overlay_path` is the host's path of what is mounted at
    `workdir`. `env` has the names of the variables that it was made with, never a value. `last_used_at` may be up to a
    minute before the last use.
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
