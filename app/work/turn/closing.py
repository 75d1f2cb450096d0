"""The begin of a turn and its close, each one transaction: claim, history, mailbox, approvals.

Neither is a recorded step. A replay begins with what the first execution found, and a closed turn is not replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, UserPromptPart

from shellback.exec.core.model import SessionId
from shellback.exec.wire.crashpoints import reach
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.history import SqlConversationStore, read_record_in, write_record_in
from shellback.storage.rows import change
from shellback.storage.tables import conversations, turns
from shellback.work.approvals import approvals, asking
from shellback.work.approvals.approvals import Request
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue import mailbox, stream, watch_wakes
from shellback.work.queue.items import WorkItem
from shellback.work.queue.mailbox import Letter, Workspace
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import claims, lifetimes, stopping
from shellback.work.turn.claims import Entry

BEGIN_STEP: Final = 0

Shows = Callable[[sa.Connection, str, str], bool]
"""Whether a conversation has sessions on a host (conversation id, host id) whose output a turn may be shown."""


def shows_nothing(_conn: sa.Connection, _conversation_id: str, _host_id: str) -> bool:
    """No conversation has such sessions."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a turn begins with, in every execution. `decided` is empty unless the conversation waits for approvals.

    With `look` the mailbox is also read before the first model request: there may be more to tell by then. `at` is
    when the first execution began, by the clock of the database, and `ago` the seconds from then to this one.
    """

    gate: bool
    look: bool
    record: ConversationRecord | None
    at: float = 0.0
    ago: float = field(default=0.0, compare=False)
    letters: list[Letter] = field(default_factory=list[Letter])
    decided: list[Request] = field(default_factory=list[Request])
    workspace: Workspace = field(default_factory=Workspace)
    host_id: str = ""


def enter(
    conn: sa.Connection, item: WorkItem, gate: bool, shows: Shows = shows_nothing, **how: Any
) -> tuple[Entry, Begun | None]:
    """Claim the conversation for the turn of `item` and begin the turn; `how` goes to `claims.enter`."""
    entry = claims.enter(conn, item, **how)
    return entry, None if entry.epoch is None else _begin(conn, item, entry, gate, shows)


def _begin(conn: sa.Connection, item: WorkItem, entry: Entry, gate: bool, shows: Shows) -> Begun:
    """Read the head of the history and take unread rows; a turn that a person stopped takes the rows set apart.

    A repeat returns what the first execution found: only this turn changes the history while it is open.
    """
    wish, kept = entry.wish, entry.kept
    where: dict[str, Any] = {"workspace": entry.workspace, "host_id": entry.host_id}
    record = read_record_in(conn, item.conversation_id)
    if kept is not None:
        letters = mailbox.taken(conn, item.conversation_id, item.id, BEGIN_STEP)
        requests = [Request(**one) for one in kept["decided"]]
        kept = {name: kept[name] for name in ("gate", "look", "at")}
        return Begun(**kept, ago=entry.now - kept["at"], record=record, letters=letters, decided=requests, **where)
    paused = record is not None and record.deferred_tool_requests is not None
    # A paused conversation only ends its waiting calls; later messages are for the next turn.
    take = not (paused and wish)
    apart = wish is not None
    letters = mailbox.take(conn, item.conversation_id, item.id, BEGIN_STEP, apart=apart) if take else []
    more = apart or paused or len(letters) == mailbox.ROWS_PER_TURN
    look = more or (gate and shows(conn, item.conversation_id, entry.host_id))
    at, requests = entry.now, decided(conn, item.conversation_id, wish) if paused else []
    begun = {"gate": gate, "look": look, "at": at, "decided": [asdict(request) for request in requests]}
    change(conn, turns, item.id, begun=begun)
    return Begun(gate=gate, look=look, at=at, record=record, letters=letters, decided=requests, **where)


def decided(conn: sa.Connection, conversation_id: str, wish: str | None) -> list[Request]:
    """The decisions on the calls that a conversation is paused at; with a `wish` to stop, no call is approved."""
    found = approvals.decided(conn, conversation_id)
    if wish is None:
        return found
    # Approved or changed, but not begun: only our own tools look for a wish to stop.
    stopped = {"state": "superseded", "decided_by": wish, "surface": "stop"}
    return [replace(request, **stopped) if request.state in {"approved", "changed"} else request for request in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a turn has asked its model for; the names are those of the columns."""

    requests: int
    tokens_in: int
    tokens_out: int


