"""Places new conversations: on a host that has their workspace, their labels and room, and does not drain.

What a worker offers is in its row, renewed with its heartbeat. A conversation that fits no host waits for one; the
sweep of any worker places it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from shellback.exec.core.model import Delivery
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.session_rows import LIVE
from shellback.storage.tables import approvals, conversations, hosts, mailbox, sessions, turns, workers
from shellback.work.hosts import roster
from shellback.work.hosts.hosts import one
from shellback.work.queue import mailbox as box
from shellback.work.queue.items import MOVED
from shellback.work.queue.mailbox import DEFAULT, NOWHERE, Home, Workspace
from shellback.work.queue.queues import EVERYWHERE, Enqueuer
from shellback.work.turn import claims

MEMORY_LEFT: Final = 0.05
"""A host has no room if a smaller part of its memory is available."""
PAGE: Final = 100
NAMED: Final = 10
"""So many hosts are named that do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a worker's host has for new conversations, and which `hosts` a worker of many reaches.

    Paths of workspaces are those of that host. `slots` are turns that the worker runs at once; `memory` is the part of
    the memory that is available; `load` is per core. A workspace of `each` has a directory for each conversation.
    """

    labels: Sequence[str] = ()
    workspaces: Mapping[str, str] = field(default_factory=dict[str, str])
    each: Sequence[str] = ()
    hosts: Sequence[str] = ()
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
        return self.free / max(1, self.offer.slots) / (1.0 + self.offer.load)

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
        """Its host, whose drain waits for the end of the transaction; `NOWHERE` if it must wait for one."""
        while True:
            home = chosen(rooms(conn), self)
            its = sa.select(hosts.c.draining_at).where(hosts.c.host_id == home.host_id).with_for_update(read=True)
            if conn.execute(its).scalar_one_or_none() is None:
                return home


def measured() -> tuple[float, float]:
    """The available part of the memory and the load per core of this machine (proc_meminfo(5), getloadavg(3)).

    What the kernel does not say counts as all of the memory and no load.
    """
    memory, load = 1.0, 0.0
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
        memory = int(found.get("MemAvailable", 1)) / int(found.get("MemTotal", 1)) if len(found) == 2 else memory
    return memory, load


def rooms(conn: sa.Connection) -> list[Room]:
    """The hosts whose machine has a living worker, and what they offer.

    Their slots are those of their newest version, on any machine: others take no new items.
    """
    at = workers.c
    query = (
        sa.select(at.host_id, at.version, at.started_at, at.elsewhere, at.offer, hosts.c.name, hosts.c.draining_at)
        .outerjoin(hosts, hosts.c.host_id == at.host_id)
        .where(at.stopped_at.is_(None), at.heartbeat_at > rows.now(conn) - roster.LEASE_S)
        .order_by(at.started_at.desc())
    )
    host = conversations.c.host_id
    items = sa.select(host, sa.func.count()).join(turns, turns.c.conversation_id == conversations.c.id)
    busy = {row[0]: row[1] for row in conn.execute(items.where(turns.c.outcome.is_(None)).group_by(host))}
    found: dict[str, Room] = {}
    newest, slots = dict[str, str](), Counter[str]()
    for row in conn.execute(query):
        offer = Offer.from_json(row.offer)
        served = roster.hosts_of(row.host_id, row.offer) if row.version != roster.NO_TURNS else []
        for host_id in served:
            if row.version == newest.setdefault(host_id, row.version):
                slots[host_id] += max(1, offer.slots // len(served)) if offer.slots else 0
        # The last one that started there has the newest settings.
        if row.host_id not in found and not row.elsewhere:
            found[row.host_id] = Room(
                host_id=row.host_id,
                name=row.name,
                draining=row.draining_at is not None,
                offer=offer,
                busy=busy.get(row.host_id, 0),
            )
    return [replace(found[name], offer=replace(found[name].offer, slots=slots[name])) for name in sorted(found)]


def chosen(found: Sequence[Room], wanted: Wanted) -> Home:
    """The host for a new conversation: this one if it fits, else the one with the largest `share` of slots."""
    lacking = {room.host_id: room.lacks(wanted.needs, wanted.workspace) for room in found}
    fitting = [room for room in found if lacking[room.host_id] is None]
    if not fitting:
        some = [f"{room.name} {lacking[room.host_id]}" for room in found[:NAMED]]
        some += [f"and {len(found) - NAMED} more"] if len(found) > NAMED else []
        why = "; ".join(some) or "no host has a worker"
        return Home(NOWHERE, f"no host fits: {why}", Workspace(wanted.workspace), wanted.needs)
    best = max(fitting, key=lambda room: (room.host_id == wanted.here, room.share, room.host_id))
    has = [f"label {', '.join(wanted.needs)}"] if wanted.needs else []
    has += [f"workspace {wanted.workspace}"] if wanted.workspace != DEFAULT else []
    has.append(f"{best.free} of {best.offer.slots} slots free")
    why = f"{best.name}: {', '.join(has)}; {len(fitting)} of {len(found)} host(s) fit"
    return Home(best.host_id, why, best.workspace(wanted.workspace), wanted.needs)


def is_host(conn: sa.Connection, host_id: str) -> bool:
    """Whether this machine takes new conversations: it has had a worker, and does not drain.

    While no worker of any machine is known, all are hosts.
    """
    known = set(conn.execute(sa.select(workers.c.host_id).where(workers.c.host_id != EVERYWHERE).distinct()).scalars())
    return not known or (host_id in known and not one(conn, host_id).draining)


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
            for waits in page:
                if waits.changes:
                    await self.database.write(place, self.enqueuer, waits.place[1])


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
    # A program of the version before may have put one on the queue of no host.
    open_items = turns.c.conversation_id == conversation_id, turns.c.outcome.is_(None)
    rows.change_some(conn, turns, *open_items, outcome=MOVED, ended_at=rows.CLOCK)
    row = box.lock(conn, conversation_id)  # read again: what follows is put on that host's queues
    assert row is not None
    claims.follow_up(conn, enqueuer, row, suffix=":placed")
    return True


def drain(conn: sa.Connection, host_id: str, *, begin: bool) -> None:
    """Have a host take no new conversations, or take them again. Its workers end when it is `empty`."""
    rows.change(conn, hosts, host_id, draining_at=rows.now(conn) if begin else None)


def empty(conn: sa.Connection, host_id: str) -> bool:
    """Whether nothing of a host needs it: no item, turn, process, unread news, nor call that waits for a person."""
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
        sa.select(sa.literal(1))
        .join_from(mailbox, conversations, mailbox.c.conversation_id == its.id)
        .where(mine, its.state == "free", box.waking()),
        sa.select(sa.literal(1)).where(sessions.c.host_id == host_id, sessions.c.state.in_(LIVE)),
        sa.select(sa.literal(1)).where(sessions.c.host_id == host_id, sessions.c.delivery == Delivery.INLINE.value),
    )
    return not any(rows.exists(conn, query) for query in needing)
