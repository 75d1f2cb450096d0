"""The end of a turn: one transaction for history, mailbox, approvals and claim, keyed by the turn."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord

from shellback.exec.core.model import SessionId
from shellback.exec.wire.crashpoints import reach
from shellback.storage.db import Database
from shellback.storage.history import SqlConversationStore, write_record_in
from shellback.storage.tables import conversations, turns
from shellback.work.approvals import asking
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import mailbox, stream, watch_wakes
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import claims, stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a turn leaves behind. `answer` is what the person reads; None while calls wait for approval.

    `heard` are the mailbox rows that the history has; other rows the turn took become unread again.
    """

    conversation_id: str
    turn_id: str
    epoch: int
    outcome: str
    answer: str | None = None
    error: str | None = None
    proposed: tuple[asking.Proposed, ...] = ()
    again: Mapping[str, asking.Proposed] = field(default_factory=dict[str, asking.Proposed])
    """Requests that a person has changed, each with the call it is now."""
    told: frozenset[SessionId] = field(default_factory=frozenset[SessionId])
    read: tuple[watch_wakes.Range, ...] = ()
    heard: frozenset[int] = field(default_factory=frozenset[int])
    ttl_s: float = 3600.0
    pending_limit: int = asking.PENDING
    outbox: Outbox = SILENT


def close(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    closing: Closing,
    record: ConversationRecord | None,
    new_entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> str:
    """Commit the end of a turn and release its conversation; returns the outcome that stands.

    A repeat returns the stored outcome and changes nothing (invariant 4).

    Raises:
        StaleTurn: Another execution holds the conversation.
        ConversationConflict: The history is not the one this turn began with.
    """
    stored = outcome_of(conn, closing.turn_id)
    if stored is not None:
        return stored
    conversation = mailbox.held(conn, closing.conversation_id, closing.turn_id, closing.epoch)
    if record is not None:
        write_record_in(conn, record, new_entries, expected_revision)
    mailbox.hear(conn, closing.conversation_id, closing.turn_id, closing.heard, closing.told)
    watch_wakes.take_back(conn, closing.conversation_id, closing.read)
    waits = bool(closing.proposed or closing.again)
    # What is denied below is nobody's to decide.
    outbox = SILENT if stopping.wish_of(conversation, closing.turn_id) else closing.outbox
    if closing.proposed:
        asking.ask(
            conn,
            closing.conversation_id,
            closing.turn_id,
            closing.epoch,
            list(closing.proposed),
            ttl_s=closing.ttl_s,
            outbox=outbox,
            limit=closing.pending_limit,
        )
    for request_id, call in closing.again.items():
        asking.ask_again(conn, request_id, call, closing.epoch, ttl_s=closing.ttl_s, outbox=outbox)
    if closing.outcome != "nothing":
        conn.execute(sa.update(conversations).where(conversations.c.id == closing.conversation_id).values(failures=0))
    conn.execute(
        sa.update(turns)
        .where(turns.c.id == closing.turn_id)
        .values(
            outcome=closing.outcome, answer=_stored(closing.answer), error=_stored(closing.error), ended_at=time.time()
        )
    )
    if closing.answer is not None:
        kind = closing.outcome if closing.outcome in {"failed", "stopped"} else "answer"
        stream.note(conn, closing.conversation_id, closing.turn_id, closing.epoch, kind, {"text": closing.answer})
    claims.release(conn, enqueuer, conversation, blocked="approval" if waits else None)
    if waits or (closing.outcome == "stopped" and mailbox.any_apart(conn, closing.conversation_id)):
        # Somebody wanted it to end while the model was still asking: nobody is to be asked any more. Or the
        # wish was about more messages than one turn takes.
        stopping.pass_on(conn, enqueuer, conversation)
    return closing.outcome


def _stored(text: str | None) -> str | None:
    # Postgres takes no NUL in a text, and nothing takes half a surrogate pair; neither is anything to read.
    return None if text is None else text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def outcome_of(conn: sa.Connection, turn_id: str) -> str | None:
    """The outcome a turn has been closed with, None while it is open."""
    return conn.execute(sa.select(turns.c.outcome).where(turns.c.id == turn_id)).scalar_one_or_none()


class TurnStore(SqlConversationStore):
    """The conversation store as one turn sees it: the head it began with, and a save that closes it.

    On a replay the real head may already be the one this turn wrote; the recorded one is what the
    turn's history was.
    """

    def __init__(
        self,
        database: Database,
        enqueuer: Enqueuer,
        begun_with: ConversationRecord | None,
        closing: Closing | None = None,
    ) -> None:
        super().__init__(database)
        self._db = database
        self._enqueuer = enqueuer
        self._begun_with = begun_with
        self.closing = closing

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:  # noqa: ARG002
        """The record the turn began with."""
        return self._begun_with

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Close the turn together with the record; a turn that is closed already stays as it is."""
        assert self.closing is not None
        await self._db.write(close, self._enqueuer, self.closing, record, list(new_entries), expected_revision)
        reach("turn.closed")
