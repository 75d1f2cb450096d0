"""The workers of a database, and whether each is alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from shellback.exec.supervisor.process import procfs
from shellback.storage import rows
from shellback.storage.host import process_space
from shellback.storage.tables import events, workers
from shellback.work.queue.queues import EVERYWHERE

Standing = Literal["alive", "silent", "dead", "stopped"]

LEASE_S: Final = 15.0
"""After this time without a heartbeat (three of them) a worker is paused, hangs or is cut off: its lease has ended."""
NO_TURNS: Final = "none"
"""The version of a worker that runs no turns."""
TAKEN_OVER: Final = "taken_over"
"""The kind of event written when another worker continues a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Employed:
    """One worker.

    `alive`: heard of within `LEASE_S`. `silent`: not heard of since. `dead`: its process is gone, as only its host can
    tell. `stopped`: it has stopped. `quiet_s`: seconds since the last heartbeat.
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
    elsewhere: bool
    """Whether it runs turns for its host on another machine."""
    serves: list[str]
    """The hosts whose turns it runs, or those that it reaches if it runs turns of many."""


Ended = Callable[[str, str], bool]
"""Whether the process that held an executor id with a token is known to have ended."""


def _unknown(_executor_id: str, _token: str) -> bool:
    return False


def look(
    conn: sa.Connection,
    host_id: str,
    *,
    everywhere: bool = True,
    names: Collection[str] | None = None,
    limit: int = 200,
    ended: Ended = _unknown,
) -> list[Employed]:
    """Workers of this host or of every host, last started first: those of these `names`, or the last ones heard of.

    `ended` tells of workers of this host in other PID namespaces.
    """
    query = sa.select(workers)
    if names is None:
        query = query.order_by(workers.c.heartbeat_at.desc()).limit(limit)
    else:
        query = query.where(workers.c.executor_id.in_(names))
    if not everywhere:
        query = query.where(workers.c.host_id.in_([host_id, EVERYWHERE]))
    found = sorted(conn.execute(query).all(), key=lambda row: row.started_at, reverse=True)
    now = rows.now(conn)
    return [
        Employed(
            executor_id=row.executor_id,
            host_id=row.host_id,
            pid=row.pid,
            version=row.version,
            state=_state(row, now, lambda row: _gone(row, host_id, ended)),
            started_at=row.started_at,
            heartbeat_at=row.heartbeat_at,
            stopped_at=row.stopped_at,
            quiet_s=_quiet_s(now - max(row.heartbeat_at, row.stopped_at or 0.0)),
            elsewhere=row.elsewhere,
            serves=hosts_of(row.host_id, row.offer),
        )
        for row in found
    ]


def hosts_of(host_id: str, offer: Mapping[str, Any] | None) -> list[str]:
    """The hosts whose turns a worker runs, by the host and the offer in its row."""
    return [host_id] if host_id != EVERYWHERE else [*(offer or {}).get("hosts", ())]


def there(conn: sa.Connection, host_id: str) -> list[Employed]:
    """Workers on the machine of this host that are `alive` or `silent`."""
    found = look(conn, host_id, everywhere=False)
    return [one for one in found if one.state in {"alive", "silent"} and not one.elsewhere]


def _state(row: sa.Row[Any], now: float, gone: Callable[[sa.Row[Any]], bool]) -> Standing:
    if row.stopped_at is not None:
        return "stopped"
    if gone(row):
        return "dead"
    return "alive" if _quiet_s(now - row.heartbeat_at) < LEASE_S else "silent"


def _quiet_s(since_s: float) -> float:
    # A time far ahead was written before the database's clock was set back; a living worker writes another one soon.
    return -since_s if since_s < -LEASE_S else max(0.0, since_s)


def _gone(row: sa.Row[Any], host_id: str, ended: Ended) -> bool:
    if row.host_id != host_id or row.elsewhere:
        return False
    if row.boot_id != process_space():
        # In another container the pid means another process.
        return bool(row.token) and ended(row.executor_id, row.token)
    found = procfs.read(row.pid)
    return found is None or not found.alive


def lost_turns(conn: sa.Connection) -> dict[str, int]:
    """The number of turns that other workers took over, by worker; of at most 10,000 events that are still kept."""
    query = sa.select(events.c.payload).where(events.c.kind == TAKEN_OVER).limit(10_000)
    return Counter(payload["of"] for payload in conn.execute(query).scalars())
