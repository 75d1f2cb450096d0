"""What a person is asked: one request for each call that waits, bound to what would run, told to whoever watches."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.display import shown
from shellback.exec.tools.registry import tool_named
from shellback.exec.wire.crashpoints import reach
from shellback.storage.tables import approvals, sessions
from shellback.work.approvals.approvals import Request, audited, find, get
from shellback.work.approvals.uses import tier_of
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import stream

PENDING: Final = 20
"""So many calls of one conversation wait for a person at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A call that the model made and nobody has judged yet."""

    call_key: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    display: dict[str, Any]
    digest: str


def ask(
    conn: sa.Connection,
    conversation_id: str,
    turn_id: str,
    epoch: int,
    proposed: list[Proposed],
    *,
    ttl_s: float,
    outbox: Outbox = SILENT,
    limit: int = PENDING,
) -> None:
    """Write one request per call; the caller blocks the conversation in the same transaction.

    Nobody is asked about a call that is identical to one that waits, or about more than `limit`: such a request is
    refused at once, and the model is told why.
    """
    waiting = {
        (one.tool_name, one.digest): one.id for one in find(conn, conversation_id=conversation_id, state="pending")
    }
    for call in proposed:
        display = call.display | _about_session(conn, conversation_id, call)
        request_id = f"a{uuid.uuid4().hex[:11]}"
        same = waiting.get((call.tool_name, call.digest))
        refusal = _same_waits(same) if same else _too_many(limit) if len(waiting) >= limit else None
        now = time.time()
        request = {
            "id": request_id,
            "conversation_id": conversation_id,
            "turn_id": turn_id,
            "call_key": call.call_key,
            "tool_call_id": call.tool_call_id,
            "tool_name": call.tool_name,
            "args": call.args,
            "display": display,
            "digest": call.digest,
            "state": "refused" if refusal else "pending",
            "created_at": now,
            "expires_at": now + ttl_s,
            "session_id": _session_of(call),
            **({"decided_at": now, "decided_by": "shellback", "surface": "turn", "note": refusal} if refusal else {}),
        }
        conn.execute(sa.insert(approvals).values(request))
        if refusal:
            audited(conn, "refused", get(conn, request_id), by="shellback", surface="turn", reason=refusal)
        else:
            waiting[call.tool_name, call.digest] = request_id
            _announce(conn, get(conn, request_id), epoch, outbox)
    reach("approval.recorded")


def ask_again(
    conn: sa.Connection, request_id: str, call: Proposed, epoch: int, *, ttl_s: float, outbox: Outbox = SILENT
) -> None:
    """Ask about a request as a person has changed it; the caller blocks the conversation in the same transaction."""
    request = get(conn, request_id)
    now = time.time()
    values: dict[str, Any] = {
        "display": call.display | _about_session(conn, request.conversation_id, call),
        "digest": call.digest,
        "state": "pending",
        "created_at": now,
        "expires_at": now + ttl_s,
        "session_id": _session_of(call),
        "decided_at": None,
        "decided_by": None,
        "surface": None,
    }
    asked = sa.update(approvals).where(approvals.c.id == request_id, approvals.c.state == "changed")
    if conn.execute(asked.values(values)).rowcount == 0:
        return
    _announce(conn, get(conn, request_id), epoch, outbox)


def _announce(conn: sa.Connection, request: Request, epoch: int, outbox: Outbox) -> None:
    """Tell whoever watches that a call waits."""
    told = {"id": request.id, "tool": request.tool_name, **request.display}
    stream.note(conn, request.conversation_id, request.turn_id, epoch, "approval", told)
    audited(conn, "asked", request)
    command = request.display.get("command")
    text = f"{request.tool_name} waits for approval as {request.id}" + (f": {shown(str(command))}" if command else "")
    asked = {"id": request.id, "tool": request.tool_name, "display": request.display, "shown": request.shown}
    outbox.put(conn, "approval", request.conversation_id, f"{request.call_key}:{request.digest}", text, asked)


def _same_waits(request_id: str) -> str:
    return f"an identical call waits for approval already ({request_id}); it is asked about and runs once"


def _too_many(limit: int) -> str:
    return f"{limit} calls of this conversation wait for approval already, and nobody is asked about more"


def _session_of(call: Proposed) -> str | None:
    """The session that a call is about, as its proposal has it."""
    name = call.display.get("session_id")
    about = tool_named(call.tool_name).act(call.args).category == "process"
    return name[:64] if about and isinstance(name, str) else None


def _about_session(conn: sa.Connection, conversation_id: str, call: Proposed) -> dict[str, Any]:
    """What a person has to know of the session that a call is about: what runs there, where, and at which tier."""
    name = _session_of(call)
    query = sa.select(sessions).where(sessions.c.id == name, sessions.c.conversation_id == conversation_id)
    row = conn.execute(query).one_or_none() if name else None
    if row is None:
        return {}
    tier = tier_of(conn, row)
    facts = {"session_command": row.command, "session_backend": row.backend, "session_profile": row.profile}
    return facts | ({"session_tier": tier} if tier else {})
