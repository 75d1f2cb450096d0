"""The beginning of a turn: what its first step reads, once and for every replay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Final

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationRecord

from shellback.storage.history import read_record_in
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.queue import mailbox
from shellback.work.queue.items import WorkItem
from shellback.work.queue.mailbox import Letter
from shellback.work.turn import stopping

BEGIN_STEP: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What the first step read. `decided` is empty unless the conversation is paused at calls for approval."""

    gate: bool
    record: ConversationRecord | None
    at: float = 0.0
    letters: list[Letter] = field(default_factory=list[Letter])
    decided: list[Request] = field(default_factory=list[Request])


def begin(conn: sa.Connection, item: WorkItem, epoch: int, gate: bool) -> Begun:
    """Read the head of the history and take what is unread; a turn that is to end takes what the wish is about.

    Raises:
        StaleTurn: This execution no longer holds the conversation.
    """
    wish = stopping.wish_of(mailbox.held(conn, item.conversation_id, item.id, epoch), item.id)
    record = read_record_in(conn, item.conversation_id)
    paused = record is not None and record.deferred_tool_requests is not None
    # A paused one only ends the calls that waited: what came behind them is for the next turn.
    take = not (paused and wish)
    apart = wish is not None
    return Begun(
        gate=gate,
        at=time.time(),
        record=record,
        letters=mailbox.take(conn, item.conversation_id, item.id, BEGIN_STEP, apart=apart) if take else [],
        decided=decided(conn, item.conversation_id, wish) if paused else [],
    )


def decided(conn: sa.Connection, conversation_id: str, wish: str | None) -> list[Request]:
    """What was decided of the calls a conversation is paused at; where somebody wants the turn to end, no approval."""
    found = approvals.decided(conn, conversation_id)
    if wish is None:
        return found
    # Approved or changed, but not begun: a tool of somebody's own does not look for a wish by itself.
    stopped = {"state": "superseded", "decided_by": wish, "surface": "stop"}
    return [replace(request, **stopped) if request.state in {"approved", "changed"} else request for request in found]
