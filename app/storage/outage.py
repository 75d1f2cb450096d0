"""Outages of a database: who waits before a repeat is woken when the database answers again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Final

LEAST_S: Final = 1.0
"""Failures among commits are no outage: a repeat that may fail again would follow each commit."""


class Outage:
    """The time from a failed transaction to the next one that writes and is committed; any thread may tell of either.

    One that only reads ends no outage: reads succeed while a disk is full or another process holds the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: float | None = None
        self._ended = -math.inf
        self._waiting: set[Callable[[], object]] = set()

    def failed(self) -> None:
        """A transaction failed, because of the database."""
        with self._lock:
            self._began = self._began or time.monotonic()

    def committed(self) -> None:
        """A transaction that writes was committed."""
        if self._began is None:  # without the lock, because every transaction comes by
            return
        with self._lock:
            # Another thread may have been first.
            began, self._began = self._began or math.inf, None
            now = time.monotonic()
            if now - began < LEAST_S:
                return
            self._ended = now
            waiting, self._waiting = self._waiting, set()
        for wake in waiting:
            wake()

    async def pause(self, seconds: float, *, since: float) -> None:
        """Wait for the end of an outage, at most `seconds`; returns at once if one has ended `since` (monotonic)."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(over.set)

        with self._lock:
            if self._ended >= since:
                return
            self._waiting.add(wake)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await over.wait()
        finally:
            with self._lock:
                self._waiting.discard(wake)
