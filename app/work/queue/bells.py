"""The bell of a queue: it has the queue polled when an item was enqueued or a slot became free."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

_SETTLE_S: Final = 1.0


class Slots:
    """The `number` of turns that run at once in this process, of whichever of the queues that share them.

    Queues poll one after the other, so that they do not fill the same slots: in the order in which they came, and a
    free slot is offered last to the queue that has filled one last, so that none waits for the backlog of another.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.running = 0
        self._bells = OrderedDict[Bell, None]()
        self._polling = deque[Bell]()
        """The first one polls, the others wait for it."""
        self._changed = threading.Condition()

    @property
    def free(self) -> bool:
        """Whether one more turn may begin."""
        return self.running < self.number

    def join(self, bell: Bell) -> None:
        """Let a queue fill slots."""
        self._bells[bell] = None

    def leave(self, bell: Bell) -> None:
        """Let it fill no more; its turns that run are counted on."""
        self._bells.pop(bell, None)

    def began(self, bell: Bell) -> None:
        """A turn of a queue has taken a slot."""
        self.running += 1
        with contextlib.suppress(KeyError):
            self._bells.move_to_end(bell)

    def ended(self) -> None:
        """A slot is free, for an item that may wait, of any of the queues."""
        self.running -= 1
        for bell in tuple(self._bells):
            bell.freed()

    def begin_poll(self, bell: Bell) -> None:
        """Return when no other queue polls, or this one is to stop; `end_poll` lets the next one poll."""
        with self._changed:
            self._polling.append(bell)
            self._changed.wait_for(lambda: self._polling[0] is bell or bell.is_set())

    def end_poll(self, bell: Bell) -> None:
        """Let other queues poll; repeating it changes nothing."""
        with self._changed, contextlib.suppress(ValueError):
            self._polling.remove(bell)
            self._changed.notify_all()

    def note_stop(self) -> None:
        """Have those that wait for their poll see that they are to stop."""
        with self._changed:
            self._changed.notify_all()


class Bell:
    """The stop event of one queue's thread, whose wait a ring ends; counts the queue's turns among `slots`.

    Turns begin on one event loop, `loop`; their ends and `ring` may come from any thread. `others` rings another one if
    there may be more items than slots were free.
    """

    def __init__(
        self, slots: Slots, loop: asyncio.AbstractEventLoop, others: Callable[[], None] = lambda: None
    ) -> None:
        self.slots = slots
        slots.join(self)
        self._loop = loop
        self._others = others
        self._rung = threading.Event()
        self._stopped = False
        self._before = 0
        """Turns that ran when the last poll began."""
        self._begun = 0
        """Turns that began since."""
        self._items_wait = False
        """Whether the last poll had too few slots for all items, as far as is known."""
        self.takes = True
        """Whether a poll can get new items; those without a version are not for workers of an older one."""
        self._rings = self._polled = self._told = 0
        """Rings of others: all; those before the last poll began; those that others know of, if need be."""

    def ring(self) -> None:
        """Have the queue polled now, or once more if it is being polled."""
        self._rung.set()

    def hear(self) -> bool:
        """`ring` for somebody else, if a slot is free; else as soon as one is. Whether it is of use here now."""
        self._rings += 1
        free = self.takes and self.slots.free
        if free:
            self._rung.set()
        return free

    def stop(self) -> None:
        """End the thread after its current poll."""
        self._stopped = True
        self._rung.set()
        self.slots.note_stop()

    def is_set(self) -> bool:
        """Whether the thread is to end; as of a `threading.Event`."""
        return self._stopped

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a ring, a stop, or the end of `timeout`; True means stop. As of a `threading.Event`."""
        if self._stopped:
            return True
        self._settle()
        self.rest()
        # In this order: a turn that ends meanwhile either rings or is seen here.
        self._items_wait = self._begun >= self.slots.number - self._before or not self.slots.free
        if self._items_wait and self._polled > self._told:
            self._others()
        self._told = self._polled
        if not self._items_wait or not self.slots.free:
            self._rung.wait(timeout)
        self.slots.begin_poll(self)
        self._rung.clear()
        self._polled = self._rings
        self._before, self._begun = self.slots.running, 0
        return self._stopped

    def rest(self) -> None:
        """Its thread does not poll now, so that other queues may fill slots; repeating it changes nothing."""
        self.slots.end_poll(self)

    def began(self) -> None:
        """A turn has taken a slot."""
        self.slots.began(self)
        self._begun += 1

    def ended(self) -> None:
        """A slot is free, for an item that may wait, of any of the queues."""
        self.slots.ended()

    def freed(self) -> None:
        """Have the queue polled if an item of it may wait."""
        if self._items_wait or self._rings > self._polled:
            self.ring()

    def leave(self) -> None:
        """Share no slots any more; turns that run are counted on."""
        self.slots.leave(self)

    def _settle(self) -> None:
        # DBOS counts a turn when its task begins. A poll before that would take too many items.
        with contextlib.suppress(RuntimeError, TimeoutError):
            asyncio.run_coroutine_threadsafe(_three_rounds(), self._loop).result(_SETTLE_S)


async def _three_rounds() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
