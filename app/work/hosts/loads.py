"""The load of each host: its workers, conversations, processes and items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from shellback.storage.session_rows import LIVE
from shellback.storage.tables import conversations, sessions, turns
from shellback.work.hosts import hosts, roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A host and what is on it.

    `alive`: a worker was heard of within 30 s. `silent`: none since. `given_up`: other hosts have settled its work.
    `workers` are those alive, `processes` those that may run, `waiting` and `running` items without and with a turn.
    """

    host_id: str
    name: str
    state: Literal["alive", "silent", "given_up"]
    silent_s: float | None
    workers: int
    conversations: int
    processes: int
    waiting: int
    running: int


def loads(conn: sa.Connection, here: str) -> list[Load]:
    """The load of every host, the last heard of first; `here` is this host, which knows its own dead workers."""
    at = conversations.c.host_id
    alive = Counter(one.host_id for one in roster.look(conn, here) if one.state == "alive")
    talks = _counted(conn, sa.select(at))
    live = _counted(conn, sa.select(sessions.c.host_id).where(sessions.c.state.in_(LIVE)))
    items = sa.select(at).join(turns, turns.c.conversation_id == conversations.c.id).where(turns.c.outcome.is_(None))
    waiting = _counted(conn, items.where(turns.c.started_at.is_(None)))
    running = _counted(conn, items.where(turns.c.started_at.is_not(None)))
    return [
        Load(
            host_id=host.host_id,
            name=host.name,
            state="given_up" if host.given_up else "silent" if host.silent else "alive",
            silent_s=host.silent_s,
            workers=alive[host.host_id],
            conversations=talks.get(host.host_id, 0),
            processes=live.get(host.host_id, 0),
            waiting=waiting.get(host.host_id, 0),
            running=running.get(host.host_id, 0),
        )
        for host in hosts.known(conn)
    ]


def _counted(conn: sa.Connection, named: sa.Select[tuple[str]]) -> Mapping[str, int]:
    host = named.subquery().c.host_id
    return {row[0]: row[1] for row in conn.execute(sa.select(host, sa.func.count()).group_by(host))}
