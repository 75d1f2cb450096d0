"""What each command prints with `--json`, as types. docs/json.md is made from them, and `-o` takes their fields.

A test compares them with what the commands print. `from_` stands for `from`, which is no name in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

import click

from shellback.checks.check import Check
from shellback.client.facts import Approval, Session
from shellback.exec.core.findings import Finding
from shellback.exec.core.model import PodmanWorkspace
from shellback.exec.reports.connections import Connection
from shellback.exec.supervisor.sandbox.trial import Report
from shellback.storage.accounts import Account
from shellback.storage.members import Member
from shellback.work.approvals.audit import Entry
from shellback.work.hosts.loads import Load
from shellback.work.hosts.roster import Employed
from shellback.work.hosts.unknown import Unknown
from shellback.work.queue.standing import Backlog, Standing
from shellback.work.queue.stream import Event

T = TypeVar("T")
Sometimes = Annotated[T, "sometimes"]
"""A field that is there only if it applies."""
Age = float | None
"""Seconds since a worker of the host was heard of: 0 while one lives, null if none ever ran."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _shape(of: type[T]) -> type[T]:
    return dataclass(frozen=True, kw_only=True)(of)


@_shape
class Adopted:
    """A process that belongs to a conversation now."""

    session_id: str
    conversation: str
    state: str


@_shape
class Moved:
    """A conversation that lives on this host now; `lost_sessions` of its processes were recorded as lost."""

    conversation: str
    from_host: str
    lost_sessions: int


@_shape
class Request(Approval):
    """A request for approval; `shown` is its text for people, and decodes to exactly what runs."""

    data_age_s: Age


@_shape
class Remembered:
    """A rule that was saved with a decision."""

    id: str
    rule: str


@_shape
class Decided:
    """A decision; `scope` is there if it is not `once`, `rules` if some were saved."""

    id: str
    state: str
    conversation: str
    scope: Sometimes[str]
    rules: Sometimes[list[Remembered]]


@_shape
class Audited(Entry):
    """An entry of the audit; `workspace` is null for the default one."""

    workspace: str | None


@_shape
class Setting:
    """A setting, its value without secrets, where that is from, and what is allowed."""

    setting: str
    value: str | float | bool | None
    from_: str
    allowed: str


@_shape
class Config:
    """All settings. `passed_on` are other names in `.env`, `doubtful` those that resemble a setting, with its name."""

    settings: list[Setting]
    passed_on: list[str]
    doubtful: dict[str, str]


@_shape
class Container(PodmanWorkspace):
    """A container of a conversation (`scope`)."""

    data_age_s: Age


@_shape
class Change:
    """A change of a file by a tool."""

    at: float
    did: str
    path: str | None
    bytes: int | None
    sha256: str | None


@_shape
class Evaluation:
    """Python that a tool has evaluated."""

    at: float
    session_id: str
    state: str
    exit_code: int | None
    end: str


@_shape
class ContainerInFull(Container):
    """The same, with the sessions that run in it and what tools did in its workspace."""

    running: list[str]
    files: list[Change]
    evaluations: list[Evaluation]


@_shape
class ContainerGone:
    """A container that was removed, if it `was_there`."""

    name: str
    scope: str
    was_there: bool
    overlay_path: str
    overlay_removed: bool


@_shape
class Conversation(Standing):
    """A conversation; `active_at` is when the last item came or the last turn ended."""

    host_silent: bool
    data_age_s: Age


@_shape
class Transcript:
    """A conversation and its last messages, in the format of Pydantic AI; `own` are settings of its workspace alone."""

    conversation: Standing
    messages_total: int
    messages: list[dict[str, Any]]
    own: Sometimes[dict[str, Any]]
    data_age_s: Age


@_shape
class Toured:
    """What the tour has seen; each of `checks` is true if its promise held."""

    checks: dict[str, bool]
    backend: str
    approval: dict[str, Any]
    order: list[dict[str, Any]]
    low_waiting_when_wake_answered: int
    killed: dict[str, Any]
    host: Sometimes[dict[str, Any]]
    sessions: list[dict[str, Any]]
    items: list[dict[str, Any]]
    callbacks: list[dict[str, Any]]


@_shape
class Checked:
    """The results of checks; `ok` if none fails."""

    ok: bool
    checks: list[Check]


@_shape
class Told(Event):
    """An event; `shown` is the text to show for a call."""

    shown: Sometimes[str]


@_shape
class Found(Finding):
    """A finding."""

    data_age_s: Age


@_shape
class FoundInFull(Finding):
    """A finding, and what to do."""

    remedy: str


@_shape
class Acknowledged:
    """The findings that were named, and how many of them were open."""

    ids: list[str]
    acknowledged: int


