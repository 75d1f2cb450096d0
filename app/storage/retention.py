"""Finds and deletes old rows; dependent rows go before the row they depend on.

Every function runs in a short transaction of the caller. A conversation is busy if it has an open turn or is not free:
its turn may be replayed, and a replay needs all keys that it has stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.backends.kinds import CONTAINED
from shellback.storage.rows import lock_name, lock_row
from shellback.storage.tables import (
    QUIET,
    approvals,
    audit,
    calls,
    conversations,
    findings,
    hosts,
    joined_calls,
    mailbox,
    metadata,
    notices,
    rules,
    sessions,
    tasks,
    turns,
    watches,
    workers,
    workspaces,
)
from shellback.storage.tables import history_entries as entries
from shellback.storage.tables import history_records as records

BATCH: Final = 200
CALLBACK: Final = "EXEC_CALLBACK"
_LOCK: Final = "shellback retention"
DELETING: Final = "shellback history"
"""The lock that keeps a fork from sharing an entry that is being deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows older than these wall-clock times may go. `conversations` None keeps all conversations."""

    host_id: str
    rows: float
    sessions: float
    conversations: float | None


def plain(cut: Cut) -> dict[str, sa.Select[Any]]:
    """Keys of old rows without anything outside the database, by table, in the order of deletion."""
    silent = sa.select(hosts.c.host_id).where(hosts.c.host_id != cut.host_id, hosts.c.heartbeat_at < cut.sessions)
    of_host = (table.c.host_id == hosts.c.host_id for table in (conversations, sessions, workers, workspaces))
    of_call = sa.exists().where(
        sessions.c.id == calls.c.session_id,
        sa.or_(_since(sessions.c.ended_at, cut.sessions), _busy(sessions.c.conversation_id)),
    )
    unheard = sa.and_(mailbox.c.heard_at.is_(None), mailbox.c.state == "unread")
    settled = sa.and_(approvals.c.state != "pending", approvals.c.decided_at < cut.rows)
    going = {
        mailbox: sa.or_(
            sa.and_(mailbox.c.state == "heard", mailbox.c.heard_at < cut.rows),
            sa.and_(unheard, mailbox.c.kind.in_(QUIET), mailbox.c.created_at < cut.rows),
        ),
        approvals: sa.and_(settled, sa.not_(_busy(approvals.c.conversation_id))),
        calls: sa.and_(calls.c.created_at < cut.rows, ~of_call),
        joined_calls: joined_calls.c.created_at < cut.rows,
        tasks: tasks.c.created_at < cut.rows,  # the time to live that clients are told
        notices: sa.and_(notices.c.state.in_(["sent", "given_up"]), notices.c.due_at < cut.rows),
        workers: workers.c.heartbeat_at < cut.rows,
        # Removed containers, and those of long silent hosts, which nothing can remove.
        workspaces: sa.or_(
            workspaces.c.removed_at < cut.rows,
            sa.and_(workspaces.c.host_id.in_(silent), workspaces.c.last_used_at < cut.sessions),
        ),
        hosts: sa.and_(
            hosts.c.host_id != cut.host_id,
            hosts.c.heartbeat_at < cut.rows,
            *(~sa.exists().where(one) for one in of_host),
        ),
        audit: audit.c.at < cut.rows,
        findings: findings.c.acknowledged_at < cut.rows,  # open ones stay
    }
    return {table.name: sa.select(*table.primary_key.columns).where(which) for table, which in going.items()}


def delete_some(conn: sa.Connection, table: str, cut: Cut) -> int:
    """Delete at most `BATCH` rows of a plain table; returns how many."""
    _one_at_a_time(conn)
    (key,) = metadata.tables[table].primary_key.columns
    return conn.execute(sa.delete(metadata.tables[table]).where(key.in_(plain(cut)[table].limit(BATCH)))).rowcount


def sessions_to_go(cut: Cut, *, planned: bool = False) -> sa.Select[Any]:
    """Ended and told sessions, of this host or a long silent one, without news or calls; `planned` ignores old ones."""
    news = mailbox.c.dedupe_key == "exit:" + sessions.c.id
    if planned:
        news = sa.and_(news, _since(mailbox.c.heard_at, cut.rows))
    call = calls.c.session_id == sessions.c.id
    if planned:
        call = sa.and_(call, calls.c.created_at >= cut.rows)
    return sa.select(sessions.c.id).where(
        _ours(sessions.c.host_id, cut),
        sessions.c.ended_at < cut.sessions,
        sessions.c.delivery != "inline",
        sa.not_(_busy(sessions.c.conversation_id)),
        ~sa.exists().where(news),
        ~sa.exists().where(call),
    )


def delete_sessions(conn: sa.Connection, cut: Cut, ids: Sequence[str]) -> int:
    """Delete the sessions that still may go, with their watches."""
    _one_at_a_time(conn)
    going = sa.delete(sessions).where(sessions.c.id.in_(ids), sessions.c.id.in_(sessions_to_go(cut)))
    gone = conn.execute(going.returning(sessions.c.id)).scalars().all()
    conn.execute(sa.delete(watches).where(watches.c.session_id.in_(gone)))
    return len(gone)


def turns_to_go(cut: Cut, *, callbacks: bool, planned: bool = False) -> sa.Select[Any]:
    """Ids of ended turns that no session needs any more; either of `callbacks` or of other items.

    A callback's id keeps the end of its session from being told twice, so the session goes first.
    """
    started = sa.exists().where(
        sessions.c.turn_id == turns.c.id,
        sa.or_(_since(sessions.c.ended_at, cut.sessions), sessions.c.delivery == "inline"),
    )
    # `asked_last` needs the rows of turns that asked for approval.
    asked = sa.exists().where(approvals.c.conversation_id == turns.c.conversation_id, approvals.c.turn_id == turns.c.id)
    if planned:
        asked = asked.where(_since(approvals.c.decided_at, cut.rows))
    query = sa.select(turns.c.id).where(
        turns.c.ended_at < cut.rows,
        turns.c.outcome.is_not(None),
        ~started,
        ~asked,
        sa.not_(_busy(turns.c.conversation_id)),
    )
    if not callbacks:
        return query.where(turns.c.item_type != CALLBACK)
    told = sessions.alias("told")
    stays = sa.exists().where(told.c.id == sa.func.substr(turns.c.id, len(CALLBACK) + 2))
    if planned:
        stays = stays.where(told.c.id.not_in(sessions_to_go(cut, planned=True)))
    return query.where(turns.c.item_type == CALLBACK, ~stays)


def delete_turns(conn: sa.Connection, ids: Sequence[str]) -> int:
    """Delete rows of turns whose work items are gone."""
    _one_at_a_time(conn)
    return conn.execute(sa.delete(turns).where(turns.c.id.in_(ids), turns.c.outcome.is_not(None))).rowcount


def conversations_to_go(cut: Cut, *, planned: bool = False) -> sa.Select[Any]:
    """Ids of idle conversations of this host with nothing left but their history; `planned` ignores old rows."""
    name = conversations.c.id
    hanging = {
        mailbox: sa.or_(
            mailbox.c.heard_at >= cut.rows,
            sa.and_(
                mailbox.c.heard_at.is_(None),
                sa.or_(mailbox.c.kind.not_in(QUIET), mailbox.c.created_at >= cut.rows, mailbox.c.state == "taken"),
            ),
        ),
        approvals: _since(approvals.c.decided_at, cut.rows),
        tasks: tasks.c.created_at >= cut.rows,
        turns: _since(turns.c.ended_at, cut.rows),
        sessions: _since(sessions.c.ended_at, cut.sessions),
    }
    left = [
        sa.exists().where(table.c.conversation_id == name, *((stays,) if planned else ()))
        for table, stays in hanging.items()
    ]
    written = sa.exists().where(records.c.conversation_id == name, records.c.updated_at >= (cut.conversations or 0.0))
    return sa.select(name).where(
        _ours(conversations.c.host_id, cut),
        conversations.c.state == "free",
        conversations.c.created_at < (cut.conversations or 0.0),
        ~written,
        *(~one for one in left),
    )


def delete_conversations(conn: sa.Connection, cut: Cut) -> int:
    """Delete a few idle conversations with their histories; a later message creates a new one."""
    _one_at_a_time(conn)
    found = conn.execute(conversations_to_go(cut).order_by(conversations.c.id).limit(BATCH // 4)).scalars().all()
    for name in found:
        # A sender waits for this lock, or the query below sees its message.
        lock_row(conn, conversations, name)
    going = conn.execute(conversations_to_go(cut).where(conversations.c.id.in_(found))).scalars().all()
    if going:
        delete_histories(conn, records.c.conversation_id.in_(going))
        conn.execute(sa.delete(conversations).where(conversations.c.id.in_(going)))
        # A new conversation of the same name must not inherit rules.
        conn.execute(sa.delete(rules).where(rules.c.conversation_id.in_(going)))
    return len(going)


def workspaces_to_go(cut: Cut, *, planned: bool = False) -> sa.Select[Any]:
    """Names of this host's containers that are unused for as long as sessions are kept, and have no session."""
    left = sa.exists().where(sessions.c.conversation_id == workspaces.c.scope, sessions.c.backend.in_(CONTAINED))
    if planned:
        left = left.where(_since(sessions.c.ended_at, cut.sessions))
    return sa.select(workspaces.c.name).where(
        workspaces.c.host_id == cut.host_id,
        workspaces.c.state != "removed",
        workspaces.c.last_used_at < cut.sessions,
        ~left,
        sa.not_(_busy(workspaces.c.scope)),
    )


