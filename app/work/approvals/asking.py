"""Asks a person: writes one request for each call that waits, bound to exactly what would run."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic_ai import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.conversation import Conversation

from shellback.exec.core.model import CallKey
from shellback.exec.policy.policy import Approval
from shellback.exec.tools.registry import tool_named
from shellback.exec.wire.crashpoints import reach
from shellback.storage import rows
from shellback.storage.tables import approvals, sessions
from shellback.work.approvals.approvals import Request, find, get
from shellback.work.approvals.audit import audited
from shellback.work.approvals.showing import brief
from shellback.work.approvals.uses import tier_of
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import stream
from shellback.work.queue.mailbox import NO_TURN

PENDING: Final = 20
"""At most this many calls of one conversation wait for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A call of the model that needs a decision."""

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
    proposed: Sequence[Proposed],
    *,
    ttl_s: float,
    outbox: Outbox = SILENT,
    limit: int = PENDING,
) -> None:
    """Write one request per call; the caller blocks the conversation in the same transaction.

    A call that is identical to a waiting one, or exceeds `limit`, is refused at once, and the model is told why.
    """
    waiting = {
        (one.tool_name, one.digest): one.id
        for one in find(conn, conversation_id=conversation_id, state="pending")
        if one.of_call is (turn_id != NO_TURN)
    }
    for call in proposed:
        request_id = f"a{uuid.uuid4().hex[:11]}"
        same = waiting.get((call.tool_name, call.digest))
        refusal = _same_waits(same) if same else _too_many(limit) if len(waiting) >= limit else None
        now = rows.now(conn)
        request = {
            **asdict(call),
            "id": request_id,
            "conversation_id": conversation_id,
            "turn_id": turn_id,
            "display": call.display | _about_session(conn, conversation_id, call),
            "state": "refused" if refusal else "pending",
            "created_at": now,
            "expires_at": now + ttl_s,
            "session_id": _session_of(call),
            **({"decided_at": now, "decided_by": "shellback", "surface": "turn", "note": refusal} if refusal else {}),
        }
        conn.execute(sa.insert(approvals).values(request))
        if refusal:
            audited(conn, "refused", get(conn, request_id), done_by="shellback", surface="turn", reason=refusal)
        else:
            waiting[call.tool_name, call.digest] = request_id
            _announce(conn, get(conn, request_id), epoch, outbox)
    reach("approval.recorded")


def ask_again(
    conn: sa.Connection, request_id: str, call: Proposed, epoch: int, *, ttl_s: float, outbox: Outbox = SILENT
) -> None:
    """Ask about a call that a person has changed; the caller blocks the conversation in the same transaction."""
    request = get(conn, request_id)
    now = rows.now(conn)
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
    """Write the event, the audit row and the notice of a waiting call."""
    told = {"id": request.id, "tool": request.tool_name, **request.display}
    stream.note(conn, request.conversation_id, request.turn_id, epoch, "approval", told)
    audited(conn, "asked", request)
    asked = {"id": request.id, "tool": request.tool_name, "display": request.display, "shown": request.shown}
    text = "\n".join(brief(request))
    outbox.put(conn, "approval", request.conversation_id, f"{request.call_key}:{request.digest}", text, asked)


def _same_waits(request_id: str) -> str:
    return f"an identical call waits for approval already ({request_id}); it is asked about and runs once"


def _too_many(limit: int) -> str:
    return f"{limit} calls of this conversation wait for approval already, and nobody is asked about more"


def _session_of(call: Proposed) -> str | None:
    """The session that a call concerns, from its proposal."""
    name = call.display.get("session_id")
    about = tool_named(call.tool_name).act(call.args).category == "process"
    return name[:64] if about and isinstance(name, str) else None


def _about_session(conn: sa.Connection, conversation_id: str, call: Proposed) -> dict[str, Any]:
    """Facts about the session that a call concerns: its command, backend, profile and tier."""
    name = _session_of(call)
    query = sa.select(sessions).where(sessions.c.id == name, sessions.c.conversation_id == conversation_id)
    row = conn.execute(query).one_or_none() if name else None
    if row is None:
        return {}
    tier = tier_of(conn, row)
    facts = {"session_command": row.command, "session_backend": row.backend, "session_profile": row.profile}
    return facts | ({"session_tier": tier} if tier else {})


def results_of(conversation: Conversation, decided: Sequence[Request]) -> DeferredToolResults | None:
    """Answers for every call at which the conversation is paused."""
    deferred = conversation.deferred_tool_requests
    if deferred is None or not deferred.approvals:
        return None
    by_call = {request.tool_call_id: request for request in decided}
    results = DeferredToolResults()
    for call in deferred.approvals:
        request = by_call.get(call.tool_call_id)
        results.approvals[call.tool_call_id] = (
            ToolApproved(override_args=request.changed_args)
            if request and request.state in {"approved", "used"}
            else ToolDenied(refusal(request))
        )
    return results


def changes_in(decided: Sequence[Request]) -> list[str]:
    """Texts that tell the model which calls a person has changed."""
    return [
        f"[{request.changed_by} changed your call {request.tool_call_id} of {request.tool_name} before approving it."
        f" It was called with these arguments instead: {json.dumps(request.changed_args)}]"
        for request in decided
        if request.changed_args is not None and request.state in {"approved", "used"}
    ]


def refusal(request: Request | None) -> str:
    """Why a call was not carried out, for the model."""
    match request.state if request else None:
        case "denied":
            assert request is not None
            said = f": {request.note}" if request.note else ""
            return f"Denied by {request.decided_by}{said}. Do not try the same in another way."
        case "expired":
            return "Denied: nobody decided in time (expired). Ask again only if it is still needed."
        case "superseded" if request is not None and request.surface == "stop":
            return f"Denied: {request.decided_by} stopped this instead. Do not try it again unless you are told to."
        case "refused":
            assert request is not None
            return f"Denied: {request.note}. Nobody was asked about this one; make it again if it is still needed."
        case "superseded":
            return "Denied: the person sent a new message instead (superseded). Read it first."
        case _:
            return "Denied: there is no decision on record for this call."


def grants_of(decided: Sequence[Request]) -> dict[CallKey, Approval]:
    """The approvals, by call key."""
    return {
        CallKey(request.call_key): Approval(request.id, request.digest)
        for request in decided
        if request.state in {"approved", "used"}
    }
