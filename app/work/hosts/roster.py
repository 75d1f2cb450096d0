"""The workers there are and were, and whether each is alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.executor_lock import unheld
from shellback.storage.host import process_space
from shellback.storage.tables import events, workers

Standing = Literal["alive", "silent", "dead", "stopped"]

LEASE_S: Final = 15.0
"""A worker that has not been heard of for this long is paused or hangs; three heartbeats."""
TAKEN_OVER: Final = "taken_over"
"""Kind of the event that tells of a turn which another worker goes on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Employed:
    """One worker as its row and what is left of its process say.

    `alive`: heard of within `LEASE_S`. `silent`: not heard of since, though its process or lock is there.
    `dead`: its process is gone, on Postgres its lock. `stopped`: it said so itself. `quiet_s` is how long it
    has not been heard of.
    """

    executor_id: str
    host_id: str
    pid: int
    version: str
    state: Standing
    started_at: float
    heartbeat_at: float
    stopped_at: float | None
    quiet_s: float


def look(conn: sa.Connection, host_id: str, *, everywhere: bool = True) -> list[Employed]:
    """Workers, last started first; of this host or of every host of the database, the 200 heard of last.

    One that lives must not be left out for newer ones that are gone: its turns would be taken for nobody's.
    """
    query = sa.select(workers).order_by(workers.c.heartbeat_at.desc()).limit(200)
    if not everywhere:
        query = query.where(workers.c.host_id == host_id)
    found = sorted(conn.execute(query).all(), key=lambda row: row.started_at, reverse=True)
    now = rows.now(conn)
    gone = _gone(conn, found, host_id)
    return [
        Employed(
            executor_id=row.executor_id,
            host_id=row.host_id,
            pid=row.pid,
            version=row.version,
            state=_state(row, now, gone=row.executor_id in gone),
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            stopped_at=row.stopped_at,
            quiet_s=max(0.0, now - max(row.heartbeat_at, row.stopped_at or 0.0)),
        )
        for row in found
    ]


def there(conn: sa.Connection, host_id: str) -> list[Employed]:
    """Workers of this host that are alive, or hang and may go on; not those whose process is gone."""
    return [one for one in look(conn, host_id, everywhere=False) if one.state in {"alive", "silent"}]


def _state(row: sa.Row[Any], now: float, *, gone: bool) -> Standing:
    if row.stopped_at is not None:
        return "stopped"
    if gone:
        return "dead"
    return "alive" if row.heartbeat_at > now - LEASE_S else "silent"


def _gone(conn: sa.Connection, found: Sequence[sa.Row[Any]], host_id: str) -> set[str]:
    if conn.dialect.name != "sqlite":
        return unheld(conn, [row.executor_id for row in found])
    # Only our own table of processes can be looked at; a container beside us has one of its own.
    return {
        row.executor_id
        for row in found
        if row.host_id == host_id and row.boot_id == process_space() and not Path(f"/proc/{row.pid}").exists()
    }


def lost_turns(conn: sa.Connection) -> dict[str, int]:
    """How many of a worker's turns others went on with, for as long as events are kept; at most 10,000 are counted."""
    query = sa.select(events.c.payload).where(events.c.kind == TAKEN_OVER).limit(10_000)
    return Counter(payload["of"] for payload in conn.execute(query).scalars())
