"""The load of each host: its workers, conversations, processes and items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.storage.session_rows import LIVE
from shellback.storage.tables import conversations, sessions, turns
from shellback.work.hosts import hosts, placing, roster
from shellback.work.hosts.hosts import Host
from shellback.work.hosts.placing import Room

MOST: Final = 10_000
"""So many workers are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A host and what is on it.

    `alive`: a worker on its machine was heard of within 30 s. `draining`: so, and it takes no new conversations.
    `silent`: none since. `given_up`: other hosts have settled its work. `workers` are those alive, `processes` those
    that may run, `waiting` and `running` items without and with a turn. Of its living workers: `labels`, `workspaces`
    besides the default one, `free_slots`, `memory` (the part that is available) and `load` (per core).
    """

    host_id: str
    name: str
    state: Literal["alive", "draining", "silent", "given_up"]
    silent_s: float | None
    workers: int
    conversations: int
    processes: int
    waiting: int
    running: int
    labels: list[str] = field(default_factory=list[str])
    workspaces: list[str] = field(default_factory=list[str])
    free_slots: int = 0
    memory: float | None = None
    load: float | None = None


def loads(conn: sa.Connection, here: str) -> list[Load]:
    """The load of every host, in the order of their names; `here` is this host, which knows its own dead workers."""
    at = conversations.c.host_id
    alive = Counter(host for one in roster.look(conn, here, limit=MOST) if one.state == "alive" for host in one.serves)
    talks = _counted(conn, at)
    live = _counted(conn, sessions.c.host_id, sessions.c.state.in_(LIVE))
    begun = sa.func.count(turns.c.started_at)
    query = sa.select(at, sa.func.count() - begun, begun).join(turns, turns.c.conversation_id == conversations.c.id)
    items = {
        host: (waiting, running)
        for host, waiting, running in conn.execute(query.where(turns.c.outcome.is_(None)).group_by(at))
    }
    offers = {room.host_id: _offered(room) for room in placing.rooms(conn)}
    return [
        Load(
            host_id=host.host_id,
            name=host.name,
            state=_state(host),
            silent_s=host.silent_s,
            workers=alive[host.host_id],
            conversations=talks.get(host.host_id, 0),
            processes=live.get(host.host_id, 0),
            waiting=waiting,
            running=running,
            **offers.get(host.host_id, {}),
        )
        for host in hosts.known(conn)
        for waiting, running in [items.get(host.host_id, (0, 0))]
    ]


def _state(host: Host) -> Literal["alive", "draining", "silent", "given_up"]:
    if host.given_up or host.silent:
        return "given_up" if host.given_up else "silent"
    return "draining" if host.draining else "alive"


def _offered(room: Room) -> dict[str, Any]:
    offer = room.offer
    return {
        "labels": [*offer.labels],
        "workspaces": [*offer.workspaces],
        "free_slots": room.free,
        "memory": offer.memory,
        "load": offer.load,
    }


def _counted(conn: sa.Connection, host: sa.Column[str], *which: sa.ColumnElement[bool]) -> Mapping[str, int]:
    query = sa.select(host, sa.func.count()).where(*which).group_by(host)
    return {row[0]: row[1] for row in conn.execute(query)}
