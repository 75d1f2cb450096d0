"""Requests for approval: rows bound to what will run, decided by a person, used once.

States of a request::

    pending ──▶ approved ──▶ used
       ├──▶ denied | expired | superseded
       └──▶ changed ──▶ pending, as the worker proposes what a person wants instead
    refused, at once: an identical call waits already, or too many calls wait

`asking` writes requests, `uses` uses them. No turn waits for a decision: its closing transaction writes the requests
and blocks the conversation, and the transaction of the last decision enqueues one APPROVAL item.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.exec.core.display import SECRETS, request_lines
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.rows import begun, candidates, change, count, given
from shellback.storage.tables import approvals, conversations, turns
from shellback.work.approvals.audit import audited
from shellback.work.approvals.uses import APART_S
from shellback.work.errors import ApprovalRefused, ApprovalSettled, UnknownApproval
from shellback.work.queue import mailbox, stream
from shellback.work.queue.items import ItemType, Priority, epoch_item
from shellback.work.queue.queues import Enqueuer

CLIENT: Final = "elicitation"
"""The surface of a decision that the program made which asks for the call, by itself or for the person at it."""
Decision = Literal["approved", "denied", "expired", "superseded", "changed"]
Scope = Literal["once", "session"]
NOTE_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call, or a command's question about a host, that waits, or waited, for a person.

    `display` is shown to the person; `digest` covers everything that will run. `args` are the model's; `changed_args`
    replace them if the person `changed_by` changed the call. `session_id` is the session that the call concerns.
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
    scope: str = "once"
    session_id: str | None = None
    changed_args: dict[str, Any] | None = None
    changed_by: str | None = None

    @property
    def of_call(self) -> bool:
        """Whether a call waits for it."""
        return self.turn_id != mailbox.NO_TURN

    @property
    def shown(self) -> str:
        """The whole display, escaped for a terminal; it decodes to exactly what runs."""
        return "\n".join(request_lines(self.display))


def why_not_for_session(request: Request) -> str | None:
    """Why this cannot be approved for longer than one call; None if it can: input, and a connection."""
    if not request.of_call:
        return None
    from shellback.exec.policy.classify.model import Tier
    from shellback.exec.tools.registry import tool_named  # imports all tools: slow, and most commands need none

    act = tool_named(request.tool_name).act(request.changed_args or request.args)
    if not act.input or request.session_id is None:
        return f"{request.tool_name} is no input to a session"
    if request.display.get("tier") == str(Tier.ADMIN):
        return f"this command is of tier {Tier.ADMIN}"
    tier = request.display.get("session_tier")
    if tier is None:
        return f"the tier of what runs in session {request.session_id} is not on record"
    if tier == str(Tier.ADMIN):
        return f"session {request.session_id} runs at tier {tier}"
    return None


def why_not_by_client(request: Request) -> str | None:
    """Why the client that asks for a call may not decide about it; None if it may. What is not on record counts."""
    tiers = [request.display.get("tier"), *([request.display.get("session_tier")] if request.session_id else [])]
    if not all(tier in {"read_only", "read_write"} for tier in tiers):
        return f"its tier is {'admin' if 'admin' in tiers else 'not on record'}"
    if request.display.get(SECRETS) != []:
        return "it names a listed secret, or may reach one"
    return None


def get(conn: sa.Connection, request_id: str) -> Request:
    """The request whose id is or begins with `request_id`; UnknownApproval if no request matches, or more than one."""
    found = begun(conn, approvals.c.id, request_id)
    if len(found) > 1:
        raise UnknownApproval(candidates(request_id, "approval requests", [row["id"] for row in found]))
    if not found:
        raise UnknownApproval(f"no approval request {request_id!r}: `shellback approvals list --all` lists them")
    return Request(**found[0])


def waiting(conn: sa.Connection, request_id: str) -> tuple[Request, float]:
    """`get`, and the seconds after which nobody decided in time; 0 at least."""
    request = get(conn, request_id)
    return request, _left(request.created_at, request.expires_at, rows.now(conn))


def find(
    conn: sa.Connection,
    *,
    conversation_id: str | None = None,
    state: str | None = None,
    of_calls: bool = False,
    limit: int = 500,
) -> list[Request]:
    """Requests, oldest first, at most `limit`; `of_calls`: without questions about hosts."""
    which = given((approvals.c.conversation_id, conversation_id), (approvals.c.state, state))
    calls = [mailbox.of_calls()] if of_calls else []
    query = sa.select(approvals).where(*which, *calls).order_by(approvals.c.created_at).limit(limit)
    return [Request(**row) for row in conn.execute(query).mappings()]


def pending(conn: sa.Connection) -> int:
    """How many requests wait for a person."""
    return count(conn, approvals, approvals.c.state == "pending")


def decided_last(conn: sa.Connection, *, since: float, limit: int) -> list[Request]:
    """Requests that a person has decided since then, or that have expired, the last one first."""
    settled = (approvals.c.decided_at >= since, approvals.c.state.not_in(["pending", "changed"]))
    query = sa.select(approvals).where(*settled).order_by(approvals.c.decided_at.desc()).limit(limit)
    return [Request(**row) for row in conn.execute(query).mappings()]


def decide(  # noqa: PLR0913 - what a decision is
    conn: sa.Connection,
    enqueuer: Enqueuer,
    request_id: str,
    decision: Decision,
    *,
    by: str,
    surface: str,
    note: str | None = None,
    scope: Scope = "once",
    digest: str | None = None,
    args: dict[str, Any] | None = None,
) -> Request:
    """Settle one request; the last decision of a conversation enqueues the APPROVAL item that resumes it.

    A `digest` must be the request's; a request that a person has changed needs one. With the decision `changed`, the
    worker proposes the call with `args` instead, and asks again about exactly that call.

    Raises:
        UnknownApproval: No such request.
        ApprovalSettled: It has been decided, used, superseded, or has expired.
        ApprovalRefused: Input cannot be approved for this whole session, or the request is not the one that was seen.
    """
    request = get(conn, request_id)
    conversation = mailbox.lock(conn, request.conversation_id)
    request = get(conn, request.id)
    if request.state != "pending":
        by = f" by {request.decided_by}" if request.decided_by else ""
        raise ApprovalSettled(f"approval request {request.id} is {request.state} already{by}; nothing was changed")
    if digest is not None and digest != request.digest:
        raise ApprovalRefused(f"approval request {request.id} has changed since you saw it; look at it again")
    if digest is None and decision == "approved" and request.changed_by is not None:
        # The person may have seen this id before the change.
        raise ApprovalRefused(
            f"{request.changed_by} changed approval request {request.id} after it was made; inspect it, then "
            f"approve it with --digest {request.digest}"
        )
    if surface == CLIENT and (why := why_not_by_client(request)):
        raise ApprovalRefused(f"approval request {request.id} is decided by a person, not by a client: {why}")
    if scope == "session" and (why := why_not_for_session(request)):
        raise ApprovalRefused(f"{why}, so it is approved for one call at a time")
    now = rows.now(conn)
    driven = conversation is None or conversation.driver == mailbox.AGENT
    if decision == "changed" and not (driven and request.of_call):
        whose = "of an MCP client, which alone can change its call" if request.of_call else "about a connection"
        raise ApprovalRefused(f"approval request {request.id} is {whose}: deny it with a reason")
    if decision in {"approved", "changed"} and _left(request.created_at, request.expires_at, now) <= 0:
        decision = "expired"
    values: dict[str, Any] = {
        "state": decision,
        "decided_at": now,
        "decided_by": by[:100],
        "surface": surface,
        "note": note[:NOTE_CHARS] if note else None,
        "scope": scope if decision == "approved" else "once",
        **({"changed_args": args, "changed_by": by[:100]} if decision == "changed" else {}),
    }
    change(conn, approvals, request.id, **values)
    facts = {"scope": scope} if scope != "once" else {"args": args} if args is not None else None
    audited(conn, decision, request, done_by=by, surface=surface, reason=note, facts=facts)
    told = {"id": request.id, "decision": decision, "by": by}
    stream.note(conn, request.conversation_id, request.turn_id, 0, "decision", told)
    if conversation is not None and not (driven and request.of_call):
        enqueuer.decided(conn, host_id=conversation.host_id)
    elif conversation is not None and not mailbox.undecided(conn, request.conversation_id):
        resume(conn, enqueuer, conversation)
    return get(conn, request.id)


def settle(
    database: Database,
    enqueuer: Enqueuer,
    request_id: str,
    decision: Decision,
    *,
    then: Callable[[sa.Connection, Request], None] | None = None,
    **how: Any,
) -> Request:
    """`decide` in a transaction of its own; a refusal is audited. `then` runs in it if the decision stands.

    Raises:
        UnknownApproval: No such request.
        ApprovalSettled: It has been decided, used, superseded, or has expired.
        ApprovalRefused: It cannot be decided in this way.
    """

    def act(conn: sa.Connection) -> Request:
        request = decide(conn, enqueuer, request_id, decision, **how)
        if then is not None and request.state == decision:
            then(conn, request)
        return request

    try:
        return database.write_now(act)
    except (ApprovalSettled, ApprovalRefused) as error:
        told: dict[str, Any] = {"done_by": how["by"], "surface": how["surface"], "reason": str(error)}
        database.write_now(
            lambda conn: audited(conn, "refused", get(conn, request_id), facts={"wanted": decision}, **told)
        )
        raise


def resume(conn: sa.Connection, enqueuer: Enqueuer, conversation: sa.Row[Any], suffix: str = "") -> None:
    """Enqueue the APPROVAL item of a conversation whose calls are all decided."""
    item = epoch_item(
        ItemType.APPROVAL, conversation.id, conversation.epoch, priority=Priority.HIGH, waiting=True, suffix=suffix
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
    """Deny calls that wait because the person wants something else; returns how many."""
    pending = find(conn, conversation_id=conversation_id, state="pending", of_calls=True)
    for request in pending:
        decide(conn, enqueuer, request.id, "superseded", by=by, surface=surface, note=note)
    return len(pending)


def left(conn: sa.Connection, host_id: str | None = None) -> dict[str, float]:
    """The seconds that each pending request still has, 0 at least; of at most 1,000 requests.

    With `host_id`, only requests in conversations of this host. Times are the database's (`rows.now`): if its clock
    leaps forward, requests expire early; if it is set back to before a request, that expires too: its age is unknown.
    """
    query = sa.select(approvals.c.id, approvals.c.created_at, approvals.c.expires_at)
    pending = query.where(approvals.c.state == "pending").order_by(approvals.c.expires_at).limit(1000)
    if host_id is not None:
        here = sa.select(conversations.c.id).where(conversations.c.host_id == host_id)
        pending = pending.where(approvals.c.conversation_id.in_(here))
    now = rows.now(conn)
    return {row.id: _left(row.created_at, row.expires_at, now) for row in conn.execute(pending)}


def _left(created_at: float, expires_at: float, now: float) -> float:
    return 0.0 if created_at > now + APART_S else max(0.0, expires_at - now)


def asked_last(conversation_id: str) -> sa.ScalarSelect[Any]:
    """The turn that asked last, by epoch. Clocks may be set, and tool call ids repeat."""
    return (
        sa.select(approvals.c.turn_id)
        .join(turns, turns.c.id == approvals.c.turn_id)
        .where(approvals.c.conversation_id == conversation_id)
        .order_by(turns.c.epoch.desc())
        .limit(1)
        .scalar_subquery()
    )


def decided(conn: sa.Connection, conversation_id: str) -> list[Request]:
    """The settled requests of the turn that asked last; they resume a paused conversation."""
    query = sa.select(approvals).where(
        approvals.c.turn_id == asked_last(conversation_id), approvals.c.state != "pending"
    )
    return [Request(**row) for row in conn.execute(query).mappings()]
