"""What an MCP server reads and writes of its conversation: the row itself, and requests for approval of its calls.

No turn asks, so no turn is resumed: the call itself waits for its request, or finds it when it is repeated. Every
function runs in the caller's transaction.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from shellback.exec.core.identity import call_key, session_id
from shellback.exec.core.model import CallOrigin
from shellback.mcp_server.answer import Asked
from shellback.storage.rows import CLOCK, change_some, put
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, joined_calls, sessions
from shellback.work.approvals import asking
from shellback.work.approvals.approvals import Request, decide
from shellback.work.approvals.asking import Proposed
from shellback.work.approvals.sending import require_name
from shellback.work.errors import InvalidRequest
from shellback.work.notices.notices import Outbox
from shellback.work.queue import mailbox
from shellback.work.queue.mailbox import Workspace
from shellback.work.queue.queues import Enqueuer

_STRANGE: Final = re.compile(r"[^A-Za-z0-9_-]+")
USED: Final = "nothing was done: this key was used for another call. Give each new call a key of its own"
_VERBATIM: Final = ("execute", "execute_pty")
"""Tools whose sessions have the command as it was given."""
_REFUSED: Final = ("denied", "expired", "superseded")


def name_for(client: str, workspace: Path, host_id: str) -> str:
    """The conversation of a client that names none: the same for the same client, workspace and host."""
    digest = hashlib.sha256(f"{client}\0{workspace}\0{host_id}".encode()).hexdigest()[:10]
    said = (_STRANGE.sub("-", text).strip("-")[:30] for text in (client, workspace.name))
    return ".".join(("mcp", *filter(None, said), digest))


def opened(conn: sa.Connection, name: str, host_id: str, workspace: Workspace | None = None) -> Workspace:
    """Have the conversation exist for MCP clients; a new one works in `workspace`. Returns that in which it works.

    Raises:
        InvalidRequest: The name is not acceptable, or the conversation is an agent's or another host's, or works in
            another workspace.
    """
    require_name(name)
    row = mailbox.open_conversation(conn, name, host_id=host_id, driver=mailbox.MCP, workspace=workspace)
    if row.driver != mailbox.MCP:
        raise InvalidRequest(f"conversation {name} belongs to an agent: give another name with --conversation")
    if row.host_id != host_id:
        raise InvalidRequest(
            f"conversation {name} is on another host, where its processes are: give another name with --conversation,"
            f" or move it here with `shellback adopt conversation {name}`"
        )
    return mailbox.bound_to(row)


def asked(
    conn: sa.Connection,
    conversation_id: str,
    turn_id: str,
    call: Proposed,
    *,
    ttl_s: float,
    outbox: Outbox,
    limit: int,
) -> Request:
    """The request of this call; else that of an identical one, open or decided and not told; else a new one.

    So a client that repeats a call finds the decision, and a person is asked once. A call that joins the request of an
    identical one stays with it: see `joined`.

    Raises:
        InvalidRequest: The request of this key is about something else.
    """
    mailbox.lock(conn, conversation_id)
    ours = sa.select(approvals).where(approvals.c.call_key == call.call_key)
    same = (
        sa.select(approvals)
        .where(
            approvals.c.conversation_id == conversation_id,
            approvals.c.tool_name == call.tool_name,
            approvals.c.digest == call.digest,
            approvals.c.used_by.is_(None),
            sa.or_(_open(), approvals.c.state.in_(_REFUSED)),
        )
        .order_by(approvals.c.created_at.desc())
        .limit(1)
    )
    for query in (ours, _joined(call.call_key), same):
        if (row := conn.execute(query).mappings().one_or_none()) is not None:
            found = Request(**row)
            if found.used_by is None and (found.tool_name, found.digest) != (call.tool_name, call.digest):
                raise InvalidRequest(
                    "nothing was done: this key was used for another call, or what the call would do has changed "
                    "since. Give each new call a key of its own"
                )
            if query is same:
                put(conn, joined_calls, call.call_key, request_id=found.id, created_at=time.time())
            return found
    asking.ask(conn, conversation_id, turn_id, 0, [call], ttl_s=ttl_s, outbox=outbox, limit=limit)
    return Request(**conn.execute(ours).mappings().one())


class Before(NamedTuple):
    """What is known of a call before it is carried out: the id as which it is, and whose its live session is."""

    joined: str | None = None
    turn_id: str | None = None


def before(conn: sa.Connection, call: Asked, origin: Callable[[Asked], CallOrigin]) -> Before:
    """What is known of a call: `joined` if it has joined the request of an identical one and is carried out as that.

    Also after it has run: the repeat of either has its result. None of a request that came to nothing.

    Raises:
        InvalidRequest: The call of this key was another one.
    """
    joined = _joined(call_key(origin(call))).with_only_columns(approvals.c.tool_call_id)
    found = conn.execute(joined).scalar_one_or_none()
    theirs = origin(call if found is None else replace(call, id=found))
    request = sa.select(approvals.c.tool_name, approvals.c.args).where(approvals.c.call_key == call_key(theirs))
    session = sa.select(sessions.c.command, sessions.c.turn_id, sessions.c.state)
    asked_for = conn.execute(request).one_or_none() if found is None else None
    started = conn.execute(session.where(sessions.c.id == session_id(theirs))).one_or_none()
    command = call.args.get("command") if call.tool in _VERBATIM else None
    if (asked_for is not None and tuple(asked_for) != (call.tool, call.args)) or (
        started is not None and started.command != command and call.tool in _VERBATIM
    ):
        raise InvalidRequest(USED)
    return Before(found, started.turn_id if started is not None and started.state in LIVE else None)


def taken_over(conn: sa.Connection, session_id: str, turn_id: str, by: str) -> None:
    """Note that a session is that of the connection `by`, which goes on with its call: others do not settle it."""
    change_some(conn, sessions, sessions.c.id == session_id, sessions.c.turn_id == turn_id, turn_id=by)


def _joined(call_key: str) -> sa.Select[Any]:
    return (
        sa.select(approvals)
        .join(joined_calls, joined_calls.c.request_id == approvals.c.id)
        .where(joined_calls.c.call_key == call_key, sa.or_(_open(), approvals.c.state == "used"))
    )


def _open() -> sa.ColumnElement[bool]:
    """Whether a request waits, or was approved and may be used."""
    # As `uses.consume` demands: an approval that was not used in time is none.
    since = CLOCK - (approvals.c.expires_at - approvals.c.created_at)
    return sa.or_(
        approvals.c.state == "pending", sa.and_(approvals.c.state == "approved", approvals.c.decided_at >= since)
    )


def told(conn: sa.Connection, request: Request) -> None:
    """Note that the client knows of a refusal, so that the next identical call asks again."""
    change_some(
        conn, approvals, approvals.c.id == request.id, approvals.c.state.in_(_REFUSED), used_by=request.call_key
    )


def withdrawn(conn: sa.Connection, enqueuer: Enqueuer, call_key: str, client: str) -> None:
    """Deny the request of a call that its client has cancelled, unless it is decided."""
    waits = sa.select(approvals.c.id).where(approvals.c.call_key == call_key, approvals.c.state == "pending")
    if (request_id := conn.execute(waits).scalar_one_or_none()) is not None:
        decide(conn, enqueuer, request_id, "superseded", by=client, surface="mcp", note="the client cancelled the call")
