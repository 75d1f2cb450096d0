"""What is old goes, in one order that may be cut off anywhere and begun again.

For every conversation: heard messages, settled approvals, tool calls' keys and sent notices; turns with what
DBOS keeps of them; what is on disk of a session, then its record; the turn of its callback, whose workflow id is what
kept its end from being told twice; containers that nothing uses; at last the conversation with its history. Each step
looks itself for what the step before it has left, so a crash between two of them costs nothing but time.
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
from shellback.work.hosts.clock import Clock, since_boot
from shellback.work.hosts.sweep import WAITING, listed

if TYPE_CHECKING:
    from dbos import DBOSClient

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.02
"""Between two batches, so that whoever writes meanwhile never waits for more than one."""
DAY_S: Final = 86400.0
LEAP_S: Final = 3600.0
"""A clock that is set by more than this between two rounds is not believed for a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long things are kept, in seconds; `conversations` 0 keeps idle ones for ever."""

    rows: float
    logs: float
    conversations: float


@dataclass(eq=False, repr=False)
class Retention:
    """Prunes one host's conversations. A session is kept as long as its log.

    `remove` removes what is on disk of a session, and is False when something has to stay; it blocks. `teardown` takes
    a container of this host away, by its name; `expire` ends what still runs of conversations that go.
    """

    database: Database
    client: DBOSClient
    remove: Callable[[str], bool]
    host_id: str
    ages: Ages
    teardown: Callable[[str], Awaitable[object]] | None = None
    expire: Callable[[Sequence[str]], Awaitable[object]] | None = None
    _clock: Clock = field(init=False, default_factory=lambda: Clock(LEAP_S))
    _steady_at: float = field(init=False, default=0.0)

    async def once(self) -> dict[str, int]:
        """Prune everything that is old enough now; returns how many of each went. Cancelling leaves the rest."""
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
        if any(gone.values()):
            log.info("pruned %s", ", ".join(f"{number} {name}" for name, number in gone.items() if number))
        return gone

    async def planned(self) -> dict[str, int]:
        """How many of each would go; changes nothing. Items that DBOS still runs are counted, and would stay."""
        cut = self._cut()
        queries = rows.plain(cut)
        queries["turns"] = rows.turns_to_go(cut, callbacks=False, planned=True)
        queries["sessions"] = rows.sessions_to_go(cut, planned=True)
        queries["containers"] = rows.workspaces_to_go(cut, planned=True)
        if cut.conversations is not None:
            queries["conversations"] = rows.conversations_to_go(cut, planned=True)
        found = {name: await self.database.read(rows.count, query) for name, query in queries.items()}
        found["turns"] += await self.database.read(rows.count, rows.turns_to_go(cut, callbacks=True, planned=True))
        return {"conversations": 0, **found}

    def _leapt(self) -> bool:
        """Whether the clock was set by much lately: by one that goes wrong everything may be old."""
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
            # Last: by this row the item is found again if we get no further.
            gone += await self.database.write(rows.delete_turns, over)
        return gone

    def _forget_items(self, ids: list[str]) -> list[str]:
        """Delete what DBOS has of those items that it does not run any more; returns them."""
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
                except ExecError as error:  # the others, and the conversations, need not wait for it
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
                    log.warning("conversations stay, what they have left cannot be ended: %s", error)
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
