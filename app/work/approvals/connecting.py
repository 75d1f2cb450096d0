"""Requests for connections: a command asks about a host that is not listed, and its conversation goes on.

No turn asks, so none is resumed: the connection itself waits, or finds the decision when it is repeated. A yes that
holds once is for what waited when it was given; if nothing did, for the next connection. Decisions hold as long as a
request would have waited. A decision that no connection has had soon wakes the agent.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from shellback.exec.core.display import CONNECT
from shellback.exec.policy.rules.matching import Hit, Rules
from shellback.exec.wire.hosts import place
from shellback.storage import rows
from shellback.storage import rules as saved
from shellback.storage.rows import change, count
from shellback.storage.tables import approvals, conversations, sessions
from shellback.work.approvals import audit
from shellback.work.approvals.approvals import Request, get
from shellback.work.approvals.asking import Proposed, ask
from shellback.work.approvals.audit import audited
from shellback.work.approvals.uses import APART_S
from shellback.work.notices.notices import Outbox
from shellback.work.queue import mailbox
from shellback.work.queue.items import connect_item
from shellback.work.queue.mailbox import NO_TURN
from shellback.work.queue.queues import Enqueuer

LATE: Final = 200
"""Decisions that one look for late ones finds."""
ASKING_CHARS: Final = 2_000
"""Of the command that asks, as its request shows it."""
USED: Final = "a connection"
"""What has had a decision."""
TOLD: Final = "the agent was told"
"""This, when a decision came after the last connection had given up."""
SOON_S: Final = 8.0
"""A connection that waits has a decision by then, also if it has to find another reception first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A connection that waits since `waited_s` seconds; `scope` is its conversation.

    `session` is what the program says of itself, "" if nothing.
    """

    scope: str
    host: str
    port: int
    waited_s: float
    session: str = ""

    @property
    def place(self) -> str:
        """Host and port, as people write them."""
        return place(self.host, self.port)

    @property
    def digest(self) -> str:
        """What a decision is bound to."""
        return hashlib.sha256(json.dumps([CONNECT, self.scope, self.place]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One of three: what `allowed` it, why it is `refused` and `by` what, or the request for which it `waits`."""

    allowed: str = ""
    refused: str = ""
    waits: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms questions are asked: the operator's rules, how long a request waits, and how many may."""

    rules: Rules
    ttl_s: float
    limit: int
    outbox: Outbox


def judged(conn: sa.Connection, question: Question, terms: Terms) -> Answer:
    """The answer to a question, which uses the decision or rule that allows it; equal questions share one request.

    Rules that deny go before decisions, and these before rules that ask or allow.
    """
    conversation = mailbox.lock(conn, question.scope)
    if conversation is None:
        return Answer(refused=f"{question.place} is not on the list, and no person can be asked outside a conversation")
    now, rules = rows.now(conn), terms.rules.plus(saved.live(conn, question.scope))
    hit = rules.connection(question.host, question.port, question.scope, now)
    if hit is not None and hit.effect == "deny":
        return Answer(refused=f"{question.place} is denied: {hit.reason}", by=hit.name)
    last = _last(conn, question)
    if last is not None and _holds(last, question, now):
        _had(conn, last)
        return Answer(allowed=f"request {last.id}")
    if hit is not None and hit.effect == "allow":
        return _by_rule(conn, question, hit)
    return _standing(conn, last, question, now) or _asked(conn, question, terms)


def decided(conn: sa.Connection, request_id: str) -> bool:
    """Whether a request waits no more."""
    return get(conn, request_id).state != "pending"


def late(conn: sa.Connection, host_id: str) -> dict[str, float]:
    """Decisions for agents of a host that no connection has had: by request, the seconds until `tell` is due."""
    now = rows.now(conn)
    query = (
        sa.select(approvals.c.id, approvals.c.decided_at)
        .join(conversations, conversations.c.id == approvals.c.conversation_id)
        .where(
            approvals.c.turn_id == NO_TURN,
            approvals.c.state.in_(("approved", "denied")),
            approvals.c.used_by.is_(None),
            sa.or_(approvals.c.scope == "session", approvals.c.decided_at >= now - _held_s),
            conversations.c.host_id == host_id,
            conversations.c.driver == mailbox.AGENT,
        )
        .order_by(approvals.c.decided_at)
        .limit(LATE)
    )
    # A clock that was set back makes nobody wait for longer.
    return {row.id: min(max(0.0, row.decided_at + SOON_S - now), SOON_S) for row in conn.execute(query)}


_held_s: Final = approvals.c.expires_at - approvals.c.created_at
"""How long a decision holds."""


