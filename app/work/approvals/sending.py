"""Sends messages to conversations, and reports what became of them."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.errors import OutcomeUnknown
from shellback.storage.rows import exists
from shellback.storage.tables import audit, conversations, turns
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import approvals
from shellback.work.errors import InvalidRequest
from shellback.work.queue import mailbox, stream
from shellback.work.queue.items import Priority, chat_item
from shellback.work.queue.mailbox import Placed, Workspace
from shellback.work.queue.queues import Enqueuer

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}\Z")
TEXT_CHARS: Final = 100_000
OUT_OF_BUDGET: Final = frozenset({"UsageLimitExceeded", "OutOfTime"})
"""Error types of turns that used up their budget or time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A stored message. `item_id` is its work item; `event` is the number before its event, while that is kept."""

    item_id: str
    conversation_id: str
    pending_approvals: int
    blocked: str | None
    event: int


def send(  # noqa: PLR0913 - what a message is
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation_id: str,
    text: str,
    *,
    host_id: str,
    priority: Priority = Priority.NORMAL,
    waiting: bool = True,
    interrupt: bool = False,
    by: str = "person",
    key: str | None = None,
    workspace: Workspace | None = None,
    place: Placed | None = None,
) -> Sent:
    """Store a message with its work item. With a `key` it is stored once. A new conversation works in `workspace`.

    With `place`, that finds the host of a new conversation; without it that is `host_id`.

    The message waits while approvals are pending. With `interrupt` they are denied as superseded, and the turn that is
    told so also reads the message.

    Raises:
        InvalidRequest: The name or the text is not acceptable, the key is that of another message, or the conversation
            works in another workspace or began without the labels of `place`.
    """
    require_name(conversation_id)
    if not text.strip() or "\x00" in text:
        raise InvalidRequest("the message is empty or holds a NUL byte; say something")
    if len(text) > TEXT_CHARS:
        raise InvalidRequest(f"the message has {len(text)} characters; at most {TEXT_CHARS} are taken")
    event = stream.last_number(conn)
    conversation = mailbox.open_conversation(conn, conversation_id, host_id=host_id, workspace=workspace, place=place)
    if conversation.driver != mailbox.AGENT:
        raise InvalidRequest(
            f"conversation {conversation_id} belongs to an MCP client, and no agent would read the message: give "
            "another name, or write to the client itself"
        )
    item = chat_item(conversation_id, priority=priority, waiting=waiting)
    if key is not None:
        item = replace(item, id=f"{item.type.value}:{key}")
    before = conn.execute(sa.select(rows.c.payload).where(rows.c.dedupe_key == item.id)).scalar_one_or_none()
    if before is not None and before["text"] != text:
        raise InvalidRequest("the key of this message was used for another one: give each message a key of its own")
    if before is not None:
        stored = stream.number_of(conn, conversation_id, item.id, "message")
        event = event if stored is None else stored - 1
    else:
        mailbox.put(
            conn, enqueuer, conversation, item, kind="message", payload={"text": text, "by": by}, dedupe_key=item.id
        )
        stream.note(conn, conversation_id, item.id, 0, "message", {"text": text, "by": by})
        if interrupt:
            approvals.supersede(conn, enqueuer, conversation_id, by=by, surface="send --interrupt")
    pending = mailbox.undecided(conn, conversation_id)
    blocked = conversation.blocked_reason if conversation.state == "blocked" else None
    return Sent(
        item_id=item.id,
        conversation_id=conversation_id,
        pending_approvals=pending,
        blocked=None if blocked == "approval" and not pending else blocked,
        event=event,
    )


def deliver(database: Database, enqueuer: Enqueuer, conversation_id: str, text: str, **how: Any) -> Sent:
    """`send` in a transaction of its own; after an unknown outcome it is repeated once. The message is stored once.

    The caller gives a `key` if it repeats the message itself.

    Raises:
        InvalidRequest: The name or the text is not acceptable.
        OutcomeUnknown: The outcome of the repeat is unknown too.
    """
    how.setdefault("key", uuid.uuid4().hex)
    try:
        return database.write_now(send, enqueuer, conversation_id, text, **how)
    except OutcomeUnknown:
        return database.write_now(send, enqueuer, conversation_id, text, **how)


def require_name(conversation_id: str) -> None:
    """Raise `InvalidRequest` if a conversation cannot have this name."""
    if not NAME.match(conversation_id):
        raise InvalidRequest(
            f"conversation name {conversation_id!r}: use 1 to 100 letters, digits and . _ : @ -, beginning with no sign"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The progress of a message: the turn that took it, or that continued after approvals, and its answer."""

    turn_id: str | None
    outcome: str | None
    answer: str | None
    blocked: str | None
    begun: str | None = None
    """The turn that took the message."""
    out_of_budget: bool = False
    denied: bool = False
    """Whether a call was denied before the answer: by a person, by expiry, or by policy."""


def heard(conn: sa.Connection, item_id: str, conversation_id: str, turn_id: str | None = None) -> Heard:
    """The progress of the message of `item_id`, or of what turn `turn_id` has begun."""
    if turn_id is None:
        turn_id = conn.execute(sa.select(rows.c.taken_by).where(rows.c.dedupe_key == item_id)).scalar_one_or_none()
    conversation = conn.execute(sa.select(conversations).where(conversations.c.id == conversation_id)).one_or_none()
    blocked = conversation.blocked_reason if conversation is not None and conversation.state == "blocked" else None
    turn = conn.execute(sa.select(turns).where(turns.c.id == turn_id)).one_or_none() if turn_id else None
    if turn is not None and turn.outcome == "pending_approval":
        # Only the turn that continues with its calls can follow.
        later = sa.select(turns).where(
            turns.c.conversation_id == conversation_id, turns.c.epoch > turn.epoch, turns.c.answer.is_not(None)
        )
        turn = conn.execute(later.order_by(turns.c.epoch).limit(1)).one_or_none() or turn
    return Heard(
        turn_id=turn.id if turn is not None else turn_id,
        outcome=turn.outcome if turn is not None else None,
        answer=turn.answer if turn is not None else None,
        blocked=blocked,
        begun=turn_id,
        out_of_budget=turn is not None and (turn.error or "").partition(":")[0] in OUT_OF_BUDGET,
        denied=turn is not None and turn.outcome == "answered" and _denied(conn, conversation_id, turn_id, turn),
    )


def _denied(conn: sa.Connection, conversation_id: str, first: str | None, last: sa.Row[Any]) -> bool:
    """Whether a call was denied between the start of turn `first` and the end of `last`."""
    began = sa.select(turns.c.started_at).where(turns.c.id == first).scalar_subquery()
    query = sa.select(audit.c.id).where(
        audit.c.conversation_id == conversation_id,
        audit.c.event.in_(("denied", "expired", "refused")),
        audit.c.at >= began,
        audit.c.at <= last.ended_at,
    )
    return exists(conn, query)
