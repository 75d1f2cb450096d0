"""The dispatch: takes items off the queues of a host as soon as there is an item and a free slot."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from shellback.work.queue.bells import Bell, Slots
from shellback.work.queue.dbos_private import take_items
from shellback.work.queue.queues import POLL_S

if TYPE_CHECKING:
    from dbos import DBOS, Queue

    from shellback.work.queue.doorbell import Doorbell


log = logging.getLogger(__name__)

STOPPED_S: Final = 10.0
AGAIN_S: Final = 5.0


class Dispatch:
    """One thread of DBOS per queue, each with a bell; `slots` has those for the turns of each queue.

    A thread of DBOS by itself takes items only at its poll, so four slots and a poll of 1 s are four turns a second.
    """

    def __init__(self, executor_id: str, doorbell: Doorbell, slots: Mapping[str, Slots]) -> None:
        self._executor_id = executor_id
        self._doorbell = doorbell
        self._slots = slots
        self._bells: dict[str, Bell] = {}
        self._threads: list[threading.Thread] = []
        self._takes_new = True

    def prepare(self) -> Mapping[str, Bell]:
        """The bells of its queues, which count their turns."""
        loop = asyncio.get_running_loop()
        for name, slots in self._slots.items():
            self._bells[name] = Bell(slots, loop, partial(self._doorbell.ring_another, name, self._executor_id))
        return self._bells

    async def start(self, dbos: DBOS) -> None:
        """Register the queues and take their items from now on; after the launch of `dbos`."""
        await self._doorbell.listen(self._executor_id, {name: bell.hear for name, bell in self._bells.items()})
        for name, bell in self._bells.items():
            queue = await asyncio.to_thread(self._registered, dbos, name)
            bell.ring()  # for items that came before it listened
            thread = threading.Thread(target=self._take, args=(dbos, queue), name=f"take {name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _registered(self, dbos: DBOS, name: str) -> Queue:
        return dbos.register_queue(
            name, worker_concurrency=self._slots[name].number, polling_interval_sec=POLL_S, on_conflict="always_update"
        )

    def _take(self, dbos: DBOS, queue: Queue) -> None:
        """Start the items of `queue` until its bell is stopped; DBOS also returns when the queue's row was deleted."""
        name = queue.name
        bell = self._bells[name]
        _polling.dispatch = self
        while not bell.is_set():
            try:
                take_items(bell, dbos, queue)
                if not bell.is_set():
                    queue = self._registered(dbos, name)
                    bell.ring()  # for items that came meanwhile
                    log.warning("queue %s was deleted; it is registered again", name)
            except Exception:
                log.exception("items of queue %s are not taken; the next try is in %.0f s", name, AGAIN_S)
                bell.wait(AGAIN_S)
        bell.rest()

    def take(self, *, new: bool) -> None:
        """Whether `new` items are for this worker: those without a version are not for one of an older version."""
        again, self._takes_new = new and not self._takes_new, new
        for bell in self._bells.values():
            bell.takes = new
            if again:
                bell.ring()  # for items that came meanwhile

    async def stop(self) -> None:
        """Take no more items; turns that run go on."""
        await self._doorbell.close()
        for name in self._bells:
            # It may have had a ring that it did not answer.
            self._doorbell.ring_another(name, self._executor_id)
        for bell in self._bells.values():
            bell.stop()
            bell.leave()
        while self._threads:
            # Not for ever: a thread may wait for a database that is away.
            await asyncio.to_thread(self._threads.pop().join, STOPPED_S)

    @staticmethod
    def polls_for_new() -> bool:
        """Whether items without a version are for this worker, on the queue that this thread polls."""
        return _polling.dispatch._takes_new  # noqa: SLF001 - its own


class _Polling(threading.local):
    """The dispatch whose queue this thread polls."""

    dispatch: Dispatch


_polling = _Polling()
