"""Places new conversations: on a host that has their workspace, their labels and room, and does not drain.

What a worker offers is in its row, renewed with its heartbeat. A conversation that fits no host waits for one; the
sweep of any worker places it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, hosts, sessions, turns, workers
from shellback.work.hosts import roster
from shellback.work.queue import mailbox as box
from shellback.work.queue.mailbox import DEFAULT, NOWHERE, Home, Workspace
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import claims

MEMORY_LEFT: Final = 0.05
"""A host has no room if a smaller part of its memory is available."""
PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker's host has for new conversations. Paths of workspaces are those of that host.

    `slots` are turns that the worker runs at once; `memory` is the part of the memory that is available; `load` is per
    core. A workspace of `each` has a directory for each conversation.
    """

    labels: Sequence[str] = ()
    workspaces: Mapping[str, str] = field(default_factory=dict[str, str])
    each: Sequence[str] = ()
    slots: int = 0
    memory: float = 1.0
    load: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Offer:
        """Also of a worker of another version, which may offer more."""
        return cls(**{name: value for name, value in (found or {}).items() if name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A host whose workers are alive, what they offer together, and how many items wait or run there."""

    host_id: str
    name: str
    draining: bool
    offer: Offer
    busy: int

    @property
    def free(self) -> int:
        """Slots for which no item waits or runs."""
        return max(0, self.offer.slots - self.busy)

    @property
    def share(self) -> float:
        """The part of the slots that is free, less on a busy machine."""
        return self.free / self.offer.slots / (1.0 + self.offer.load)

    def lacks(self, needs: Collection[str], workspace: str) -> str | None:
        """Why a new conversation cannot begin here; None if it can."""
        offer, missing = self.offer, sorted({*needs} - {*self.offer.labels})
        reasons = {
            "drains": self.draining,
            f"has no workspace {workspace}": workspace not in {DEFAULT, *offer.workspaces},
            f"lacks the label {', '.join(missing)}": missing,
            f"has no free slot of {offer.slots}": not self.free,
            f"has less than {MEMORY_LEFT:.0%} of its memory left": offer.memory < MEMORY_LEFT,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def workspace(self, name: str) -> Workspace:
        """The workspace of this name here."""
        if name == DEFAULT:
            return Workspace()
        return Workspace(name, self.offer.workspaces[name], name in self.offer.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a new conversation asks of its host. `here` is the host that takes it if it can."""

    here: str
    needs: tuple[str, ...] = ()
    workspace: str = DEFAULT

    def __call__(self, conn: sa.Connection) -> Home:
        """Its host; `NOWHERE` if it must wait for one."""
        return chosen(rooms(conn), self)


def measured() -> tuple[float, float]:
    """The available part of the memory and the load per core of this machine (proc_meminfo(5), getloadavg(3))."""
    with open("/proc/meminfo", encoding="ascii") as file:
        found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
    return found["MemAvailable"] / found["MemTotal"], os.getloadavg()[0] / (os.cpu_count() or 1)


def rooms(conn: sa.Connection) -> list[Room]:
    """The hosts with a living worker."""
    at = workers.c
    query = (
        sa.select(at.host_id, at.offer, hosts.c.name, hosts.c.draining_at)
        .join(hosts, hosts.c.host_id == at.host_id)
        .where(at.stopped_at.is_(None), at.heartbeat_at > rows.now(conn) - roster.LEASE_S)
        .order_by(at.host_id, at.started_at.desc())
    )
    host = conversations.c.host_id
    items = sa.select(host, sa.func.count()).join(turns, turns.c.conversation_id == conversations.c.id)
    busy = {row[0]: row[1] for row in conn.execute(items.where(turns.c.outcome.is_(None)).group_by(host))}
    found: dict[str, Room] = {}
    for row in conn.execute(query):
        offer = Offer.from_json(row.offer)
        if (known := found.get(row.host_id)) is not None:
            # The last one that started has the newest settings.
            found[row.host_id] = replace(known, offer=replace(known.offer, slots=known.offer.slots + offer.slots))
            continue
        found[row.host_id] = Room(
            host_id=row.host_id,
            name=row.name,
            draining=row.draining_at is not None,
            offer=offer,
            busy=busy.get(row.host_id, 0),
        )
    return list(found.values())


def chosen(found: Sequence[Room], wanted: Wanted) -> Home:
    """The host for a new conversation: this one if it fits, else the one with the largest `share` of slots."""
    lacking = {room.host_id: room.lacks(wanted.needs, wanted.workspace) for room in found}
    fitting = [room for room in found if lacking[room.host_id] is None]
    if not fitting:
        why = "; ".join(f"{room.name} {lacking[room.host_id]}" for room in found) or "no host has a worker"
        return Home(NOWHERE, f"no host fits: {why}", Workspace(wanted.workspace), wanted.needs)
    best = max(fitting, key=lambda room: (room.host_id == wanted.here, room.share, room.host_id))
    has = [f"label {', '.join(wanted.needs)}"] if wanted.needs else []
    has += [f"workspace {wanted.workspace}"] if wanted.workspace != DEFAULT else []
    has.append(f"{best.free} of {best.offer.slots} slots free")
    why = f"{best.name}: {', '.join(has)}; {len(fitting)} of {len(found)} host(s) fit"
    return Home(best.host_id, why, best.workspace(wanted.workspace), wanted.needs)


def is_host(conn: sa.Connection, host_id: str) -> bool:
    """Whether this machine takes new conversations: a worker was heard of here, and it does not drain.

    Where no other host is known, a machine is one before its first worker.
    """
    query = sa.select(hosts.c.host_id, hosts.c.draining_at)
    known = {row.host_id: row.draining_at for row in conn.execute(query)}
    return known.get(host_id, 0 if known else None) is None


@dataclass(eq=False, repr=False)
class Placing:
    """Places the conversations that wait for a host; `once` is a part of the sweep."""

    database: Database
    enqueuer: Enqueuer

    async def once(self) -> None:
        """Place those that fit a host now, oldest first. After a cancellation the next sweep does the rest."""
        after = (0.0, "")
        while page := await self.database.read(_page, after):
            after = page[-1].place
            for one in page:
                if one.changes:
                    await self.database.write(place, self.enqueuer, one.place[1])


class _Waits(NamedTuple):
    """A conversation that waits: when it was made and its id, and whether `place` would change its row."""

    place: tuple[float, str]
    changes: bool


def _page(conn: sa.Connection, after: tuple[float, str]) -> list[_Waits]:
    its, found = conversations.c, rooms(conn)
    later = sa.tuple_(its.created_at, its.id) > sa.tuple_(*map(sa.literal, after))
    query = sa.select(conversations).where(its.host_id == NOWHERE, later).order_by(its.created_at, its.id).limit(PAGE)
    return [
        _Waits((row.created_at, row.id), chosen(found, _wanted_by(row)).why != row.placed)
        for row in conn.execute(query)
    ]


def _wanted_by(row: sa.Row[Any]) -> Wanted:
    return Wanted(here=NOWHERE, needs=tuple(row.needs or ()), workspace=row.workspace or DEFAULT)


def waiting(conn: sa.Connection) -> list[str]:
    """Conversations that wait for a host, oldest first; at most `PAGE`."""
    query = sa.select(conversations.c.id).where(conversations.c.host_id == NOWHERE)
    return list(conn.execute(query.order_by(conversations.c.created_at).limit(PAGE)).scalars())


def place(conn: sa.Connection, enqueuer: Enqueuer, conversation_id: str) -> bool:
    """Give a conversation that waits its host, and enqueue what it has to read; False if none fits, or it has one."""
    row = box.lock(conn, conversation_id)
    if row is None or row.host_id != NOWHERE:
        return False
    home = _wanted_by(row)(conn)
    if home.host_id == NOWHERE:
        rows.change(conn, conversations, conversation_id, placed=home.why)
        return False
    rows.change(conn, conversations, conversation_id, **home.values(conversation_id))
    row = box.lock(conn, conversation_id)  # read again: what follows is put on that host's queues
    assert row is not None
    claims.follow_up(conn, enqueuer, row, suffix=":placed")
    return True


def drain(conn: sa.Connection, host_id: str, *, begin: bool) -> None:
    """Have a host take no new conversations, or take them again. Its workers end when it is `empty`."""
    rows.change(conn, hosts, host_id, draining_at=rows.now(conn) if begin else None)


def empty(conn: sa.Connection, host_id: str) -> bool:
    """Whether nothing of a host needs it: no item, turn, process, nor call that waits for a person."""
    its = conversations.c
    mine = its.host_id == host_id
    needing = (
        sa.select(sa.literal(1)).where(mine, its.state == "claimed"),
        sa.select(sa.literal(1))
        .join_from(turns, conversations, turns.c.conversation_id == its.id)
        .where(mine, turns.c.outcome.is_(None)),
        sa.select(sa.literal(1))
        .join_from(approvals, conversations, approvals.c.conversation_id == its.id)
        .where(mine, approvals.c.state == "pending"),
        sa.select(sa.literal(1)).where(sessions.c.host_id == host_id, sessions.c.state.in_(LIVE)),
    )
    return not any(rows.exists(conn, query) for query in needing)
