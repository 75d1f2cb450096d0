"""The mailbox: rows that are put, taken by a turn, and heard when the turn closes.

Every function runs in the caller's transaction, which locks the conversation's row first. Without this lock a row
that is put between a turn's last look and its release would never be read on Postgres.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

import sqlalchemy as sa

from shellback.storage.errors import StaleTurn
from shellback.storage.rows import CLOCK, change, change_some, count, exists, insert_new
from shellback.storage.tables import QUIET, approvals, conversations, mailbox, turns
from shellback.work.errors import InvalidRequest
from shellback.work.queue.items import WorkItem
from shellback.work.queue.queues import Enqueuer, note_turn

ROWS_PER_TURN: Final = 100
"""Rows that one look takes; the rest waits for the next look or the follow-up."""

APART: Final = "*"
"""`taken_by` of an unread row that a wish to stop covers; the turn that is to stop takes it."""

AGENT: Final = "agent"
MCP: Final = "mcp"
"""Who drives a conversation: an agent in turns, or an MCP client that makes its calls itself and is never woken."""

CONNECTION: Final = "mcp:"
"""How the id begins that names the connection of an MCP client where a turn's calls name their turn."""

NO_TURN: Final = ""
"""The `turn_id` of a request for which no call waits: a command asks about a host, and its conversation goes on."""

DEFAULT: Final = "default"
"""The name of the workspace WORKSPACE_ROOT."""


class Workspace(NamedTuple):
    """A workspace to which a conversation is bound from its start; the default one has no path of its own.

    With `each`, conversations have directories of their own in `path`.
    """

    name: str = DEFAULT
    path: str = ""
    each: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.path})" if self.path else self.name

    def of(self, conversation_id: str) -> Workspace:
        """The workspace as this conversation is bound to it."""
        return Workspace(self.name, f"{self.path}/{_directory_of(conversation_id)}") if self.each else self


_PLAIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-]))*")


def _directory_of(conversation_id: str) -> str:
    """The name of a conversation's directory, which is also a part of a branch's name: unique, and without a colon."""
    if _PLAIN.fullmatch(conversation_id) and not conversation_id.endswith(".lock"):
        return conversation_id
    digest = hashlib.sha256(conversation_id.encode()).hexdigest()[:10]
    return f"{re.sub('[^A-Za-z0-9_-]+', '-', conversation_id)}+{digest}"


NOWHERE: Final = ""
"""The host id of a conversation that waits for a host; nothing of it is on a queue."""


class Home(NamedTuple):
    """The host of a new conversation: `why` this one, its workspace there, and the labels that were asked for."""

    host_id: str
    why: str
    workspace: Workspace
    needs: tuple[str, ...]

    def values(self, conversation_id: str) -> dict[str, Any]:
        """The columns of the conversation's row."""
        its = self.workspace.of(conversation_id)
        named = {} if its.name == DEFAULT else {"workspace": its.name, "workspace_path": its.path}
        return {"host_id": self.host_id, "placed": self.why, "needs": list(self.needs), **named}


class Placed(Protocol):
    """Finds the host of a new conversation that needs these labels."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    def __call__(self, conn: sa.Connection) -> Home: ...


Kind = Literal["message", "exit", "watch", "connect", "typed", "turn_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One mailbox row that a turn has taken."""

    id: int
    kind: str
    payload: dict[str, Any] = field(default_factory=dict[str, Any])


def lock(conn: sa.Connection, conversation_id: str) -> sa.Row[Any] | None:
    """The conversation's row, locked until commit; put, enter and release wait for it. `now` is `rows.now`."""
    return conn.execute(_LOCKED, {"id": conversation_id}).one_or_none()


# Statements of every turn are built once: building one costs more than running it.
_LOCKED: Final = (
    sa.select(conversations, CLOCK.label("now")).where(conversations.c.id == sa.bindparam("id")).with_for_update()
)


def open_conversation(
    conn: sa.Connection,
    conversation_id: str,
    *,
    host_id: str,
    driver: str = AGENT,
    workspace: Workspace | None = None,
    place: Placed | None = None,
) -> sa.Row[Any]:
    """The locked row of a conversation; it is created for this host, `driver` and `workspace` if it is missing.

    With `place`, that says where it is created and in which directory; `workspace` then is a name.

    Raises:
        InvalidRequest: It exists and is bound to another workspace than the one that was given, or began without the
            labels that `place` needs.
    """
    wanted = (workspace or Workspace()).of(conversation_id)
    made: dict[str, Any] = {"id": conversation_id, "host_id": host_id, "driver": driver}
    if wanted.path:
        made |= {"workspace": wanted.name, "workspace_path": wanted.path}
    row = None if place is None else lock(conn, conversation_id)
    while row is None:  # an idle conversation may be pruned between the two statements
        if place is not None:
            made |= place(conn).values(conversation_id)
        insert_new(conn, conversations, made)
        row = lock(conn, conversation_id)
    if place is not None and (missing := sorted({*place.needs} - {*(row.needs or ())})):
        raise InvalidRequest(
            f"conversation {conversation_id} began without the label {', '.join(missing)}, and stays on its host: leave"
            " --needs out, or give another name with --conversation"
        )
    bound = bound_to(row)
    # On another host the workspace may have another path.
    there = place is not None or row.host_id != host_id
    other = bound.name != wanted.name if there else bound != wanted
    if workspace is not None and other:
        raise InvalidRequest(
            f"conversation {conversation_id} works in workspace {bound} since its start, not in {wanted}: leave"
            " --workspace out, or give another name with --conversation"
        )
    return row


