"""Looks after the other hosts of the database: when the lease of one has ended, what it left is settled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shellback.storage.db import Database
from shellback.work.hosts import adopting, hosts
from shellback.work.hosts.adopting import Here, Moved
from shellback.work.hosts.hosts import Host
from shellback.work.hosts.sweep import WAITING

if TYPE_CHECKING:
    from dbos import DBOSClient

log = logging.getLogger(__name__)

WATCHED_S: Final = 15.0
"""So long we look at a silence ourselves: after an outage of the database each host has yet to beat again."""
SETTLED_S: Final = 60.0
"""How often we look for news of a host of which everything is settled: some never return, and each look costs."""


@dataclass(eq=False)
class Neighbours:
    """Settles what silent hosts left, a conversation at a time; `once` is a part of the sweep.

    With `shared` their conversations go on here. Else the ends of their processes are told, and the
    conversations wait for their host, or for somebody who adopts them.
    """

    database: Database
    client: DBOSClient
    here: Here
    shared: bool
    watched_s: float = WATCHED_S
    _due: dict[str, float] = field(init=False, default_factory=dict[str, float])

    async def once(self) -> None:
        """Settle what silent hosts left. Cancelling leaves the rest to the next sweep, of whichever host."""
        found = await self.database.read(hosts.others, self.here.host_id, self.here.lease_s)
        now = time.monotonic()
        self._due = {host.silence: self._due.get(host.silence, now + self.watched_s) for host in found}
        for host in found:
            if now >= self._due[host.silence] and not await self._settle(host):
                self._due[host.silence] = now + SETTLED_S

    async def _settle(self, host: Host) -> bool:
        """Settle what one left; whether there is, or was, anything to settle."""
        lost = moved = told = 0
        while self.shared and (names := await self.database.read(adopting.living_there, host.host_id)):
            for name in names:
                came = await self.database.write(adopting.move, self.here, host.host_id, name)
                if came is None:
                    return True
                moved, lost = moved + 1, lost + came.lost
                await asyncio.to_thread(cancel, self.client, came.items)
        while names := await self.database.read(adopting.in_need, host):
            for name in names:
                number = await self.database.write(adopting.give_up, self.here, host.host_id, name)
                if number is None:
                    return True
                told, lost = told + 1, lost + number
        if moved or told:
            log.warning(
                "host %s %s: %d process(es) given up as lost (host_unreachable), %d conversation(s) continued here, "
                "%d told that they wait",
                *(host.name, host.heard, lost, moved, told),
            )
        return bool(moved or told)

    def adopt(self, host_id: str, conversation_id: str, *, force: bool = False) -> Moved | None:
        """Let a conversation of that host go on here; None where it lives elsewhere, or the lease runs. Blocks."""
        moved = self.database.write_now(adopting.move, self.here, host_id, conversation_id, wait=True, force=force)
        if moved is not None:
            cancel(self.client, moved.items)
        return moved


def cancel(client: DBOSClient, items: Sequence[str]) -> None:
    """Take items off the queues of a host that is gone; what cannot be taken is left alone by whoever finds it."""
    with contextlib.suppress(Exception):
        found = client.list_workflows(workflow_ids=list(items), load_input=False, load_output=False) if items else []
        for entry in found:
            if entry.status in WAITING:
                client.cancel_workflow(entry.workflow_id)
