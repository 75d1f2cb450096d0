"""Requests for approval: rows bound to what will run, decided by a person, used once.

States of a request::

    pending ──▶ approved ──▶ used
       └──▶ denied | expired | superseded

Nothing waits inside a turn. The closing transaction of a turn writes its requests and blocks the
conversation; the transaction that settles the last of them enqueues one APPROVAL item.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from app.exec.errors import CommandDenied
from app.exec.model import CallKey, Session
from app.exec.supervisor.crashpoints import reach
from app.storage.tables import approvals, conversations, turns
from app.work import mailbox, stream
from app.work.errors import ApprovalSettled, UnknownApproval
from app.work.items import ItemType, Priority, epoch_item
from app.work.notices import SILENT, Outbox
from app.work.queues import Enqueuer

Decision = Literal["approved", "denied", "expired", "superseded"]
NOTE_CHARS: Final = 2_000
APART_S: Final = 300.0
"""So far the clocks of two hosts may be apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call that waits, or waited, for a person.

    `display` is what the person is shown; `digest` names everything that will run.
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
    decided_at: float | None = None
    decided_by: str | None = None
    surface: str | None = None
    note: str | None = None
    used_by: str | None = None


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
) -> None:
    """Write one request per call; the caller blocks the conversation in the same transaction."""
    now = time.time()
    for call in proposed:
        request_id = f"a{uuid.uuid4().hex[:11]}"
        request = {
            "id": request_id,
            "conversation_id": conversation_id,
            "turn_id": turn_id,
            "call_key": call.call_key,
            "tool_call_id": call.tool_call_id,
            "tool_name": call.tool_name,
            "args": call.args,
            "display": call.display,
            "digest": call.digest,
            "state": "pending",
            "created_at": now,
            "expires_at": now + ttl_s,
        }
        conn.execute(sa.insert(approvals).values(request))
        stream.note(
            conn,
            conversation_id,
            turn_id,
            epoch,
            "approval",
            {"id": request_id, "tool": call.tool_name, **call.display},
        )
        asked = {"id": request_id, "tool": call.tool_name, "display": call.display}
        outbox.put(conn, "approval", conversation_id, call.call_key, _wanted(request_id, call), asked)
    reach("approval.recorded")


def _wanted(request_id: str, call: Proposed) -> str:
    command = f": {call.display['command']}" if "command" in call.display else ""
    return f"{call.tool_name} waits for approval as {request_id}{command}"


def get(conn: sa.Connection, request_id: str) -> Request:
    """One request.

    Raises:
        UnknownApproval: No request has this id, or more than one begins with it.
    """
    rows = (
        conn.execute(sa.select(approvals).where(approvals.c.id.startswith(request_id, autoescape=True)).limit(2))
        .mappings()
        .all()
    )
    if len(rows) != 1:
        raise UnknownApproval(
            f"no approval request {request_id!r}"
            if not rows
            else f"{request_id!r} is the beginning of more than one approval request; give more of it"
        )
    return _request(rows[0])


def find(conn: sa.Connection, *, conversation_id: str | None = None, state: str | None = None) -> list[Request]:
    """Requests, oldest first, at most 500."""
    query = sa.select(approvals).order_by(approvals.c.created_at).limit(500)
    if conversation_id is not None:
        query = query.where(approvals.c.conversation_id == conversation_id)
    if state is not None:
        query = query.where(approvals.c.state == state)
    return [_request(row) for row in conn.execute(query).mappings()]


def decide(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    request_id: str,
    decision: Decision,
    *,
    by: str,
    surface: str,
    note: str | None = None,
) -> Request:
    """Settle one request; the last one of its conversation enqueues the APPROVAL item that resumes it.

    Raises:
        UnknownApproval: No such request.
        ApprovalSettled: It has been decided, used, superseded, or has expired.
    """
    request = get(conn, request_id)
    conversation = mailbox.lock(conn, request.conversation_id)
    request = get(conn, request.id)
    if request.state != "pending":
        raise ApprovalSettled(f"approval request {request.id} is {request.state} already; nothing was changed")
    now = time.time()
    if decision == "approved" and _left(request.created_at, request.expires_at, now) <= 0:
        decision = "expired"
    conn.execute(
        sa.update(approvals)
        .where(approvals.c.id == request.id, approvals.c.state == "pending")
        .values(
            state=decision,
            decided_at=now,
            decided_by=by[:100],
            surface=surface,
            note=note[:NOTE_CHARS] if note else None,
        )
    )
    stream.note(
        conn,
        request.conversation_id,
        request.turn_id,
        0,
        "decision",
        {"id": request.id, "decision": decision, "by": by},
    )
    if conversation is not None and not mailbox.undecided(conn, request.conversation_id):
        resume(conn, enqueuer, conversation)
    return get(conn, request.id)


