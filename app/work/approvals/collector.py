"""The collector: it makes rows of what the proxies of this host have recorded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy import exc

from shellback.exec.reports.connections import Connection, Kept, kept, leave
from shellback.exec.wire import layout
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.ring import Ring
from shellback.storage.db import Database
from shellback.work.approvals import connected
from shellback.work.queue.doorbell import Doorbell

log = logging.getLogger(__name__)

AT_ONCE: Final = 200
AGAIN_S: Final = 5.0
OF_A_ROW: Final = (exc.DataError, exc.IntegrityError, ValueError, OverflowError)
"""The database refuses this row, and will always; other errors are about the database, or of ours."""
KEPT: Final = 64
"""Records that are set aside; older ones are removed."""
TOLD: Final = 1000
"""So many limits of conversations are warned of once by a process, before it may repeat itself."""


@dataclass(eq=False, repr=False, kw_only=True)
class Collector:
    """While it is started, each record of a connection that has ended becomes a row, and is then removed.

    One whose row the database refuses is set aside when it was refused alone, and the others go on.
    Several of one host do no harm: a row is added once. What is left when a process ends is for the next one.
    """

    home: Path
    database: Database
    doorbell: Doorbell
    _rung: Ring = field(init=False, default_factory=Ring)
    _stuck: dict[Path, OSError] = field(init=False, default_factory=dict[Path, OSError])
    """The records of this round that could not be set aside."""
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
            self._stuck.clear()
            try:
                while found := await asyncio.to_thread(self._found):
                    noted = await self._noted(found)
                    reach("network.noted")
                    self._tell(noted)
                    await asyncio.to_thread(_remove, noted)
                await asyncio.to_thread(self._leave)
            except Exception as error:  # noqa: BLE001 - the records stay
                log.warning("connections are no rows of the audit yet; it is tried again in %.0f s: %s", AGAIN_S, error)
                await asyncio.sleep(AGAIN_S)
            else:
                await rung.wait()

    async def _noted(self, found: list[Kept]) -> list[Kept]:
        """Add the rows of these; returns all but those that were set aside. Raises what the database does."""
        try:
            await self.database.write(connected.note, _ended(found))
        except OF_A_ROW as error:
            if len(found) > 1:
                middle = len(found) // 2
                return [*await self._noted(found[:middle]), *await self._noted(found[middle:])]
            try:
                aside = await asyncio.to_thread(_set_aside, found[0].path, self.home / layout.ASIDE)
            except OSError as failure:
                self._stuck[found[0].path] = failure
            else:
                log.warning("a connection is no row of the audit, and its record is set aside as %s: %s", aside, error)
            return []
        return found

    def _tell(self, found: list[Kept]) -> None:
        cut = {(one.connection.scope, one.connection.limit) for one in found if one.connection and one.connection.limit}
        for scope, limit in sorted(cut - self._told):
            log.warning(
                "%s has cut connections of conversation %s: see shellback network, and raise it if they were needed",
                limit,
                scope,
            )
        self._told = (self._told if len(self._told) < TOLD else set()) | cut

    def _leave(self) -> None:
        leave(self.home)
        for failure in self._stuck.values():
            raise failure

    def _found(self) -> list[Kept]:
        return [*islice((one for one in kept(self.home) if _over(one) and one.path not in self._stuck), AT_ONCE)]


def _over(one: Kept) -> bool:
    return one.connection is None or one.connection.seconds is not None


def _ended(found: list[Kept]) -> list[Connection]:
    return sorted((one.connection for one in found if one.connection), key=lambda one: one.at)


def _set_aside(path: Path, place: Path) -> Path:
    place.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another collector may do the same
        for former in sorted(place.iterdir(), key=lambda one: one.stat().st_mtime_ns)[: -KEPT + 1]:
            former.unlink()
        path.rename(place / path.name)
        # The files are sorted by when they were set aside.
        os.utime(place / path.name, ns=(now := time.time_ns(), now))
    return place / path.name


def _remove(found: list[Kept]) -> None:
    for one in found:
        one.path.unlink(missing_ok=True)
