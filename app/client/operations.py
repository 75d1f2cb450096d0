"""What a client can ask for: one function each, with its path over HTTP.

The same functions answer in this process and in a server. Their arguments are checked by their signatures, and who asks
sees only what belongs to its conversations: all else does not exist.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from shellback.client import messages, output, processes
from shellback.client.caller import Caller
from shellback.client.facts import Approval, Decision, Killed, Log, Sent, Session, Written
from shellback.client.freshness import Freshness
from shellback.exec.core.model import Session as Row
from shellback.exec.core.model import SessionId
from shellback.settings import LABEL, LABEL_CHARS
from shellback.storage import sessions as session_rows
from shellback.storage.rows import exists
from shellback.storage.tables import conversations
from shellback.work.approvals import approvals as requests
from shellback.work.approvals.approvals import Request
from shellback.work.errors import (
    ApprovalSettled,
    InvalidRequest,
    ServerRefused,
    UnknownApproval,
    UnknownConversation,
    UnknownSession,
    mistakes_in,
)
from shellback.work.queue import mailbox

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.queue.queues import Enqueuer

TEXT_BYTES: Final = 1024 * 1024
"""So much of a log is read at once."""
INPUT_CHARS: Final = 64 * 1024
NOTE_CHARS: Final = 2_000
KEY_CHARS: Final = 100
LISTED: Final = 500
"""So many requests or sessions are listed."""

_PLAIN: Final = r"^[^\x00]*$"
Name = Annotated[str, Field(max_length=200, pattern=_PLAIN, description="The conversation.")]
Text = Annotated[str, Field(description="The message.")]
Key = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=KEY_CHARS,
        description="With the same key a message is stored once in a conversation, however often it is sent.",
    ),
]
Priority = Annotated[
    Literal["critical", "high", "normal", "low", "idle"], Field(description="The priority of the turn.")
]
Interrupt = Annotated[bool, Field(description="Deny the calls that wait for approval, so that it is handled at once.")]
Needs = Annotated[
    Sequence[Annotated[str, Field(max_length=LABEL_CHARS, pattern=rf"^{LABEL}$")]],
    Field(max_length=20, description="Labels that the host of a new conversation must have."),
]
Only = Annotated[str | None, Field(max_length=200, pattern=_PLAIN, description="Only this conversation.")]
All = Annotated[bool, Field(description="Also decided requests, or ended sessions.")]
Id = Annotated[str, Field(max_length=200, pattern=_PLAIN, description="The whole id.")]
Digest = Annotated[
    str | None, Field(description="The digest of what was shown; a request that has changed since is refused.")
]
Scope = Annotated[
    Literal["once", "session"],
    Field(
        description="For input to a process: this call, or all further input until the process ends. For a connection: "
        "this one, or all of the conversation to this host and port."
    ),
]
Reason = Annotated[str | None, Field(max_length=NOTE_CHARS, pattern=_PLAIN, description="The reason, for the agent.")]
Lines = Annotated[int, Field(ge=0, le=1_000_000, description="So many of the last lines, if no offset is given.")]
Offset = Annotated[int | None, Field(ge=0, description="Read from here on: `next_offset` of the part before.")]
Since = Annotated[float | None, Field(description="Only output since this time, in seconds of the wall clock.")]
Stderr = Annotated[bool, Field(description="Standard error, if it was stored apart.")]
Data = Annotated[str, Field(max_length=INPUT_CHARS, description="What is typed; a line ends with a newline.")]
Eof = Annotated[bool, Field(description="Close the input after it.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Where something is asked for, and by whom."""

    where: Place
    enqueuer: Enqueuer
    caller: Caller
    asks: processes.Asks


def send(
    at: Asking,
    *,
    conversation: Name,
    text: Text,
    key: Key = None,
    priority: Priority = "normal",
    interrupt: Interrupt = False,
    needs: Needs = (),
) -> Sent:
    """Store a message and enqueue its turn. A new name begins a conversation."""
    if not at.caller.may(conversation):
        raise _unknown_conversation(at, conversation)
    # A digest, because it becomes the id of the item, and what a person chose may be long.
    how = {} if key is None else {"key": hashlib.sha256(f"{conversation}\n{key}".encode()).hexdigest()[:32]}
    found = messages.deliver(
        at.where, at.enqueuer, conversation=conversation, text=text, priority=priority.upper(),
        waiting=True, interrupt=interrupt, by=at.caller.by, needs=needs, **how,
    )  # fmt: skip
    sent = found.sent
    return Sent(
        conversation=conversation,
        item=sent.item_id,
        pending_approvals=0 if interrupt else sent.pending_approvals,
        blocked=sent.blocked,
        event=str(sent.event),
        waits=found.waits,
        no_worker=found.alone,
    )


