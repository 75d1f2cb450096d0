"""The state of each conversation; and the items that wait, run, or are blocked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.rows import given
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, mailbox, sessions, turns
from shellback.work.queue.items import Priority
from shellback.work.queue.mailbox import DEFAULT, NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One conversation. `active_at` is when the last item came or the last turn ended.

    `placed` says why it is on its host, or without a `host_id` why it waits for one; None: it began where it was asked
    for.
    """

    id: str
    host_id: str
    state: str
    blocked_reason: str | None
    active_at: float
    unread: int
    pending_approvals: int
    live_sessions: int
    failures: int
    workspace: str = DEFAULT
    workspace_path: str | None = None
    placed: str | None = None


def by_workspace(conn: sa.Connection) -> dict[str, int]:
    """How many conversations work in each workspace, by its name."""
    name = sa.func.coalesce(conversations.c.workspace, DEFAULT)
    return {row[0]: row[1] for row in conn.execute(sa.select(name, sa.func.count()).group_by(name))}


def named_workspaces(conn: sa.Connection) -> dict[str, str]:
    """The workspace of each conversation that does not work in the default one."""
    its = conversations.c
    return {row[0]: row[1] for row in conn.execute(sa.select(its.id, its.workspace).where(its.workspace.is_not(None)))}


def directories_below(conn: sa.Connection, root: str) -> set[str]:
    """The directories in `root` to which conversations are bound."""
    path = conversations.c.workspace_path
    return set(conn.execute(sa.select(path).where(path.startswith(f"{root}/", autoescape=True))).scalars())


def look(conn: sa.Connection, limit: int, *, with_text: str = "") -> list[Standing]:
    """The conversations that were active last, the last one first.

    Only those `with_text` in their name, in an answer or in a message of a person, in small or capital letters.
    """
    active = _active()
    if with_text:
        active = active.where(_has(with_text))
    return [Standing(**row) for row in conn.execute(_query(active.limit(limit))).mappings()]


def _has(text: str) -> sa.ColumnElement[bool]:
    its = conversations.c.id
    said, answered = mailbox.c.payload["text"].as_string(), turns.c.answer
    mail = mailbox.c.conversation_id == its, mailbox.c.kind == "message", said.icontains(text, autoescape=True)
    answer = turns.c.conversation_id == its, answered.icontains(text, autoescape=True)
    return sa.or_(its.icontains(text, autoescape=True), sa.exists().where(*answer), sa.exists().where(*mail))


def one(conn: sa.Connection, conversation_id: str) -> Standing | None:
    """One conversation, or None."""
    row = conn.execute(_query(_active().where(conversations.c.id == conversation_id))).mappings().one_or_none()
    return None if row is None else Standing(**row)


def unheard(conn: sa.Connection, conversation_id: str) -> list[str]:
    """Messages of people that no turn has ended with, oldest first: its history does not have them yet."""
    its = mailbox.c
    mine = its.conversation_id == conversation_id, its.kind == "message", its.state.in_(("unread", "taken"))
    found = conn.execute(sa.select(its.payload).where(*mine).order_by(its.id).limit(LISTED)).scalars()
    return [str(one["text"]) for one in found]


def turn_of(conn: sa.Connection, conversation_id: str) -> str | None:
    """The turn that has a conversation; None without one."""
    its = conversations.c
    query = sa.select(its.claimed_by).where(its.id == conversation_id, its.state == "claimed")
    return conn.execute(query).scalar_one_or_none()