def workspace_of(conn: sa.Connection, conversation_id: str) -> Workspace | None:
    """The workspace to which a conversation is bound; None if there is no such conversation."""
    row = conn.execute(_BOUND, {"id": conversation_id}).one_or_none()
    return None if row is None else bound_to(row)


def bound_to(row: sa.Row[Any] | sa.Row[Any, Any]) -> Workspace:
    """The workspace of the conversation that has this row."""
    return Workspace(row.workspace, row.workspace_path) if row.workspace else Workspace()


_BOUND: Final = sa.select(conversations.c.workspace, conversations.c.workspace_path).where(
    conversations.c.id == sa.bindparam("id")
)


def driver_of(turn_id: str) -> str:
    """Who drove the conversation when the turn or connection `turn_id` made its calls."""
    return MCP if turn_id.startswith(CONNECTION) else AGENT


def put(
    conn: sa.Connection,
    enqueuer: Enqueuer,
    conversation: sa.Row[Any],
    item: WorkItem,
    *,
    kind: Kind,
    payload: dict[str, Any],
    dedupe_key: str | None = None,
) -> None:
    """Add a row and the item whose turn will read it; `conversation` is the locked row.

    One that no agent drives gets neither, because no turn of it may run.
    A message gets no item if another one on its way will read it; its turn then has the outcome `busy`. A
    `dedupe_key` that was used before changes nothing.
    """
    if conversation.driver != AGENT:
        return
    added = add_row(
        conn,
        conversation.id,
        kind=kind,
        priority=int(item.priority),
        payload={**payload, "waiting": item.waiting},
        dedupe_key=dedupe_key,
    )
    if not added:
        return
    if conversation.host_id == NOWHERE or (kind == "message" and on_its_way(conn, item)):
        # Many messages to one conversation become one turn, not many items. Its placing enqueues what it has by then.
        note_turn(conn, item)
        change(conn, turns, item.id, outcome="busy", started_at=conversation.now, ended_at=conversation.now)
    else:
        enqueuer.put(conn, item, host_id=conversation.host_id)


def settle(conn: sa.Connection, dedupe_key: str) -> None:
    """Mark an unread row as heard, so that it wakes no turn."""
    unread = mailbox.c.state == "unread"
    change_some(conn, mailbox, mailbox.c.dedupe_key == dedupe_key, unread, state="heard", heard_at=time.time())


def is_unread(conn: sa.Connection, dedupe_key: str) -> bool:
    """Whether the row with this key is unread."""
    return exists(conn, sa.select(mailbox.c.id).where(mailbox.c.dedupe_key == dedupe_key, mailbox.c.state == "unread"))


def waking() -> sa.ColumnElement[bool]:
    """The condition that a row is unread and wakes a turn; quiet rows wait for the next turn."""
    return sa.and_(mailbox.c.state == "unread", mailbox.c.kind.not_in(QUIET))


def on_its_way(conn: sa.Connection, item: WorkItem) -> bool:
    """Whether an item that is at least as urgent as `item` has not started yet, and so will read its row.

    The caller holds the conversation's row, which a starting turn locks.
    """
    waits = mailbox.c.payload["waiting"].as_boolean()
    query = (
        sa.select(turns.c.id)
        .join(mailbox, mailbox.c.dedupe_key == turns.c.id)
        .where(
            turns.c.conversation_id == item.conversation_id,
            turns.c.outcome.is_(None),
            turns.c.started_at.is_(None),
            turns.c.item_type == item.type.value,
            turns.c.priority <= int(item.priority),
        )
    )
    return exists(conn, query.where(waits) if item.waiting else query)


def add_row(
    conn: sa.Connection,
    conversation_id: str,
    *,
    kind: Kind,
    priority: int,
    payload: dict[str, Any],
    dedupe_key: str | None = None,
) -> bool:
    """Add an unread row; False if its key was used before. The caller holds the conversation's row."""
    return insert_new(
        conn,
        mailbox,
        {
            "conversation_id": conversation_id,
            "kind": kind,
            "priority": priority,
            "dedupe_key": dedupe_key,
            "payload": payload,
        },
    )