def approvals(at: Asking, *, conversation: Only = None, everything: All = False) -> list[Approval]:
    """List the calls that wait for a person, oldest first, at most 500."""
    _require(at, conversation)
    state = None if everything else "pending"

    def look(conn: sa.Connection) -> list[Request]:
        found = [requests.find(conn, conversation_id=name, state=state) for name in _names(at, conversation)]
        return sorted(chain.from_iterable(found), key=lambda one: one.created_at)[:LISTED]

    return [_approval(one) for one in at.where.database.read_now(look)]


def approval(at: Asking, *, id: Id) -> Approval:
    """Show one request."""
    return _approval(_request(at, id))


def approve(at: Asking, *, id: Id, scope: Scope = "once", digest: Digest = None) -> Decision:
    """Allow exactly this call to run, once."""
    request = _request(at, id)
    _require_another(at, request.conversation_id)
    return _settled(at, request, "approved", scope=scope, digest=digest)


def deny(at: Asking, *, id: Id, reason: Reason = None, digest: Digest = None) -> Decision:
    """Deny this call; the agent is told, with the reason."""
    return _settled(at, _request(at, id), "denied", note=reason, digest=digest)


def sessions(at: Asking, *, conversation: Only = None, everything: All = False) -> list[Session]:
    """List the processes that agents started, oldest first, at most the newest 500."""
    _require(at, conversation)
    live = None if everything else True

    def look(conn: sa.Connection) -> list[Row]:
        found = [
            session_rows.find(conn, conversation_id=name, live=live, newest=LISTED) for name in _names(at, conversation)
        ]
        return sorted(chain.from_iterable(found), key=lambda one: (one.created_at, one.id))[-LISTED:]

    mine = at.where.database.read_now(look)
    fresh = Freshness(at.where, (one.host_id for one in mine))
    return [_session(one, fresh) for one in mine]


def session(at: Asking, *, id: Id) -> Session:
    """Show one session."""
    found = _row(at, id)
    return _session(found, Freshness(at.where, [found.host_id]))


def logs(
    at: Asking,
    *,
    id: Id,
    lines: Lines = 200,
    offset: Offset = None,
    since: Since = None,
    stderr: Stderr = False,
) -> Log:
    """Read output of a process, at most 1 MiB at once: the end of it, or what follows an offset."""
    found = _here(at, id)
    log = output.SessionLog(at.where, found, err=stderr)
    total = log.size()
    if offset is None:
        start = max(log.start_of(lines), total - TEXT_BYTES, 0 if since is None else log.since(since))
    else:
        start = min(offset, total)
    kept = output.Kept()
    end = log.copy(start, kept, TEXT_BYTES)
    if found.live or end < total:
        end -= kept.unfinished()
    else:
        kept.finish()
    facts: dict[str, Any] = kept.facts()
    return Log(
        session_id=found.id, state=found.state.value, log=log.path,
        start=start, next_offset=end, bytes_total=max(total, end), **facts,
    )  # fmt: skip


def write(at: Asking, *, id: Id, data: Data, eof: Eof = False) -> Written:
    """Type into a process. It takes whole what it reads within 30 s; the agent is told how many bytes."""
    given, found = data.encode(), _here(at, id)
    _require_another(at, found.conversation_id)
    processes.typed(at.where, found, given, eof=eof, by=at.caller.by, surface=at.caller.surface, asks=at.asks)
    return Written(session_id=id, bytes=len(given))


def kill(at: Asking, *, id: Id) -> Killed:
    """End a process and everything it started: SIGTERM, and after two seconds SIGKILL. The agent is told."""
    found = _here(at, id)
    _require_another(at, found.conversation_id)
    ended = processes.end(at.where, found, at.asks)
    if ended.lost:
        processes.settled(at.where)
    return Killed(session_id=id, survivors=ended.survivors, lost=ended.lost)


def require_conversation(at: Asking, name: str) -> None:
    """Raise `UnknownConversation` unless there is one, and the caller may see it."""

    def there(conn: sa.Connection) -> bool:
        return exists(conn, sa.select(conversations.c.id).where(conversations.c.id == name))

    if "\x00" in name or not at.caller.may(name) or not at.where.database.read_now(there):
        raise _unknown_conversation(at, name)


def _require_another(at: Asking, conversation: str) -> None:
    """Go on unless it would do for an MCP client what this one has to ask a person for.

    Raises:
        ServerRefused: It came with a token, and the conversation belongs to an MCP client.
    """
    query = sa.select(conversations.c.driver).where(conversations.c.id == conversation)
    if at.caller.token and at.where.database.read_now(lambda conn: conn.execute(query).scalar()) == mailbox.MCP:
        raise ServerRefused(
            f"conversation {conversation} belongs to an MCP client, which may reach this token too: a person decides, "
            "types and ends processes on the host of the server, with `shellback approvals`, `attach` and `kill`"
        )


