"""How conversations stand, one line for each; and the backlog: which items wait, run, or wait behind a block."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns
from shellback.work.queue.items import Priority


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


LISTED: Final = 200
"""Rows of one kind at most; counts are never cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Items of one priority that no turn has begun. `oldest` is when the first of them came."""

    host_id: str
    priority: str
    items: int
    oldest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An item that a turn works on."""

    host_id: str
    item: str
    type: str
    priority: str
    conversation: str
    executor: str | None
    executions: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A conversation that takes no item until something is done; `unread` is what waits in its mailbox."""

    host_id: str
    conversation: str
    reason: str
    unread: int
    since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What a host, or every host, has still to do."""

    waiting: list[Waiting]
    running: list[Running]
    blocked: list[Blocked]
    at: float


def backlog(conn: sa.Connection, host_id: str | None = None) -> Backlog:
    """The backlog of one host, or of all, most urgent and oldest first."""
    return Backlog(
        waiting=_waiting(conn, host_id),
        running=_running(conn, host_id),
        blocked=_blocked(conn, host_id),
        at=time.time(),
    )


def _waiting(conn: sa.Connection, host_id: str | None) -> list[Waiting]:
    query = (
        sa.select(conversations.c.host_id, turns.c.priority, sa.func.count(), sa.func.min(turns.c.created_at))
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(turns.c.outcome.is_(None), turns.c.started_at.is_(None), _of(host_id))
        .group_by(conversations.c.host_id, turns.c.priority)
        .order_by(turns.c.priority, conversations.c.host_id)
    )
    return [
        Waiting(host_id=host, priority=_named(priority), items=items, oldest=oldest)
        for host, priority, items, oldest in conn.execute(query)
    ]


def _running(conn: sa.Connection, host_id: str | None) -> list[Running]:
    query = (
        sa.select(turns, conversations.c.host_id)
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(turns.c.outcome.is_(None), turns.c.started_at.is_not(None), _of(host_id))
        .order_by(turns.c.started_at)
        .limit(LISTED)
    )
    return [
        Running(
            host_id=row.host_id,
            item=row.id,
            type=row.item_type,
            priority=_named(row.priority),
            conversation=row.conversation_id,
            executor=row.executor_id,
            executions=row.executions,
            started_at=row.started_at,
        )
        for row in conn.execute(query)
    ]


def _blocked(conn: sa.Connection, host_id: str | None) -> list[Blocked]:
    unread = (
        sa.select(sa.func.count())
        .where(mailbox.c.conversation_id == conversations.c.id, mailbox.c.state == "unread")
        .scalar_subquery()
    )
    since = (
        sa.select(sa.func.max(turns.c.ended_at)).where(turns.c.conversation_id == conversations.c.id).scalar_subquery()
    )
    query = (
        sa.select(conversations.c.host_id, conversations.c.id, conversations.c.blocked_reason, unread, since)
        .where(conversations.c.state == "blocked", _of(host_id))
        .order_by(conversations.c.id)
        .limit(LISTED)
    )
    return [
        Blocked(host_id=host, conversation=name, reason=reason or "not said", unread=count, since=ended)
        for host, name, reason, count, ended in conn.execute(query)
    ]


def _of(host_id: str | None) -> sa.ColumnElement[bool]:
    return sa.true() if host_id is None else conversations.c.host_id == host_id


def _named(priority: int) -> str:
    return Priority(priority).name if priority in set(Priority) else str(priority)
