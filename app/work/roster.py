"""The workers there are and were, and whether each is alive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from app.storage import rows
from app.storage.host import process_space
from app.storage.tables import workers
from app.work.sweep import HEARTBEAT_DEAD_S

Standing = Literal["alive", "silent", "dead", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Employed:
    """One worker as its row and, on this machine, its process say.

    `alive`: heard of lately. `silent`: not heard of for half a minute. `dead`: its process is gone.
    `stopped`: it said so itself.
    """

    executor_id: str
    host_id: str
    pid: int
    version: str
    state: Standing
    started_at: float
    heartbeat_at: float
    stopped_at: float | None


def look(conn: sa.Connection, host_id: str, *, everywhere: bool = True) -> list[Employed]:
    """Workers, last started first, at most 200; of this host or of every host of the database."""
    query = sa.select(workers).order_by(workers.c.started_at.desc()).limit(200)
    if not everywhere:
        query = query.where(workers.c.host_id == host_id)
    now = rows.now(conn)
    return [
        Employed(
            executor_id=row.executor_id,
            host_id=row.host_id,
            pid=row.pid,
            version=row.version,
            state=_state(row, now, here=row.host_id == host_id),
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            stopped_at=row.stopped_at,
        )
        for row in conn.execute(query)
    ]


def _state(row: sa.Row[Any], now: float, *, here: bool) -> Standing:
    if row.stopped_at is not None:
        return "stopped"
    # Only our own table of processes can be looked at; a container beside us has one of its own.
    if here and row.boot_id == process_space() and not Path(f"/proc/{row.pid}").exists():
        return "dead"
    return "alive" if row.heartbeat_at > now - HEARTBEAT_DEAD_S else "silent"