def _require(at: Asking, conversation: str | None) -> None:
    if conversation is not None:
        require_conversation(at, conversation)


def _names(at: Asking, conversation: str | None) -> Sequence[str | None]:
    """The conversations to look in; None is all."""
    return [conversation] if conversation or at.caller.conversations is None else sorted(at.caller.conversations)


def _unknown_conversation(at: Asking, name: str) -> UnknownConversation:
    mine = at.caller.conversations
    remedy = "a first message begins one" if mine is None else f"this token is for {', '.join(mine)}"
    return UnknownConversation(f"no conversation {name[:200]!r}: {remedy}")


def _request(at: Asking, request_id: str) -> Request:
    try:
        found = at.where.database.read_now(requests.get, request_id)
    except UnknownApproval:
        found = None
    if found is None or found.id != request_id or not at.caller.may(found.conversation_id):
        raise UnknownApproval(f"no approval request {request_id[:200]!r}: give the whole id of one that is listed")
    return found


def _settled(at: Asking, request: Request, decision: Literal["approved", "denied"], **how: Any) -> Decision:
    request = requests.settle(
        at.where.database, at.enqueuer, request.id, decision,
        by=at.caller.by, surface=at.caller.surface, **how,
    )  # fmt: skip
    if request.state != decision:
        raise ApprovalSettled(f"{request.id} is {request.state}: the decision came too late. Nothing runs")
    return Decision(id=request.id, state=request.state, conversation=request.conversation_id, scope=request.scope)


def _approval(request: Request) -> Approval:
    return Approval(**asdict(request), shown=request.shown)


def _row(at: Asking, session_id: str) -> Row:
    found = at.where.database.read_now(session_rows.get, SessionId(session_id))
    if found is None or not at.caller.may(found.conversation_id):
        raise UnknownSession(f"no session {session_id[:200]!r}: give the whole id of one that is listed")
    return found


def _here(at: Asking, session_id: str) -> Row:
    found = _row(at, session_id)
    processes.require_here(at.where, found)
    return found


def _session(row: Row, fresh: Freshness) -> Session:
    return Session(
        **{name: getattr(row, name) for name in row.__dataclass_fields__}, data_age_s=fresh.age_s(row.host_id)
    )


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing to ask for. `method` and `path` below `/v1` are its request; path parameters are in braces."""

    function: Callable[..., Any]
    method: Literal["GET", "POST"]
    path: str
    threads: Literal["quick", "input", "kill"] = "quick"
    """Where it waits, so that what waits for a process holds back nothing else."""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.function.__name__

    @property
    def about(self) -> str:
        """What it does."""
        return inspect.getdoc(self.function) or ""

    @property
    def arguments(self) -> type[BaseModel]:
        """The model of its arguments, those in the path included."""
        return _arguments(self.function)

    @property
    def result(self) -> TypeAdapter[Any]:
        """The type of its result."""
        return _result(self.function)

    def checked(self, given: dict[str, Any], *, texts: bool = False) -> dict[str, Any]:
        """The arguments, if they are acceptable; with `texts` numbers and booleans may be given as text.

        Raises:
            InvalidRequest: They are not; the message names each that is not.
        """
        try:
            model = self.arguments.model_validate(given, strict=not texts)
        except ValidationError as error:
            raise InvalidRequest(f"{self.name} cannot be done: {mistakes_in(error)}") from None
        return {name: getattr(model, name) for name in type(model).model_fields}


@cache
def _arguments(function: Callable[..., Any]) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if one.default is inspect.Parameter.empty else one.default)
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    name = f"{function.__name__.title()}Request"
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


@cache
def _result(function: Callable[..., Any]) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(function)["return"])


OPERATIONS: Final = {
    one.name: one
    for one in (
        Operation(send, "POST", "/conversations/{conversation}/messages"),
        Operation(approvals, "GET", "/approvals"),
        Operation(approval, "GET", "/approvals/{id}"),
        Operation(approve, "POST", "/approvals/{id}/approve"),
        Operation(deny, "POST", "/approvals/{id}/deny"),
        Operation(sessions, "GET", "/sessions"),
        Operation(session, "GET", "/sessions/{id}"),
        Operation(logs, "GET", "/sessions/{id}/log"),
        Operation(write, "POST", "/sessions/{id}/input", threads="input"),
        Operation(kill, "POST", "/sessions/{id}/kill", threads="kill"),
    )
}
