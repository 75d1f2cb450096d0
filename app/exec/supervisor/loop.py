"""One epoll loop with timers, for a thread that must never block."""

from __future__ import annotations

import collections
import heapq
import itertools
import os
import select
import time
from collections.abc import Callable
from typing import Final

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT

_LONGEST_S: Final = 30.0
_FEW: Final = 256

Ready = Callable[[int], None]


def now() -> float:
    """Seconds since boot, time asleep included: the clock of deadlines and of process start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Timer:
    """A call that is due later."""

    __slots__ = ("_loop", "call")

    def __init__(self, call: Callable[[], None], loop: Loop) -> None:
        self.call: Callable[[], None] | None = call
        self._loop = loop

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._loop.cancelled += 1


class Loop:
    """Runs the callbacks of descriptors, timers and other threads, all on one thread.

    Methods of objects that use a loop are called on its thread, unless their docstring says otherwise.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self.cancelled = 0
        self._numbers = itertools.count()
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopped = False
        self.watch(self._bell, self._rung)

    def watch(self, fd: int, ready: Ready, events: int = IN) -> None:
        """Call `ready(events)` whenever `fd` has one of `events`, or was hung up."""
        self._epoll.register(fd, events)
        self._ready[fd] = ready

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`; call this before closing it."""
        if self._ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call once when `now()` has reached `when`."""
        timer = Timer(call, self)
        if self.cancelled > max(_FEW, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self.cancelled = 0
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self.at(now() + seconds, call)

    def post(self, call: Callable[[], None]) -> None:
        """Call this soon on the loop's thread. Other threads may use this method only."""
        self._posted.append(call)
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`. An exception in a callback ends the loop, because the state is then unknown."""
        poll = self._epoll.poll
        ready = self._ready
        while not self._stopped:
            for fd, events in poll(self._wait(), 128):
                call = ready.get(fd)
                # No callback runs after `stop`.
                if call is not None and not self._stopped:
                    call(events)

    def _wait(self) -> float:
        while self._timers:
            when, _, timer = self._timers[0]
            if timer.call is None:
                heapq.heappop(self._timers)
                self.cancelled -= 1
                continue
            left = when - now()
            if left > 0:
                # epoll does not count suspended time, and its timeout is limited to some weeks.
                return min(left, _LONGEST_S)
            heapq.heappop(self._timers)
            call, timer.call = timer.call, None
            call()
            if self._stopped:
                return 0
        return -1

    def _rung(self, _events: int) -> None:
        os.eventfd_read(self._bell)
        while self._posted:
            self._posted.popleft()()
