"""How old a view is: only a worker learns of ends, asks and takes turns, so without one its rows stand still."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shellback.cli.elsewhere import silent_hosts
from shellback.cli.shared import age
from shellback.exec.core.display import visible_line

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.hosts.hosts import Host


class Freshness:
    """How old is what the database says of some hosts, of this one always. Looked up once, when it is made."""

    def __init__(self, where: Place, host_ids: Iterable[str] = ()) -> None:
        from shellback.work.hosts import hosts, roster

        workers = where.database.read_now(roster.look, where.host_id, everywhere=False)
        here = where.database.read_now(hosts.one, where.host_id)
        self._here = where.host_id
        self.current = any(one.state == "alive" for one in workers)
        self.silent: dict[str, Host] = silent_hosts(where, host_ids)
        heard = [one.quiet_s for one in workers] + ([] if here.silent_s is None else [here.silent_s])
        self._heard_s = min(heard, default=None)

    def fact(self, host_id: str | None = None) -> dict[str, float | None]:
        """`age_s` as a field of what is printed as JSON."""
        return {"data_age_s": self.age_s(host_id)}

    def age_s(self, host_id: str | None = None) -> float | None:
        """How many seconds old it is: 0 while a worker of that host lives, None where none has ever run."""
        if host_id in self.silent:
            return self.silent[host_id].silent_s
        return 0.0 if self.current or host_id not in {None, self._here} else self._heard_s

    def lines(self) -> list[str]:
        """What a person is told where it is not of now."""
        told = [
            visible_line(f"host {host.name} ({host.host_id}) {host.heard}: not known whether its processes run")
            for host in self.silent.values()
        ]
        if self.current:
            return told
        old = "no worker has run here" if self._heard_s is None else f"this is as it was {age(self._heard_s)} ago"
        return [f"no worker of this host is alive: {old}; `shellback worker` finds out what has become of it", *told]
