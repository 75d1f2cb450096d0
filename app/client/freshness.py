"""The age of what the database says about a host: without a worker of that host, its rows do not change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shellback.exec.core.display import age, visible_line
from shellback.storage.host import boot_id, process_space

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.hosts import Host


class Freshness:
    """The age of the rows of some hosts and of this one, looked up once at construction."""

    def __init__(self, where: Place, host_ids: Iterable[str] = ()) -> None:
        from shellback.work.hosts import hosts, roster
        from shellback.work.queue.mailbox import NOWHERE

        staff = where.database.read_now(roster.look, where.host_id, everywhere=False)
        staff = [one for one in staff if not one.elsewhere]  # they keep no rows of processes
        here = where.database.read_now(hosts.one, where.host_id)
        self._here = where.host_id
        self.current = any(one.state == "alive" for one in staff)
        others = {*host_ids} - {where.host_id, NOWHERE}
        found = where.database.read_now(lambda conn: [hosts.one(conn, other) for other in others]) if others else []
        self.silent: dict[str, Host] = {host.host_id: host for host in found if host.silent}
        """The silent ones, by id; never this one."""
        heard = [one.quiet_s for one in staff] + ([] if here.silent_s is None else [here.silent_s])
        self._heard_s = min(heard, default=None)

    def fact(self, host_id: str | None = None) -> dict[str, float | None]:
        """`age_s` as a field of the JSON output."""
        return {"data_age_s": self.age_s(host_id)}

    def age_s(self, host_id: str | None = None) -> float | None:
        """Age in seconds: 0 while a worker of that host lives, None if none has ever run."""
        if host_id in self.silent:
            return self.silent[host_id].silent_s
        return 0.0 if self.current or host_id not in {None, self._here} else self._heard_s

    def lines(self) -> list[str]:
        """Lines for people about rows that are not current."""
        told = [
            visible_line(f"host {host.name} ({host.host_id}) {host.heard}: the state of its processes is unknown")
            for host in self.silent.values()
        ]
        if self.current:
            return told
        old = "no worker has run here" if self._heard_s is None else f"this is the state of {age(self._heard_s)} ago"
        return [f"no worker of this host is alive: {old}; start `shellback worker` to update it", *told]


def worker_lives(where: Place) -> bool:
    """Whether a worker that runs turns of this host has a recent heartbeat and, if it is here, its process exists."""
    import sqlalchemy as sa

    from shellback.storage import rows
    from shellback.storage.tables import workers
    from shellback.work.hosts.roster import NO_TURNS, hosts_of
    from shellback.work.hosts.sweep import HEARTBEAT_DEAD_S
    from shellback.work.queue.queues import EVERYWHERE

    def ask(conn: sa.Connection) -> list[tuple[int, str, bool]]:
        query = sa.select(workers).where(
            workers.c.host_id.in_([where.host_id, EVERYWHERE]),
            workers.c.version != NO_TURNS,
            workers.c.stopped_at.is_(None),
            workers.c.heartbeat_at > rows.now(conn) - HEARTBEAT_DEAD_S,
        )
        found = conn.execute(query)
        return [
            (row.pid, row.boot_id, row.elsewhere) for row in found if where.host_id in hosts_of(row.host_id, row.offer)
        ]

    def there(pid: int, space: str, elsewhere: bool) -> bool:
        if elsewhere:
            return True
        if space == process_space():
            return Path(f"/proc/{pid}").exists()
        # In another container the pid means another process; then a heartbeat since this boot must do.
        return space.partition("/")[0] == boot_id()

    return any(there(*one) for one in where.database.read_now(ask))


def home_of(where: Place, conversation: str) -> Host | None:
    """The other host that a conversation lives on; None if it lives on this host or does not exist."""
    from shellback.work.hosts import hosts

    found = where.database.read_now(hosts.of_conversation, conversation)
    return None if found is None or found.host_id == where.host_id else found


def waits(conversation: str, home: Host | None) -> str | None:
    """The line about a conversation whose host is silent, or that waits for one; None if its host is not silent."""
    if home is None or not home.silent:
        return None
    if home.why:
        return visible_line(f"conversation {conversation} waits for a host: {home.why}")
    return visible_line(
        f"conversation {conversation} lives on host {home.name}, which {home.heard}, and waits for it. "
        f"`shellback adopt conversation {conversation}` continues it on this host"
    )
