"""The hosts that share a database, and when each was last heard of, by the database's clock.

Each heartbeat of a worker renews the lease of its host. When the lease has ended, other hosts may settle what the host
left. They lock its row for that, so a returning host waits for them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.display import age
from shellback.storage import rows
from shellback.storage.tables import conversations, hosts, sessions
from shellback.work.queue.mailbox import NOWHERE

SILENT_S: Final = 30.0
"""After this time without a heartbeat a host is shown as silent. Other hosts act when its lease ends."""
ON_LEASH: Final = 0.8
"""After this part of its lease without a renewal, the commands of a host end whose conversations others continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host. `silent_s` is None if it has no row: it was never heard of, or its row was pruned."""

    host_id: str
    name: str
    silent_s: float | None
    heartbeat_at: float = 0.0
    given_up: bool = False
    draining: bool = False
    why: str = ""
    """Why a conversation waits for a host; then this is none."""

    def holds(self, lease_s: float) -> bool:
        """Whether its lease still runs."""
        return self.silent_s is not None and self.silent_s <= lease_s

    @property
    def silent(self) -> bool:
        """Whether it has not been heard of lately."""
        return not self.holds(SILENT_S)

    @property
    def heard(self) -> str:
        """When it was last heard of, as text after its name."""
        return "was never heard of" if self.silent_s is None else f"was last heard of {age(self.silent_s)} ago"

    @property
    def silence(self) -> str:
        """An id of this silence."""
        return f"{self.host_id}:{self.heartbeat_at:.3f}"


def heard_of(conn: sa.Connection, host_id: str) -> bool:
    """Renew the lease of a host; whether it drains. It no longer counts as given up."""
    values: dict[str, Any] = {"name": platform.node()[:255], "given_up_at": None}
    renewed = sa.update(hosts).where(hosts.c.host_id == host_id).values(heartbeat_at=rows.CLOCK, **values)
    row = conn.execute(renewed.returning(hosts.c.draining_at)).one_or_none()
    if row is None:
        rows.put(conn, hosts, host_id, heartbeat_at=rows.now(conn), **values)
    return row is not None and row.draining_at is not None


def one(conn: sa.Connection, host_id: str) -> Host:
    """A host; only its id is set if it has no row."""
    row = conn.execute(sa.select(hosts).where(hosts.c.host_id == host_id)).one_or_none()
    return Host(host_id=host_id, name=host_id[:12], silent_s=None) if row is None else _host(row, rows.now(conn))


def held(conn: sa.Connection, host_id: str, *, wait: bool) -> Host | None:
    """The host, with its row locked. None if another transaction holds the row, unless `wait` is set."""
    query = sa.select(hosts).where(hosts.c.host_id == host_id).with_for_update(skip_locked=not wait)
    row = conn.execute(query).one_or_none()
    if row is not None:
        return _host(row, rows.now(conn))
    return one(conn, host_id) if wait else None


def others(conn: sa.Connection, host_id: str, lease_s: float) -> list[Host]:
    """Other hosts whose lease has ended. A host that drains takes nothing of them."""
    if one(conn, host_id).draining:
        return []
    now = rows.now(conn)
    query = sa.select(hosts).where(hosts.c.host_id != host_id, hosts.c.heartbeat_at < now - lease_s)
    return [_host(row, now) for row in conn.execute(query.order_by(hosts.c.heartbeat_at))]


def known(conn: sa.Connection) -> list[Host]:
    """Every host that has a row, a conversation or a session, by name."""
    now = rows.now(conn)
    found = [_host(row, now) for row in conn.execute(sa.select(hosts).order_by(hosts.c.name, hosts.c.host_id))]
    ids = {NOWHERE, *(host.host_id for host in found)}
    nameless = sa.union(sa.select(conversations.c.host_id), sa.select(sessions.c.host_id))
    return found + [one(conn, name) for name in sorted(conn.execute(nameless).scalars()) if name not in ids]


def of_conversation(conn: sa.Connection, conversation_id: str) -> Host | None:
    """The host of a conversation; None if there is no such conversation."""
    its = conversations.c
    row = conn.execute(sa.select(its.host_id, its.placed).where(its.id == conversation_id)).one_or_none()
    if row is not None and row.host_id == NOWHERE:
        return Host(host_id=NOWHERE, name="none", silent_s=None, why=row.placed)
    return None if row is None else one(conn, row.host_id)


def note_given_up(conn: sa.Connection, host: Host) -> None:
    """Mark the locked host as given up until it is heard of again."""
    rows.change(conn, hosts, host.host_id, given_up_at=rows.now(conn))


def _host(row: sa.Row[Any], now: float) -> Host:
    return Host(
        host_id=row.host_id,
        name=row.name or row.host_id[:12],
        silent_s=max(0.0, now - row.heartbeat_at),
        heartbeat_at=row.heartbeat_at,
        given_up=row.given_up_at is not None,
        draining=row.draining_at is not None,
    )
