"""How conversations stand: one line for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One conversation. `active_at` is when an item came or a turn ended last."""

    id: str
    host_id: str
    state: str
    blocked_reason: str | None
    active_at: float
    unread: int
    pending_approvals: int
    live_sessions: int
    failures: int


def look(conn: sa.Connection, *, prefix: str = "", limit: int = 200) -> list[Standing]:
    """Conversations whose name begins with `prefix`, the one that was active last first."""
    query = _query().where(conversations.c.id.startswith(prefix, autoescape=True)) if prefix else _query()
    return [_standing(row) for row in conn.execute(query.limit(limit))]


def one(conn: sa.Connection, conversation_id: str) -> Standing | None:
    """One conversation, or None."""
    row = conn.execute(_query().where(conversations.c.id == conversation_id)).one_or_none()
    return None if row is None else _standing(row)


def names(conn: sa.Connection, prefix: str, limit: int = 100) -> list[str]:
    """Names of conversations that begin with `prefix`."""
    query = sa.select(conversations.c.id).where(conversations.c.id.startswith(prefix, autoescape=True))
    return list(conn.execute(query.order_by(conversations.c.id).limit(limit)).scalars())


def _query() -> sa.Select[Any]:
    def count(table: sa.Table, *wanted: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
        return (
            sa.select(sa.func.count()).where(table.c.conversation_id == conversations.c.id, *wanted).scalar_subquery()
        )

    def last(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
        return sa.select(sa.func.max(column)).where(turns.c.conversation_id == conversations.c.id).scalar_subquery()

    came = sa.func.coalesce(last(turns.c.created_at), conversations.c.created_at)
    ended = sa.func.coalesce(last(turns.c.ended_at), conversations.c.created_at)
    active = sa.case((came > ended, came), else_=ended).label("active_at")
    return sa.select(
        conversations,
        active,
        count(mailbox, mailbox.c.state == "unread").label("unread"),
        count(approvals, approvals.c.state == "pending").label("pending"),
        count(sessions, sessions.c.state.in_(LIVE)).label("live"),
    ).order_by(active.desc(), conversations.c.id)


def _standing(row: sa.Row[Any]) -> Standing:
    return Standing(
        id=row.id,
        host_id=row.host_id,
        state=row.state,
        blocked_reason=row.blocked_reason if row.state == "blocked" else None,
        active_at=row.active_at,
        unread=row.unread,
        pending_approvals=row.pending,
        live_sessions=row.live,
        failures=row.failures,
    )