def page(conn: sa.Connection, query: sa.Select[Any], after: str) -> list[str]:
    """The next ids of a query behind `after`, at most `BATCH`."""
    (key,) = query.selected_columns
    return list(conn.execute(query.where(key > after).order_by(key).limit(BATCH)).scalars())


def _one_at_a_time(conn: sa.Connection) -> None:
    lock_name(conn, _LOCK)


def _since(at: sa.Column[float], moment: float) -> sa.ColumnElement[bool]:
    """Whether a time is missing, or not before `moment`."""
    return sa.or_(at.is_(None), at >= moment)


def _busy(conversation_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    open_turns = turns.alias("open_turns")
    return sa.or_(
        sa.exists().where(open_turns.c.conversation_id == conversation_id, open_turns.c.outcome.is_(None)),
        sa.exists().where(conversations.c.id == conversation_id, conversations.c.state != "free"),
    )


def _ours(host_id: sa.ColumnElement[str], cut: Cut) -> sa.ColumnElement[bool]:
    """Whether this host prunes it: it is its own, or of a host that is silent for as long as sessions are kept."""
    return sa.or_(
        host_id == cut.host_id, host_id.in_(sa.select(hosts.c.host_id).where(hosts.c.heartbeat_at < cut.sessions))
    )


def delete_histories(conn: sa.Connection, *which: sa.ColumnElement[bool]) -> int:
    """Delete the histories that match `which`; returns how many. Entries that other histories share stay."""
    # Keeps out a fork that is about to share an entry which is deleted here.
    lock_name(conn, DELETING)
    gone = conn.execute(records.delete().where(*which).returning(records.c.head_id, records.c.branches)).all()
    tips = [tip for record in gone for tip in (record.head_id, *record.branches) if tip is not None]
    if tips:
        _delete_unreachable(conn, tips)
    return len(gone)


def _delete_unreachable(conn: sa.Connection, tips: Sequence[str]) -> None:
    """Delete the entries that lead to `tips`, the ends of a deleted record's histories, unless they are still used.

    Some record reaches every stored entry. So an entry is still used if another record ends at it, or if an entry that
    stays has it as its parent.
    """
    line = sa.select(entries.c.id, entries.c.parent_id).where(entries.c.id.in_(tips)).cte(recursive=True)
    line = line.union(sa.select(entries.c.id, entries.c.parent_id).join(line, entries.c.id == line.c.parent_id))
    doomed: dict[str, str | None] = {row.id: row.parent_id for row in conn.execute(sa.select(line))}
    children = conn.execute(sa.select(entries.c.id, entries.c.parent_id).join(line, entries.c.parent_id == line.c.id))
    in_use = {child.parent_id for child in children if child.id not in doomed}
    for record in conn.execute(sa.select(records.c.head_id, records.c.branches)):
        in_use |= {record.head_id, *record.branches}
    for entry_id in in_use:
        spared: str | None = entry_id
        while spared is not None and spared in doomed:
            spared = doomed.pop(spared)
    ids = list(doomed)
    for start in range(0, len(ids), BATCH):
        conn.execute(entries.delete().where(entries.c.id.in_(ids[start : start + BATCH])))