def _count(table: sa.Table, *wanted: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    return sa.select(sa.func.count()).where(table.c.conversation_id == conversations.c.id, *wanted).scalar_subquery()


def _last(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(sa.func.max(column)).where(turns.c.conversation_id == conversations.c.id).scalar_subquery()


def _active() -> sa.Select[Any, Any]:
    # One look at the turns of each conversation: nothing else takes time where there are many conversations.
    came, ended = turns.c.created_at, turns.c.ended_at
    last = sa.select(sa.func.max(sa.case((ended > came, ended), else_=came)))
    mine = last.where(turns.c.conversation_id == conversations.c.id).scalar_subquery()
    active = sa.func.coalesce(mine, conversations.c.created_at).label("active_at")
    return sa.select(conversations.c.id, active).order_by(active.desc(), conversations.c.id)


def _query(active: sa.Select[Any, Any]) -> sa.Select[Any]:
    """The conversations that `active` chooses; nothing is counted for others, of which there may be many."""
    its, chosen = conversations.c, active.subquery()
    columns: list[sa.ColumnElement[Any]] = [
        *(its.id, its.host_id, its.state, its.failures, its.workspace_path, its.placed, chosen.c.active_at),
        sa.func.coalesce(its.workspace, DEFAULT).label("workspace"),
        sa.case((its.state == "blocked", its.blocked_reason)).label("blocked_reason"),
        _count(mailbox, mailbox.c.state == "unread").label("unread"),
        _count(approvals, approvals.c.state == "pending").label("pending_approvals"),
        _count(sessions, sessions.c.state.in_(LIVE)).label("live_sessions"),
    ]
    return sa.select(*columns).join(chosen, chosen.c.id == its.id).order_by(chosen.c.active_at.desc(), its.id)


LISTED: Final = 200
"""At most this many rows of one kind; counts are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Items of one priority whose turn has not begun. `oldest` is when the first one came."""

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
    """A blocked conversation; `unread` counts its unread mailbox rows."""

    host_id: str
    conversation: str
    reason: str
    unread: int
    since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """A conversation that waits for a host, made at `since`; `why` names what hosts lack for it."""

    conversation: str
    why: str
    unread: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits, runs and is blocked on one host or all; what is `unplaced` belongs to none."""

    waiting: list[Waiting]
    running: list[Running]
    blocked: list[Blocked]
    unplaced: list[Unplaced]
    at: float


def backlog(conn: sa.Connection, host_id: str | None = None) -> Backlog:
    """The backlog of one host, or of all, most urgent and oldest first."""
    host, came = conversations.c.host_id, sa.func.min(turns.c.created_at).label("oldest")
    of_turns = sa.and_(turns.c.outcome.is_(None), *given((host, host_id)))
    waiting = (
        sa.select(host, turns.c.priority, sa.func.count().label("items"), came)
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(of_turns, turns.c.started_at.is_(None))
        .group_by(host, turns.c.priority)
        .order_by(turns.c.priority, host)
    )
    running = (
        sa.select(
            *(host, turns.c.priority, turns.c.executions, turns.c.started_at),
            turns.c.id.label("item"),
            turns.c.item_type.label("type"),
            turns.c.conversation_id.label("conversation"),
            turns.c.executor_id.label("executor"),
        )
        .join(conversations, conversations.c.id == turns.c.conversation_id)
        .where(of_turns, turns.c.started_at.is_not(None))
        .order_by(turns.c.started_at)
        .limit(LISTED)
    )
    blocked = (
        sa.select(
            host,
            conversations.c.id.label("conversation"),
            sa.func.coalesce(conversations.c.blocked_reason, "not said").label("reason"),
            _count(mailbox, mailbox.c.state == "unread").label("unread"),
            _last(turns.c.ended_at).label("since"),
        )
        .where(conversations.c.state == "blocked", *given((host, host_id)))
        .order_by(conversations.c.id)
        .limit(LISTED)
    )
    return Backlog(
        waiting=[Waiting(**_named(row)) for row in conn.execute(waiting).mappings()],
        running=[Running(**_named(row)) for row in conn.execute(running).mappings()],
        blocked=[Blocked(**row) for row in conn.execute(blocked).mappings()],
        unplaced=unplaced(conn),
        at=time.time(),
    )


def unplaced(conn: sa.Connection) -> list[Unplaced]:
    """The conversations that wait for a host, oldest first."""
    its = conversations.c
    columns: list[sa.ColumnElement[Any]] = [
        its.id.label("conversation"),
        sa.func.coalesce(its.placed, "no host has a worker").label("why"),
        _count(mailbox, mailbox.c.state == "unread").label("unread"),
        its.created_at.label("since"),
    ]
    query = sa.select(*columns).where(its.host_id == NOWHERE).order_by(its.created_at, its.id).limit(LISTED)
    return [Unplaced(**row) for row in conn.execute(query).mappings()]


def _named(row: sa.RowMapping) -> dict[str, Any]:
    priority = row["priority"]
    return {**row, "priority": Priority(priority).name if priority in set(Priority) else str(priority)}
