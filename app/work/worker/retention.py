"""Prunes old rows and files in one order; it may be interrupted anywhere and run again.

The order: heard messages, settled approvals, call keys and sent notices; turns with their DBOS workflows; files of a
session, then its row; the turn of its callback, whose workflow id kept the end from being told twice; unused
containers; the conversation with its history; at last its own directory. Each step queries what is left, so a crash
loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from shellback.exec.core.errors import ExecError
from shellback.exec.wire.crashpoints import reach
from shellback.storage import retention as rows
from shellback.storage.db import Database
from shellback.storage.retention import Cut
from shellback.storage.rows import count
from shellback.work.hosts.clock import Clock, since_boot
from shellback.work.hosts.sweep import WAITING, listed

if TYPE_CHECKING:
    from dbos import DBOSClient

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.02
"""The pause between two batches, so that other writers wait for at most one."""
DAY_S: Final = 86400.0
LEAP_S: Final = 3600.0
"""After a larger leap of the clock nothing is pruned for a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long data is kept, in seconds; `conversations` 0 keeps idle ones forever."""

    rows: float
    logs: float
    conversations: float


@dataclass(eq=False, repr=False)
class Retention:
    """Prunes one host's conversations. A session is kept as long as its log.

    `remove` deletes the files of a session and returns False if some must stay; it blocks. `teardown` removes a
    container of this host by name; `expire` ends live sessions of conversations that are pruned. `tidy` removes
    directories whose conversation is gone, and returns how many.
    """

    database: Database
    client: DBOSClient
    remove: Callable[[str], bool]
    host_id: str
    ages: Ages
    teardown: Callable[[str], Awaitable[object]] | None = None
    expire: Callable[[Sequence[str]], Awaitable[object]] | None = None
    tidy: Callable[[], Awaitable[int]] | None = None
    _clock: Clock = field(init=False, default_factory=lambda: Clock(LEAP_S))
    _steady_at: float = field(init=False, default=0.0)

    async def once(self) -> dict[str, int]:
        """Prune everything that is old enough; returns how many of each. A cancellation leaves the rest."""
        if self._leapt():
            return {}
        cut = self._cut()
        gone = {table: await self._plain(table, cut) for table in rows.plain(cut)}
        reach("retention.rows")
        gone["turns"] = await self._turns(cut, callbacks=False)
        reach("retention.turns")
        gone["sessions"] = await self._sessions(cut)
        reach("retention.sessions")
        gone["turns"] += await self._turns(cut, callbacks=True)
        reach("retention.callbacks")
        gone["containers"] = await self._containers(cut)
        gone["conversations"] = await self._conversations(cut)
        reach("retention.conversations")
        if self.tidy is not None:
            gone["directories"] = await self.tidy()
        if any(gone.values()):
            log.info("pruned %s", ", ".join(f"{number} {name}" for name, number in gone.items() if number))
        return gone

    async def planned(self) -> dict[str, int]:
        """How many of each would be pruned; changes nothing. Counts items that DBOS still runs, which would stay."""
        cut = self._cut()
        queries = rows.plain(cut)
        queries["turns"] = rows.turns_to_go(cut, callbacks=False, planned=True)
        queries["sessions"] = rows.sessions_to_go(cut, planned=True)
        queries["containers"] = rows.workspaces_to_go(cut, planned=True)
        if cut.conversations is not None:
            queries["conversations"] = rows.conversations_to_go(cut, planned=True)
        queries["callbacks"] = rows.turns_to_go(cut, callbacks=True, planned=True)
        found = {name: await self.database.read(count, query.subquery()) for name, query in queries.items()}
        found["turns"] += found.pop("callbacks")
        return {"conversations": 0, **found}

    def _leapt(self) -> bool:
        """Whether the clock was set lately: with a wrong clock everything may look old."""
        if leap := self._clock.leapt():
            self._steady_at = since_boot() + DAY_S
            log.warning("the clock was set by %.0f s: nothing is pruned for a day", leap)
        return since_boot() < self._steady_at

    def _cut(self) -> Cut:
        now, ages = time.time(), self.ages
        return Cut(
            host_id=self.host_id,
            rows=now - ages.rows,
            sessions=now - max(ages.rows, ages.logs),
            conversations=now - max(ages.conversations, ages.rows) if ages.conversations else None,
        )

    async def _plain(self, table: str, cut: Cut) -> int:
        gone = 0
        while number := await self.database.write(rows.delete_some, table, cut):
            gone += number
            if number < rows.BATCH:
                break
            await asyncio.sleep(PAUSE_S)
        return gone

    async def _turns(self, cut: Cut, *, callbacks: bool) -> int:
        gone = 0
        async for ids in self._pages(rows.turns_to_go(cut, callbacks=callbacks)):
            over = await asyncio.to_thread(self._forget_items, ids)
            reach("retention.workflows")
            # Last: after a crash the item is found again by this row.
            gone += await self.database.write(rows.delete_turns, over)
        return gone

    def _forget_items(self, ids: list[str]) -> list[str]:
        """Delete the workflows of items that DBOS does not run any more; returns these items."""
        running = {entry.workflow_id for entry in listed(self.client, ids) if entry.status in WAITING}
        over = [item for item in ids if item not in running]
        if over:
            self.client.delete_workflows(over)
        return over

    async def _sessions(self, cut: Cut) -> int:
        gone = 0
        async for ids in self._pages(rows.sessions_to_go(cut)):
            empty = await asyncio.to_thread(self._removed, ids)
            reach("retention.removed")
            gone += await self.database.write(rows.delete_sessions, cut, empty)
        return gone

    def _removed(self, ids: list[str]) -> list[str]:
        return [one for one in ids if self.remove(one)]

    async def _containers(self, cut: Cut) -> int:
        gone = 0
        if self.teardown is None:
            return gone
        async for names in self._pages(rows.workspaces_to_go(cut)):
            for name in names:
                try:
                    await self.teardown(name)
                except ExecError as error:  # the other containers and the conversations are still pruned
                    log.warning("container %s stays: %s", name, error)
                else:
                    gone += 1
        return gone

    async def _conversations(self, cut: Cut) -> int:
        gone = 0
        while cut.conversations is not None:
            if self.expire is not None and (
                ids := await self.database.read(rows.page, rows.conversations_to_go(cut), "")
            ):
                try:
                    await self.expire(ids)
                except ExecError as error:
                    log.warning("conversations are not pruned, because their processes cannot be ended: %s", error)
                    break
            if not (number := await self.database.write(rows.delete_conversations, cut)):
                break
            gone += number
            await asyncio.sleep(PAUSE_S)
        return gone

    async def _pages(self, query: sa.Select[Any]) -> AsyncGenerator[list[str]]:
        after = ""
        while ids := await self.database.read(rows.page, query, after):
            yield ids
            after = ids[-1]
            await asyncio.sleep(PAUSE_S)
