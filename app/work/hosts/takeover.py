"""Takeover: gives turns that no worker executes any more to a living worker of their host, which replays them.

It also rings for items that wait, because a ring may be lost. One statement finds out whether there is anything to do.

First our own: an outage of the database can end a turn in DBOS's memory but not in its table. Then, on Postgres, those
of other workers that are dead (their process is gone, or the lock of their name is free) or whose lease has ended: they
hang, are paused or cut off. If such a worker comes back, its epoch is old, and it cannot write.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.db import Database, after_commit
from shellback.storage.tables import turns, workers
from shellback.work.hosts import roster
from shellback.work.hosts.roster import LEASE_S, TAKEN_OVER, Employed, Ended
from shellback.work.queue import stream
from shellback.work.queue.dbos_private import open_items
from shellback.work.queue.queues import queues_of

if TYPE_CHECKING:
    from dbos import DBOSClient, WorkflowStatus

log = logging.getLogger(__name__)

GRACE_S: Final = 5.0
"""A restarted worker resumes its own turns if it is back within this time."""
WATCHED_S: Final = 6.0
"""A silence is watched for this long, more than between two heartbeats: after an outage of the database all workers are
silent, and the first one that is back must not judge the others."""
BETWEEN_S: Final = 12.0
"""With more than this between two looks, ours was paused or cut off, and the watch begins again."""


@dataclass(eq=False, repr=False)
class Takeover:
    """The takeover by the worker `me` (executor id, version); `running` has the items that it executes now."""

    database: Database
    client: DBOSClient
    host_id: str
    me: tuple[str, str]
    running: Collection[str]
    ring: Callable[[str, str], None]
    """Tells workers of a host that an item is on a queue."""
    ended: Ended
    open_items: Callable[[sa.Connection, Sequence[str]], Collection[tuple[str, str]]] = open_items
    watched_s: float = WATCHED_S
    _since: dict[tuple[str, float], float] = field(init=False, default_factory=dict[tuple[str, float], float])
    """When each heartbeat was seen first, by executor id and its time."""
    _looked: float = field(init=False, default=-math.inf)
    _idle_before: set[str] = field(init=False, default_factory=set[str])

    async def open_of(self, host_ids: Iterable[str]) -> Collection[tuple[str, str]]:
        """The queues of these hosts that have items, each with the status of items there."""
        queues = [queue for host_id in host_ids for queue in queues_of(host_id)]
        return await self.database.read(self.open_items, queues) if queues else ()

    async def once(self, there: Collection[tuple[str, str]] | None = None) -> None:
        """Put the turns of dead workers back on the queue, each worker's in one transaction.

        Turns that no living worker can replay are left to the sweep. A cancellation may come between two workers.
        `there` is what `open_of` hosts has found, this one among them.
        """
        found = await self.open_of([self.host_id]) if there is None else there
        found = [(queue, status) for queue, status in found if queue in queues_of(self.host_id)]
        statuses = {status for _, status in found}
        for queue in [queue for queue, status in found if status == "ENQUEUED"]:
            await asyncio.to_thread(self.ring, self.host_id, queue)
        if "PENDING" in statuses:
            await self.hand_on()
        if self.database.dialect == "sqlite" or not statuses:
            return
        pending = await asyncio.to_thread(self._pending)
        known = await self.database.read(self._known, _executors(pending) | {self.me[0]})
        me = known.get(self.me[0])
        if me is None or me.state != "alive":
            self._since.clear()
            return  # one that was paused or cut off judges nobody
        self._watch(known)
        for executor_id in {item.executor_id for item in pending if self._orphaned(item, known)}:
            why, taken = await self.database.write(self._take, executor_id)
            if taken:
                log.warning("%s: %d turns taken over: %s", why, len(taken), ", ".join(taken))

    async def hand_on(self) -> None:
        """Put our own turns that nobody executes back on the queue; other workers are left alone."""
        pending = await asyncio.to_thread(self._pending, self.me[0])
        idle = [item for item in pending if item.app_version == self.me[1] and item.workflow_id not in self.running]
        # A turn must be idle in two looks: in one, DBOS may not have recorded its begin or end yet.
        dropped = [item for item in idle if item.workflow_id in self._idle_before]
        self._idle_before = {item.workflow_id for item in idle if item not in dropped}
        for item in dropped:
            log.warning("turn %s was no longer executed and is resumed", item.workflow_id)
            await asyncio.to_thread(self.client.resume_workflows, [item.workflow_id], queue_name=item.queue_name)
            await asyncio.to_thread(self.ring, self.host_id, str(item.queue_name))

    def _pending(self, executor_id: str | None = None) -> list[WorkflowStatus]:
        return self.client.list_workflows(
            status="PENDING",
            queue_name=queues_of(self.host_id),
            executor_id=executor_id,
            load_input=False,
            load_output=False,
        )

    def _orphaned(self, item: WorkflowStatus, known: Mapping[str, Employed]) -> str | None:
        """Why no worker executes this item any more; None if one does, or may soon."""
        worker = known.get(item.executor_id or "")
        if worker is None:
            return f"worker {item.executor_id} is not known any more"
        if worker.state == "alive":
            if item.app_version == worker.version:
                return None
            return f"worker {worker.executor_id} is of another version now"
        if worker.state == "silent":
            seen = self._since.get((worker.executor_id, worker.heartbeat_at))
            if worker.quiet_s <= LEASE_S or seen is None or time.monotonic() - seen < self.watched_s:
                return None
        elif worker.quiet_s <= GRACE_S:
            return None
        return f"worker {worker.executor_id} is {worker.state} (last heard of {worker.quiet_s:.0f} s ago)"

    def _watch(self, known: Mapping[str, Employed]) -> None:
        now = time.monotonic()
        if now - self._looked > BETWEEN_S:
            self._since.clear()
        self._looked = now
        beats = [(one.executor_id, one.heartbeat_at) for one in known.values()]
        self._since = {beat: self._since.get(beat, now) for beat in beats}

    def _known(self, conn: sa.Connection, names: Collection[str] | None = None) -> dict[str, Employed]:
        # Those that are judged by name: one that is not among the last ones heard of may be alive.
        found = roster.look(conn, self.host_id, everywhere=False, names=names, ended=self.ended)
        return {worker.executor_id: worker for worker in found}

    def _take(self, conn: sa.Connection, executor_id: str | None) -> tuple[str, list[str]]:
        """Put the orphaned turns of a worker back on their queues; returns the reason and their items."""
        # This lock keeps out other takeovers, and the worker itself, which writes this row when it beats or restarts.
        rows.lock_row(conn, workers, executor_id)
        pending = self._pending(executor_id)
        known = self._known(conn, _executors(pending))
        living = [
            worker for worker in self._known(conn).values() if worker.state == "alive" and self.host_id in worker.serves
        ]
        versions = {worker.version for worker in living} | {self.me[1]}
        why, by_queue = "", dict[str, list[str]]()
        for item in pending:
            reason = self._orphaned(item, known)
            if reason is not None and item.app_version in versions:
                why = reason
                by_queue.setdefault(str(item.queue_name), []).append(item.workflow_id)
        for queue, items in by_queue.items():
            self.client.resume_workflows(items, queue_name=queue)
            after_commit(conn, self.ring, self.host_id, queue)
        taken = [item for items in by_queue.values() for item in items]
        _note(conn, taken, executor_id, f"{why}: another worker continues this turn.")
        return why, taken


def _executors(items: Sequence[WorkflowStatus]) -> set[str]:
    return {item.executor_id for item in items if item.executor_id}


def _note(conn: sa.Connection, items: Sequence[str], executor_id: str | None, text: str) -> None:
    query = sa.select(turns.c.id, turns.c.conversation_id).where(turns.c.id.in_(items))
    for turn in conn.execute(query).all():
        stream.note(conn, turn.conversation_id, turn.id, 0, TAKEN_OVER, {"text": text, "of": executor_id})