def tell(conn: sa.Connection, enqueuer: Enqueuer, request_id: str) -> None:
    """Wake the agent for a decision that no connection has had: its command gave up before. A repeat tells nothing."""
    found = get(conn, request_id)
    conversation = mailbox.lock(conn, found.conversation_id)
    request = get(conn, request_id)
    if conversation is None or request.used_by is not None:
        return
    change(conn, approvals, request.id, used_by=TOLD)
    payload = {
        "connect": request.display[CONNECT],
        "decision": request.state,
        "scope": request.scope,
        "by": request.decided_by,
        "note": request.note,
        "session_id": request.display.get("session"),
        "command": request.display.get("asking"),
    }
    item = connect_item(request.conversation_id, request.id, payload)
    mailbox.put(conn, enqueuer, conversation, item, kind="connect", payload=payload, dedupe_key=item.id)


def _had(conn: sa.Connection, request: Request) -> None:
    """Note that a connection has a decision; a yes is used by the first."""
    if request.state == "approved":
        change(conn, approvals, request.id, state="used", used_by=USED)
        audited(conn, "used", request)
    elif request.used_by is None:
        change(conn, approvals, request.id, used_by=USED)


def _last(conn: sa.Connection, question: Question) -> Request | None:
    query = sa.select(approvals).where(
        approvals.c.conversation_id == question.scope,
        approvals.c.turn_id == NO_TURN,
        approvals.c.digest == question.digest,
    )
    row = conn.execute(query.order_by(approvals.c.created_at.desc()).limit(1)).mappings().one_or_none()
    return None if row is None else Request(**row)


def _holds(request: Request, question: Question, now: float) -> bool:
    """Whether a yes is for this connection."""
    if request.state not in {"approved", "used"} or request.decided_at is None:
        return False
    if request.scope == "session":
        return True
    waited = now - question.waited_s <= request.decided_at
    return _fresh(request, now) and (waited or request.state == "approved")


def _standing(conn: sa.Connection, request: Request | None, question: Question, now: float) -> Answer | None:
    """The answer by a request that is open, or that was denied lately."""
    if request is not None and request.state == "pending":
        return Answer(waits=request.id)
    if request is None or request.state != "denied" or not _fresh(request, now):
        return None
    _had(conn, request)
    why = f": {request.note}" if request.note else ""
    return Answer(refused=f"{question.place} was denied by {request.decided_by}{why}", by=f"request {request.id}")


def _fresh(request: Request, now: float) -> bool:
    """Whether a decision is no older than a request may become, by a clock that was not set back."""
    age_s = now - (request.decided_at or 0.0)
    return -APART_S <= age_s <= request.expires_at - request.created_at


def _by_rule(conn: sa.Connection, question: Question, hit: Hit) -> Answer:
    saved.use(conn, hit.rule_ids)
    by = hit.name
    entry = audit.Entry(
        event="rule",
        conversation_id=question.scope,
        tool=CONNECT,
        digest=question.digest,
        rule=hit.source if not hit.rule_ids else " ".join(hit.rule_ids),
        done_by=by,
        command=question.place,
    )
    audit.note(conn, entry)
    return Answer(allowed=by)


def _asked(conn: sa.Connection, question: Question, terms: Terms) -> Answer:
    open_ones = (approvals.c.conversation_id == question.scope, approvals.c.state == "pending")
    if count(conn, approvals, *open_ones, approvals.c.turn_id == NO_TURN) >= terms.limit:
        return Answer(
            refused=f"{question.place} is not on the list, and {terms.limit} other hosts wait for a person already:"
            " repeat this when they are decided"
        )
    key = f"{CONNECT}:{uuid.uuid4().hex}"
    call = Proposed(
        call_key=key,
        tool_call_id=key,
        tool_name=CONNECT,
        args={"host": question.host, "port": question.port},
        display={CONNECT: question.place, **_asker(conn, question)},
        digest=question.digest,
    )
    ask(conn, question.scope, NO_TURN, 0, [call], ttl_s=terms.ttl_s, outbox=terms.outbox, limit=terms.limit)
    asked = _last(conn, question)
    assert asked is not None
    return Answer(waits=asked.id)


def _asker(conn: sa.Connection, question: Question) -> dict[str, str]:
    """The command that asks, if it says so and is one of the conversation. A person decides about the host alone."""
    one = sessions.c.id == question.session, sessions.c.conversation_id == question.scope
    command = conn.execute(sa.select(sessions.c.command).where(*one)).scalar()
    return {} if command is None else {"session": question.session, "asking": command[:ASKING_CHARS]}
