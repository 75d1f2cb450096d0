"""Notices: rows that commit with their cause and are sent later by a notifier.

A repeated transaction writes no second row. A row is sent at least once, or given up after some attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import quote

import sqlalchemy as sa

from shellback.exec.core.display import visible
from shellback.storage import rows
from shellback.storage.rows import change, change_some, insert_new
from shellback.storage.tables import notices

Kind = Literal["approval", "alarm", "set_aside"]

DELAYS_S: Final = (2.0, 10.0, 60.0, 300.0, 1800.0)
"""The delays between attempts; after the last attempt a notice is given up."""
FAR_S: Final = 86_400.0
"""Longer than any delay."""
TEXT_CHARS: Final = 4_000
"""So much of the text of a notice is sent."""
ERROR_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Outbox:
    """Writes notices. `host` is the name of this machine; with `on` false nothing is written.

    `console` is the address of the console, as people open it; with one, a notice has a link to what it is about. The
    text of a notice is escaped for a terminal; `approval` has the whole call.
    """

    host: str = ""
    on: bool = False
    console: str = ""
    ring: Callable[[], None] = lambda: None
    """Called after a transaction that may have written a notice."""

    def put(
        self,
        conn: sa.Connection,
        kind: Kind,
        conversation_id: str,
        key: str,
        text: str,
        approval: dict[str, Any] | None = None,
    ) -> None:
        """Write a notice in the caller's transaction; a repeated `key` writes nothing."""
        own = self._of(conn, conversation_id)
        if not own.on:
            return
        now = rows.now(conn)
        payload = {
            "kind": kind,
            "conversation": conversation_id,
            "text": visible(text),
            "approval": approval,
            "link": _link(own.console, conversation_id, approval),
            "at": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
            "host": own.host,
        }
        row = {
            "kind": kind,
            "conversation_id": conversation_id,
            "dedupe_key": f"{kind}:{key}",
            "payload": payload,
            "created_at": now,
            "due_at": now,
        }
        insert_new(conn, notices, row)

    def _of(self, _conn: sa.Connection, _conversation_id: str) -> Outbox:
        """The outbox for notices of a conversation."""
        return self


def _link(console: str, conversation_id: str, approval: dict[str, Any] | None) -> str | None:
    if not console:
        return None
    page = f"requests/{approval['id']}" if approval else f"conversations/{quote(conversation_id, safe='')}"
    return f"{console}/{page}"


SILENT: Final = Outbox()


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A notice that this process has taken; `attempt` counts from 1."""

    id: int
    kind: str
    conversation_id: str
    payload: dict[str, Any]
    attempt: int


def take(conn: sa.Connection, *, limit: int, lease_s: float) -> list[Due]:
    """Take due notices. No other worker takes them for `lease_s` seconds."""
    now, its = rows.CLOCK, notices.c
    query = (
        sa.select(its.id, its.kind, its.conversation_id, its.payload, (its.attempts + 1).label("attempt"))
        # A time further ahead than any delay was written before the clock was set back.
        .where(notices.c.state == "waiting", sa.or_(notices.c.due_at <= now, notices.c.due_at > now + FAR_S))
        .order_by(notices.c.due_at, notices.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = [Due(**row) for row in conn.execute(query).mappings()]
    if found:
        taken = its.id.in_([notice.id for notice in found])
        change_some(conn, notices, taken, due_at=now + lease_s, attempts=its.attempts + 1)
    return found


def sent(conn: sa.Connection, notice: Due) -> None:
    """Record that a notice was sent."""
    change(conn, notices, notice.id, state="sent", sent_at=rows.CLOCK, error=None)


def failed(conn: sa.Connection, notice: Due, error: str, delays_s: tuple[float, ...] = DELAYS_S) -> bool:
    """Record why a notice was not sent; returns whether it is tried again."""
    again = notice.attempt <= len(delays_s)
    values: dict[str, Any] = {"error": error[:ERROR_CHARS]}
    values |= {"due_at": rows.CLOCK + delays_s[notice.attempt - 1]} if again else {"state": "given_up"}
    change_some(conn, notices, notices.c.id == notice.id, notices.c.state == "waiting", **values)
    return again


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The number of waiting and given-up notices, when one was last sent, and the latest error."""

    waiting: int
    given_up: int
    sent_at: float | None
    error: str | None


def told(conn: sa.Connection) -> Told:
    """The state of all notices."""
    counts = sa.select(notices.c.state, sa.func.count().label("number")).group_by(notices.c.state)
    by_state: dict[str, int] = {row.state: row.number for row in conn.execute(counts)}
    failed_last = sa.select(notices.c.error).where(notices.c.error.is_not(None)).order_by(notices.c.id.desc()).limit(1)
    return Told(
        waiting=by_state.get("waiting", 0),
        given_up=by_state.get("given_up", 0),
        sent_at=conn.execute(sa.select(sa.func.max(notices.c.sent_at))).scalar_one(),
        error=conn.execute(failed_last).scalar_one_or_none(),
    )


def next_due(conn: sa.Connection) -> float | None:
    """Seconds until the next notice is due; None if none waits."""
    left_s = sa.func.min(notices.c.due_at) - rows.CLOCK
    left = conn.execute(sa.select(left_s).where(notices.c.state == "waiting")).scalar_one()
    return left if left is None else 0.0 if left > FAR_S else max(0.0, left)