@_shape
class Begun(Checked):
    """The file with the settings, whether it was `changed`, what it says, and a first `message` to try."""

    file: str
    changed: bool
    settings: dict[str, str]
    message: str


@_shape
class Ended:
    """A process that was ended; `survivors` outlived SIGKILL."""

    session_id: str
    survivors: list[int]


@_shape
class Output:
    """A part of the output of a session; `note` says why some is missing."""

    session_id: str
    state: str
    log: str
    text: str
    bytes_dropped_in_text: int
    note: Sometimes[str]


@_shape
class Migrated:
    """The state of the tables, before and after; with `--from`, the rows that were copied, by table."""

    database: str
    before: str
    after: str
    copied: Sometimes[dict[str, int]]


@_shape
class Suggested:
    """Hosts that a set of `[network.sets]` would need."""

    set: str
    hosts: list[str]


@_shape
class Drain:
    """A host, and whether it takes no new conversations from now on."""

    host_id: str
    name: str
    draining: bool


@_shape
class Invited(Member):
    """A machine that is invited, and the text of its invitation, which is kept nowhere."""

    invitation: str


@_shape
class Pruned:
    """How many rows were deleted, or would be, by kind."""

    dry_run: bool
    rows: dict[str, int]


@_shape
class Behind:
    """A blocked conversation with unread news."""

    conversation: str
    reason: str
    unread: int


@_shape
class Processes:
    """Processes and what belongs to them."""

    sessions: list[Session]
    blocked: list[Behind]
    findings: list[Finding]
    connections: list[Connection]
    data_age_s: Age


@_shape
class Queue(Backlog):
    """Items that wait, turns that run, conversations that are blocked or wait for a host."""

    data_age_s: Age


@_shape
class Rule:
    """A rule; `match` has the conditions that it makes. One of the operator's file has no times and no uses."""

    id: str
    effect: str
    match: dict[str, Any]
    rule: str
    note: str
    source: str
    owner: str
    created_at: float | None
    expires_at: float | None
    uses: int | None
    state: Sometimes[str]
    used_at: Sometimes[float | None]
    revoked_at: Sometimes[float | None]
    revoked_by: Sometimes[str | None]


@_shape
class Tried:
    """What the rules say about a command, or a connection; `effect` is null if none decides."""

    command: Sometimes[str]
    connect: Sometimes[str]
    effect: str | None
    rules: list[str]
    source: str | None
    reason: str | None
    verdict: Sometimes[str]


@_shape
class Sandbox:
    """Where commands run. Fields of a sandbox are missing on the host."""

    backend: str
    why: str
    workspace: str
    profiles: list[str]
    network: str | list[str]
    in_force: list[str]
    limits: Sometimes[str]
    unbounded: Sometimes[list[str]]
    readable: Sometimes[list[str]]
    read_only: Sometimes[list[str]]
    closed: Sometimes[list[str]]
    instance_ms: Sometimes[float | None]
    start_ms: Sometimes[float | None]
    model: str


@_shape
class Asked:
    """A call that waits; the fields of its display stand beside these."""

    id: str
    tool: str
    shown: str


@_shape
class Sent:
    """A stored message (`item` is its work item). With `--wait` also `outcome`, and `answer` or `approvals`."""

    conversation: str
    item: str
    pending_approvals: int
    blocked: str | None
    outcome: Sometimes[str]
    answer: Sometimes[str]
    approvals: Sometimes[list[Asked]]


@_shape
class Stopped:
    """What became of a turn, and the sessions that were ended."""

    conversation: str
    turn_id: str | None
    state: str
    killed: list[str]


@_shape
class Token:
    """A token without its secret; `conversations` is null for all."""

    name: str
    state: str
    kind: str
    conversations: list[str] | None
    tools: list[str] | None
    owner: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    revoked_by: str | None


@_shape
class NewToken(Token):
    """The same with `token`, the secret, which is shown only here."""

    token: str


@_shape
class Link:
    """The one-time link of an account."""

    link: str


@_shape
class Removed:
    """Something that was removed."""

    name: str
    removed: bool


@_shape
class Login:
    """A browser in which an account is logged in."""

    login: str
    name: str
    created_at: float
    used_at: float
    program: str


@_shape
class LoggedOut:
    """How many logins were ended."""

    name: str
    ended: int


@_shape
class Worker(Employed):
    """A worker; other workers have taken over `turns_taken_over` of its turns in the last day.

    `elsewhere`: on another machine than its hosts. `host_id` is `*` if it runs turns of many, which `serves` has.
    """

    turns_taken_over: int


@_shape
class Workspace:
    """A workspace; `problem` is null if commands can work there, `path` if it is not configured any more.

    `own` are its own settings.
    """

    name: str
    path: str | None
    problem: str | None
    conversations: int
    own: Sometimes[dict[str, Any]]
    from_: Sometimes[str]
    source: Sometimes[str | None]
    keep: Sometimes[str]
    unowned: Sometimes[list[str]]


