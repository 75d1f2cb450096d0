"""What a client is told: the fields of `--json` of the command line, as frozen objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shellback.exec.core import model as core


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A stored message; `item` is its work item.

    `pending_approvals` is how many calls wait, and `blocked` why the conversation does (approval, wake_limit,
    set_aside); then the message waits too. `event` is the place before the message, for `stream(after=...)`. `waits`
    says why nobody reads it soon. `no_worker`: no worker of this host runs; the message is answered when one does.
    """

    conversation: str
    item: str
    pending_approvals: int
    blocked: str | None
    event: str
    waits: str | None
    no_worker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a conversation.

    `id` is the place after it, for `stream(after=...)`. Kinds are those of `shellback events`: `text` is a piece of the
    answer. `replaces`: this text replaces what the turn has said since its last call or result, because a crash made it
    ask the model again, which said something else. `shown` is the text to show a person for a call that is made or
    waits: whole, with misleading characters escaped.
    """

    id: str
    conversation_id: str
    turn_id: str
    epoch: int
    kind: str
    payload: dict[str, Any]
    created_at: float
    replaces: bool = False
    shown: str | None = None

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that waits, or waited, for a person.

    `shown` is the text to show: it decodes to exactly what runs. `digest` covers everything that will run. `args` are
    the model's; `changed_args` replace them if the person `changed_by` changed the call.
    """

    id: str
    conversation_id: str
    turn_id: str
    call_key: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    display: dict[str, Any]
    digest: str
    state: str
    created_at: float
    expires_at: float
    decided_at: float | None
    decided_by: str | None
    surface: str | None
    note: str | None
    used_by: str | None
    scope: str
    session_id: str | None
    changed_args: dict[str, Any] | None
    changed_by: str | None
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision that stands; `state` is `approved` or `denied`."""

    id: str
    state: str
    conversation: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(core.Session):
    """One start of a command; `end` has its exit code, signal or evidence, and is None while it runs.

    `data_age_s` is the seconds since a worker of its host was heard of: 0 while one lives, None if none ever ran.
    """

    data_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A part of the output of a session, from the offset `start` to `next_offset`, in bytes.

    `bytes_total` is all that was printed so far, `bytes_dropped_in_text` what is missing in this part, and `note` why.
    """

    session_id: str
    state: str
    log: str
    text: str
    start: int
    next_offset: int
    bytes_total: int
    bytes_dropped_in_text: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """An ended session. `survivors` outlived SIGKILL. `lost`: no record of it was there, and no process of it ran."""

    session_id: str
    survivors: list[int] = field(default_factory=list[int])
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Input that a session has got, in bytes. Its agent is told how many; the text is not stored."""

    session_id: str
    bytes: int
