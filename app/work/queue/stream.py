"""Events for display: a bounded table that clients follow by number.

Kinds: `message`, `text` (a piece of the answer), `tool_call`, `tool_result`, `answer`, `approval`,
`decision`, `exit`, `watch`, `typed`, `output` (how much a process has printed; a newer event replaces it),
`stopping`, `stopped`, `failed`, `blocked`, `taken_over`, `alarm`, `finding`. When a client sees a higher
epoch of a turn, it drops what it showed of the older epoch: the turn was replayed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from shellback.storage.db import tell_after
from shellback.storage.rows import given
from shellback.storage.tables import events

KEEP_S: Final = 24 * 3600.0
PRUNED_AT_ONCE: Final = 500
PAYLOAD_CHARS: Final = 4_000
WHOLE: Final = frozenset({"approval", "tool_call"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a conversation."""

    id: int
    conversation_id: str
    turn_id: str
    epoch: int
    kind: str
    payload: dict[str, Any]
    created_at: float


class Noted(NamedTuple):
    """An event that is not written yet."""

    kind: str
    payload: dict[str, Any]


_ADDED: Final = sa.insert(events)  # built once: building a statement costs more than running it


def note(
    conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int, kind: str, payload: dict[str, Any]
) -> int:
    """Add an event and return its number. Long texts are cut, except in kinds `WHOLE`."""
    added = conn.execute(_ADDED, _row(conversation_id, turn_id, epoch, kind, payload))
    tell_after(conn)
    assert added.inserted_primary_key is not None
    return int(added.inserted_primary_key[0])


def note_all(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int, events: Sequence[Noted]) -> None:
    """Add events in their order."""
    if events:
        conn.execute(_ADDED, [_row(conversation_id, turn_id, epoch, *event) for event in events])
        tell_after(conn)


def _row(conversation_id: str, turn_id: str, epoch: int, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    if kind not in WHOLE:
        payload = {key: _cut(value) for key, value in payload.items()}
    return {
        "conversation_id": conversation_id,
        "turn_id": turn_id,
        "epoch": epoch,
        "kind": kind,
        "payload": payload,
        "created_at": time.time(),
    }


def drop(conn: sa.Connection, numbers: Collection[int]) -> None:
    """Delete events that newer ones replace."""
    conn.execute(sa.delete(events).where(events.c.id.in_(numbers)))


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > PAYLOAD_CHARS:
        return value[:PAYLOAD_CHARS] + f"… ({len(value) - PAYLOAD_CHARS} more characters)"
    return value


def after(
    conn: sa.Connection,
    conversation_id: str | None,
    number: int,
    limit: int = 500,
    *,
    kinds: Collection[str] = (),
    also: Collection[int] = (),
) -> list[Event]:
    """Events with a number above `number`, or one of `also`, oldest first.

    Of one conversation, or of all; of these kinds, or of all.
    """
    which = given((events.c.conversation_id, conversation_id))
    wanted = sa.or_(events.c.id > number, events.c.id.in_(also)) if also else events.c.id > number
    query = sa.select(events).where(wanted, *which).order_by(events.c.id).limit(limit)
    if kinds:
        query = query.where(events.c.kind.in_(kinds))
    return [Event(**row) for row in conn.execute(query).mappings()]


def numbers(conn: sa.Connection, above: int, upto: int) -> set[int]:
    """The numbers of all stored events above one and up to another."""
    return set(conn.execute(sa.select(events.c.id).where(events.c.id > above, events.c.id <= upto)).scalars())


def of_turn(conn: sa.Connection, conversation_id: str, turn_id: str, upto: int) -> list[Event]:
    """The events of a turn up to a number, oldest first, at most 20,000."""
    mine = events.c.conversation_id == conversation_id, events.c.turn_id == turn_id, events.c.id <= upto
    query = sa.select(events).where(*mine).order_by(events.c.id).limit(20_000)
    return [Event(**row) for row in conn.execute(query).mappings()]


def number_of(conn: sa.Connection, conversation_id: str, turn_id: str, kind: str) -> int | None:
    """The number of the first stored event of a kind about a turn or work item; None without one."""
    mine = events.c.conversation_id == conversation_id, events.c.turn_id == turn_id, events.c.kind == kind
    return conn.execute(sa.select(sa.func.min(events.c.id)).where(*mine)).scalar_one()


def first_number(conn: sa.Connection) -> int | None:
    """The lowest number of a stored event; None without one."""
    return conn.execute(sa.select(sa.func.min(events.c.id))).scalar_one()


def last_number(conn: sa.Connection, before: float | None = None) -> int:
    """The highest number of a stored event, or of one before this wall-clock time; 0 without one."""
    earlier = () if before is None else (events.c.created_at < before,)
    return conn.execute(sa.select(sa.func.max(events.c.id)).where(*earlier)).scalar_one() or 0


def prune(conn: sa.Connection) -> int:
    """Delete at most `PRUNED_AT_ONCE` events older than a day, but never the newest one; returns how many.

    Without any, SQLite would count from 1 again, and a client that goes on after a higher number would skip events.
    """
    newest = sa.select(sa.func.max(events.c.id)).scalar_subquery()
    old = sa.select(events.c.id).where(events.c.created_at < time.time() - KEEP_S, events.c.id < newest)
    old = old.limit(PRUNED_AT_ONCE)
    return conn.execute(sa.delete(events).where(events.c.id.in_(old))).rowcount