def spent_in(messages: Iterable[ModelMessage]) -> Spent:
    """What the messages that a turn has added say about it."""
    usages = [one.usage for one in messages if isinstance(one, ModelResponse)]
    return Spent(
        requests=len(usages),
        tokens_in=sum(one.input_tokens for one in usages),
        tokens_out=sum(one.output_tokens for one in usages),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What a turn leaves behind. `answer` is for the person; None while calls wait for approval.

    `heard` are the mailbox rows that the history contains; other rows that the turn took become unread again.
    """

    conversation_id: str
    turn_id: str
    epoch: int
    outcome: str
    answer: str | None = None
    error: str | None = None
    proposed: tuple[asking.Proposed, ...] = ()
    again: Mapping[str, asking.Proposed] = field(default_factory=dict[str, asking.Proposed])
    """The new call of each request that a person has changed."""
    told: frozenset[SessionId] = field(default_factory=frozenset[SessionId])
    read: tuple[watch_wakes.Range, ...] = ()
    heard: frozenset[int] = field(default_factory=frozenset[int])
    events: Sequence[stream.Noted] = ()
    """What the turn has told and not written yet."""
    spent: Spent | None = None
    ttl_s: float = 3600.0
    pending_limit: int = asking.PENDING
    outbox: Outbox = SILENT


@dataclass(frozen=True, slots=True)
class Closed:
    """The outcome that stands, and whether sessions may be left that end with the turn."""

    outcome: str
    leaves: bool = False


def close(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    closing: Closing,
    record: ConversationRecord | None,
    new_entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> Closed:
    """Commit the end of a turn and release its conversation.

    A repeat returns the stored outcome and changes nothing (invariant 4).

    Raises:
        StaleTurn: Another execution holds the conversation.
        ConversationConflict: The history is not the one this turn began with.
    """
    try:
        conversation = mailbox.held(conn, closing.conversation_id, closing.turn_id, closing.epoch)
    except StaleTurn:
        # Only now: the close of a turn releases its conversation.
        if (stored := outcome_of(conn, closing.turn_id)) is not None:
            return Closed(stored)
        raise
    stream.note_all(conn, closing.conversation_id, closing.turn_id, closing.epoch, _told_by(closing))
    if record is not None:
        write_record_in(conn, record, new_entries, expected_revision)
    mailbox.hear(conn, closing.conversation_id, closing.turn_id, closing.heard, closing.told)
    watch_wakes.take_back(conn, closing.conversation_id, closing.read)
    waits = bool(closing.proposed or closing.again)
    # A stopped turn has its requests denied below, so no notice is sent.
    outbox = SILENT if stopping.wish_of(conversation, closing.turn_id) else closing.outbox
    if closing.proposed:
        whose = (closing.conversation_id, closing.turn_id, closing.epoch)
        limit = closing.pending_limit
        asking.ask(conn, *whose, closing.proposed, ttl_s=closing.ttl_s, outbox=outbox, limit=limit)
    for request_id, call in closing.again.items():
        asking.ask_again(conn, request_id, call, closing.epoch, ttl_s=closing.ttl_s, outbox=outbox)
    if closing.outcome != "nothing" and conversation.failures:
        change(conn, conversations, closing.conversation_id, failures=0)
    said = {"answer": _stored(closing.answer), "error": _stored(closing.error)}
    spent: dict[str, Any] = {} if closing.spent is None else asdict(closing.spent)
    change(
        conn, turns, closing.turn_id, outcome=closing.outcome, **said, **spent, begun=None, ended_at=conversation.now
    )
    claims.release(conn, enqueuer, conversation, blocked="approval" if waits else None)
    if waits or (closing.outcome == "stopped" and mailbox.any_apart(conn, closing.conversation_id)):
        # The wish came while the model proposed calls: they are denied. Or it covers more messages than one turn takes.
        stopping.pass_on(conn, enqueuer, conversation)
    return Closed(closing.outcome, lifetimes.any_of_turns(conn, closing.conversation_id))


def _told_by(closing: Closing) -> Sequence[stream.Noted]:
    """The events of a turn that are not written yet, and its answer."""
    if closing.answer is None:
        return closing.events
    kind = closing.outcome if closing.outcome in {"failed", "stopped"} else "answer"
    return [*closing.events, stream.Noted(kind, {"text": closing.answer})]


def _stored(text: str | None) -> str | None:
    # Postgres accepts no NUL, and UTF-8 has no lone surrogates.
    return None if text is None else text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def outcome_of(conn: sa.Connection, turn_id: str) -> str | None:
    """The outcome of a turn; None while it is open."""
    return conn.execute(_OUTCOME, {"id": turn_id}).scalar_one_or_none()


_OUTCOME: Final = sa.select(turns.c.outcome).where(turns.c.id == sa.bindparam("id"))


def _is_prompt(entry: ConversationEntry) -> bool:
    """Whether a history may begin with this entry: it has a prompt, and answers no call."""
    kinds = {type(part) for part in entry.message.parts}
    return UserPromptPart in kinds and kinds <= {UserPromptPart, SystemPromptPart}


class TurnStore(SqlConversationStore):
    """The conversation store of one turn: it reads the recorded head, and a save closes the turn.

    It loads the last `window` messages, at least half as many, from a prompt on; 0 loads all.
    """

    def __init__(
        self, database: Database, enqueuer: Enqueuer, begun_with: ConversationRecord | None, window: int = 0
    ) -> None:
        super().__init__(database)
        self._window = window
        self._loads = False
        self._enqueuer = enqueuer
        self._begun_with = begun_with
        self.closing: Closing | None = None
        self.closed = Closed("open")
        """The result of the close, after a save."""

    async def load(
        self, conversation_id: str, *, limit: int | None = None, scope: str | None = None
    ) -> Conversation | None:
        """The conversation as the model is sent it; a save appends to all of it."""
        self._loads = True
        try:
            return await super().load(conversation_id, limit=limit or self._window or None, scope=scope)
        finally:
            self._loads = False

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to `head_id`; while it loads, from a prompt on."""
        found = await super().read_history(head_id, limit=limit)
        if not self._loads or limit is None or len(found) < limit:
            return found
        # The least of random ids stays the least for many turns, and with it the beginning of what the model is sent:
        # else no request would match a provider's cache.
        prompts = [place for place in range(1 + limit // 2) if _is_prompt(found[place])]
        if not prompts:
            return await self.read_history(head_id, limit=2 * limit)
        return found[min(prompts, key=lambda place: found[place].id[::-1]) :]

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
        """Close the turn together with the record; a closed turn stays unchanged."""
        assert self.closing is not None
        closing = (self._enqueuer, self.closing, record, list(new_entries), expected_revision)
        self.closed = await self._database.write(close, *closing)
        reach("turn.closed")
