"""The collector: it makes rows of what the proxies of this host have recorded."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from shellback.exec.reports.connections import Kept, kept, leave
from shellback.exec.wire import layout
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.ring import Ring
from shellback.storage.db import Database
from shellback.work.approvals import connected
from shellback.work.queue.doorbell import Doorbell

log = logging.getLogger(__name__)

AT_ONCE: Final = 200
AGAIN_S: Final = 5.0
TOLD: Final = 1000
"""So many limits of conversations are warned of once by a process, before it may repeat itself."""


@dataclass(eq=False, repr=False, kw_only=True)
class Collector:
    """While it is started, each record of a connection that has ended becomes a row, and is then removed.

    Several of one host do no harm: a row is added once. What is left when a process ends is for the next one.
    """

    home: Path
    database: Database
    doorbell: Doorbell
    _rung: Ring = field(init=False, default_factory=Ring)
    _told: set[tuple[str, str]] = field(init=False, default_factory=set[tuple[str, str]])
    _task: asyncio.Task[None] | None = field(init=False, default=None)

    async def start(self) -> None:
        """Collect what there is, and again whenever a proxy rings."""
        await self.doorbell.read(f"collector {uuid.uuid4().hex}", self._rung.ring, layout.NETWORK)
        self._task = asyncio.get_running_loop().create_task(self._collect())

    async def stop(self) -> None:
        """Leave the rest."""
        await self.doorbell.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self) -> None:
        while True:
            rung = self._rung.next
            try:
                while found := await asyncio.to_thread(self._found):
                    ended = [one.connection for one in found if one.connection]
                    await self.database.write(connected.note, sorted(ended, key=lambda one: one.at))
                    reach("network.noted")
                    self._tell(found)
                    await asyncio.to_thread(_remove, found)
                await asyncio.to_thread(leave, self.home)
            except Exception as error:  # noqa: BLE001 - the records stay
                log.warning("connections are no rows of the audit yet; it is tried again in %.0f s: %s", AGAIN_S, error)
                await asyncio.sleep(AGAIN_S)
            else:
                await rung.wait()

    def _tell(self, found: list[Kept]) -> None:
        cut = {(one.connection.scope, one.connection.limit) for one in found if one.connection and one.connection.limit}
        for scope, limit in sorted(cut - self._told):
            log.warning(
                "%s has cut connections of conversation %s: see shellback network, and raise it if they were needed",
                limit,
                scope,
            )
        self._told = (self._told if len(self._told) < TOLD else set()) | cut

    def _found(self) -> list[Kept]:
        return [*islice((one for one in kept(self.home) if _over(one)), AT_ONCE)]


def _over(one: Kept) -> bool:
    return one.connection is None or one.connection.seconds is not None


def _remove(found: list[Kept]) -> None:
    for one in found:
        one.path.unlink(missing_ok=True)