@_shape
class WorkspaceAdded:
    """A workspace; `added` is false if it was there."""

    name: str
    path: str
    added: bool


@_shape
class WorkspaceRemoved(Removed):
    """A workspace that is not in the list any more."""

    path: str


@_shape
class Cleaned:
    """A directory that was removed, or stays `because`."""

    directory: str
    path: str
    removed: bool
    because: str | None


class Shape(NamedTuple):
    """What a command prints: one document, or with `lines` one on each line."""

    of: Any
    lines: bool = False


SHAPES: Final = {
    "adopt conversation": Shape(list[Moved]),
    "adopt host": Shape(list[Moved]),
    "adopt process": Shape(list[Adopted]),
    "approvals approve": Shape(Decided),
    "approvals deny": Shape(Decided),
    "approvals list": Shape(list[Request]),
    "approvals show": Shape(Request),
    "audit": Shape(Audited, lines=True),
    "config": Shape(Config),
    "containers": Shape(list[Container]),
    "containers list": Shape(list[Container]),
    "containers rm": Shape(list[ContainerGone]),
    "containers show": Shape(ContainerInFull | list[ContainerInFull]),
    "conversations list": Shape(list[Conversation]),
    "conversations show": Shape(Transcript),
    "demo": Shape(Toured),
    "doctor": Shape(Checked),
    "events": Shape(Told, lines=True),
    "findings ack": Shape(Acknowledged),
    "findings list": Shape(list[Found]),
    "findings show": Shape(FoundInFull),
    "hosts": Shape(list[Load]),
    "hosts drain": Shape(Drain),
    "hosts invite": Shape(Invited),
    "hosts join": Shape(Member),
    "hosts members": Shape(list[Member]),
    "hosts revoke": Shape(Member),
    "init": Shape(Begun),
    "kill": Shape(Ended | list[Ended]),
    "logs": Shape(Output),
    "migrate": Shape(Migrated),
    "network": Shape(list[Connection]),
    "network suggest": Shape(Suggested),
    "prune": Shape(Pruned),
    "ps": Shape(Processes),
    "ps --unknown": Shape(list[Unknown]),
    "queue": Shape(Queue),
    "rules add": Shape(Rule),
    "rules list": Shape(list[Rule]),
    "rules revoke": Shape(Rule),
    "rules test": Shape(Tried),
    "sandbox": Shape(Sandbox),
    "sandbox run": Shape(Report),
    "send": Shape(Sent),
    "stop": Shape(Stopped),
    "tokens add": Shape(NewToken),
    "tokens list": Shape(list[Token]),
    "tokens revoke": Shape(Token),
    "users add": Shape(Link),
    "users link": Shape(Link),
    "users list": Shape(list[Account]),
    "users logins": Shape(list[Login]),
    "users logout": Shape(LoggedOut),
    "users remove": Shape(Removed),
    "workers": Shape(list[Worker]),
    "workspaces add": Shape(WorkspaceAdded),
    "workspaces clean": Shape(list[Cleaned]),
    "workspaces list": Shape(list[Workspace]),
    "workspaces remove": Shape(WorkspaceRemoved),
}
"""By the words of the command."""


def columns_of(ctx: click.Context, rows: str, within: Sequence[str] = ()) -> list[str]:
    """The fields of what a command lists: of its JSON, or of the field `rows` of it; or those of a field `within`."""
    # The first word is the program. What a flag makes another list has a shape of its own.
    command = ctx.command_path.partition(" ")[2]
    flags = (f"{command} {one.opts[0]}" for one in ctx.command.params if ctx.params.get(one.name or "") is True)
    of = SHAPES[next((one for one in flags if one in SHAPES), command)].of
    listed = of if get_origin(of) is list else next(one.type for one in fields_of(of) if one.name == rows)
    row = get_args(listed)[0]
    for name in within:
        row = next((one.type for one in _within(row) if one.name == name), None)
    return [one.name for one in _within(row)]


def _within(of: Any) -> Iterator[Field]:
    """The fields of an object, or of one that may be there."""
    for one in get_args(of) if get_origin(of) in {Union, UnionType} else [of]:
        if is_dataclass(one):
            yield from fields_of(one)


class Field(NamedTuple):
    """A field by the name that JSON has for it. `always`: it is there in every document."""

    name: str
    type: Any
    always: bool


def fields_of(of: Any) -> list[Field]:
    """The fields of a type, in their order."""
    from typing import get_type_hints

    hints = get_type_hints(of, include_extras=True)
    found: list[Field] = []
    for one in fields(of):
        hint = hints[one.name]
        always = get_origin(hint) is not Annotated
        found.append(Field(one.name.rstrip("_"), hint if always else get_args(hint)[0], always))
    return found