def undecided(conn: sa.Connection, conversation_id: str) -> int:
    """The number of calls of a conversation that wait for a person."""
    return count(
        conn, approvals, approvals.c.conversation_id == conversation_id, approvals.c.state == "pending", of_calls()
    )


def of_calls() -> sa.ColumnElement[bool]:
    """The condition that a call waits for the request."""
    return approvals.c.turn_id != NO_TURN


def held(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int) -> sa.Row[Any]:
    """The locked conversation, which this execution must still hold.

    Raises:
        StaleTurn: A newer execution holds it, or the sweep has freed it.
    """
    row = lock(conn, conversation_id)
    if row is None or row.state != "claimed" or row.claimed_by != turn_id or row.epoch != epoch:
        raise StaleTurn(conversation_id, turn_id, epoch)
    return row


def set_apart(conn: sa.Connection, conversation_id: str) -> None:
    """Mark the unread rows as covered by a wish to stop; rows that come later are for a later turn."""
    change_some(conn, mailbox, *_unread(conversation_id), taken_by=APART)


def any_apart(conn: sa.Connection, conversation_id: str) -> bool:
    """Whether a wish to stop covers an unread row."""
    return exists(conn, sa.select(mailbox.c.id).where(*_unread(conversation_id), mailbox.c.taken_by == APART))


def _unread(conversation_id: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return mailbox.c.conversation_id == conversation_id, mailbox.c.state == "unread"


def take(conn: sa.Connection, conversation_id: str, turn_id: str, step: int, *, apart: bool = False) -> list[Letter]:
    """Take unread rows for step `step` of a turn that is `held`; a repeated step gets the same rows.

    With `apart` it takes only rows that a wish to stop covers, and reports of failed turns.
    """
    mine = {"turn": turn_id, "step": step}
    letters = _letters(conn, _UNREAD_APART if apart else _UNREAD, conversation=conversation_id, **mine)
    if letters:
        conn.execute(_TAKE, {"ids": [letter.id for letter in letters], **mine})
    return letters


def taken(conn: sa.Connection, conversation_id: str, turn_id: str, step: int) -> list[Letter]:
    """The rows that step `step` of a turn has taken."""
    return _letters(conn, _MINE, conversation=conversation_id, turn=turn_id, step=step)


def _letters(conn: sa.Connection, query: sa.Select[Any], **which: Any) -> list[Letter]:
    return [
        Letter(id=row.id, kind=row.kind, payload=row.payload)
        for row in conn.execute(query, {**which, "most": ROWS_PER_TURN})
    ]


_rows: Final = mailbox.c
_of_turn: Final = sa.and_(_rows.state == "taken", _rows.taken_by == sa.bindparam("turn"))
_of_step: Final = sa.and_(_of_turn, _rows.taken_step == sa.bindparam("step"))
_in_order: Final = (
    sa.select(mailbox).where(_rows.conversation_id == sa.bindparam("conversation")).order_by(_rows.id)
).limit(sa.bindparam("most"))
_these: Final = sa.update(mailbox).where(_rows.id.in_(sa.bindparam("ids", expanding=True)))
_MINE: Final = _in_order.where(_of_step)
_UNREAD: Final = _in_order.where(sa.or_(_rows.state == "unread", _of_step))
_UNREAD_APART: Final = _UNREAD.where(sa.or_(_rows.taken_by == APART, _rows.kind == "turn_failed", _of_step))
_TAKE: Final = _these.values(state="taken", taken_by=sa.bindparam("turn"), taken_step=sa.bindparam("step"))
_HEAR: Final = _these.where(_rows.taken_by == sa.bindparam("turn")).values(state="heard", heard_at=sa.bindparam("at"))
_GIVE_BACK: Final = (
    sa.update(mailbox)
    .where(_rows.conversation_id == sa.bindparam("conversation"), _of_turn)  # has an index
    .values(state="unread", taken_by=sa.bindparam("by"), taken_step=None)
)


def hear(
    conn: sa.Connection, conversation_id: str, turn_id: str, heard: Collection[int], told: Collection[str]
) -> None:
    """Settle the rows `heard`, and unread exits of sessions that the agent was `told` of.

    Other rows that the turn took, in an execution that was cut off, become unread again.
    """
    now = time.time()
    if heard:
        conn.execute(_HEAR, {"ids": sorted(heard), "turn": turn_id, "at": now})
    give_back(conn, conversation_id, turn_id)
    if told:
        theirs = mailbox.c.dedupe_key.in_([f"exit:{session_id}" for session_id in told])
        change_some(conn, mailbox, *_unread(conversation_id), theirs, state="heard", heard_at=now)


def give_back(conn: sa.Connection, conversation_id: str, turn_id: str, *, apart: bool = False) -> None:
    """Make the rows that a turn has taken unread again; with `apart` a wish to stop covers them."""
    conn.execute(_GIVE_BACK, {"conversation": conversation_id, "turn": turn_id, "by": APART if apart else None})