def resume(conn: sa.Connection, enqueuer: Enqueuer, conversation: sa.Row[Any], suffix: str = "") -> None:
    """Enqueue the one APPROVAL item of a conversation whose calls are all decided."""
    item = epoch_item(
        ItemType.APPROVAL,
        conversation.id,
        conversation.epoch,
        priority=Priority.HIGH,
        waiting=True,
        suffix=suffix,
    )
    enqueuer.put(conn, item, host_id=conversation.host_id)


def supersede(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation_id: str,
    *,
    by: str,
    surface: str,
    note: str = "a new message came instead",
) -> int:
    """Deny what is pending because the person wants something else instead; returns how many."""
    pending = find(conn, conversation_id=conversation_id, state="pending")
    for request in pending:
        decide(conn, enqueuer, request.id, "superseded", by=by, surface=surface, note=note)
    return len(pending)


def overdue(conn: sa.Connection) -> list[str]:
    """Requests that nobody decided in time; whoever finds them decides each as expired, on its own."""
    return [request_id for request_id, seconds in left(conn).items() if seconds <= 0]


def left(conn: sa.Connection, host_id: str | None = None) -> dict[str, float]:
    """The seconds that each pending request still has by the clock, 0 at least; of at most 1,000.

    Of the conversations of one host, whose clock made them, so that a wrong one harms nobody else's; or of all.
    A clock that jumped forward expires early. One that was set back to before the request expires it too: how long
    ago that was cannot be told any more.
    """
    query = sa.select(approvals.c.id, approvals.c.created_at, approvals.c.expires_at)
    pending = query.where(approvals.c.state == "pending").order_by(approvals.c.expires_at).limit(1000)
    if host_id is not None:
        here = sa.select(conversations.c.id).where(conversations.c.host_id == host_id)
        pending = pending.where(approvals.c.conversation_id.in_(here))
    now = time.time()
    return {row.id: _left(row.created_at, row.expires_at, now) for row in conn.execute(pending)}


def _left(created_at: float, expires_at: float, now: float) -> float:
    return 0.0 if created_at > now + APART_S else max(0.0, expires_at - now)


def consume_claim(conn: sa.Connection, session: Session) -> None:
    """Use the approval a new session was claimed with; part of the claim's transaction.

    Raises:
        CommandDenied: It cannot be used, so nothing is claimed.
    """
    if session.approval_id is not None:
        consume(conn, session.approval_id, session.id, session.digest)


def consume_call(conn: sa.Connection, key: CallKey) -> None:
    """Use the approval of a call that changes a session; part of the transaction that begins it.

    Raises:
        CommandDenied: It cannot be used, so nothing is done.
    """
    row = conn.execute(sa.select(approvals.c.id, approvals.c.digest).where(approvals.c.call_key == key)).one_or_none()
    if row is not None:
        consume(conn, row.id, key, row.digest)


def consume(conn: sa.Connection, request_id: str, user: str, digest: str) -> None:
    """Use an approval for the one thing it was given for, in the transaction that claims it.

    Raises:
        CommandDenied: It was used, is not an approval, or was given for something else.
    """
    done = conn.execute(
        sa.update(approvals)
        .where(approvals.c.id == request_id, approvals.c.state == "approved", approvals.c.digest == digest)
        .values(state="used", used_by=user)
    )
    if done.rowcount != 1:
        row = conn.execute(sa.select(approvals).where(approvals.c.id == request_id)).one_or_none()
        if row is not None and row.state == "used" and row.used_by == user:
            return
        state = "unknown" if row is None else row.state
        raise CommandDenied(f"approval {request_id} is {state} or was given for something else; nothing was started")


def asked_last(conversation_id: str) -> sa.ScalarSelect[Any]:
    """The turn that asked last, by epoch: neither clocks nor tool call ids, which come again, tell them apart."""
    return (
        sa.select(approvals.c.turn_id)
        .join(turns, turns.c.id == approvals.c.turn_id)
        .where(approvals.c.conversation_id == conversation_id)
        .order_by(turns.c.epoch.desc())
        .limit(1)
        .scalar_subquery()
    )


def decided(conn: sa.Connection, conversation_id: str) -> list[Request]:
    """The settled requests of the turn that asked last: what a paused conversation is resumed with."""
    query = sa.select(approvals).where(
        approvals.c.turn_id == asked_last(conversation_id), approvals.c.state != "pending"
    )
    return [_request(row) for row in conn.execute(query).mappings()]


def _request(row: sa.RowMapping) -> Request:
    return Request(**dict(row))
