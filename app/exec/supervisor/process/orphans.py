"""Orphans that are commands of ours: their wait status is the loop's to take, after it has recorded it."""

from __future__ import annotations

import threading


class Orphans:
    """Shared by the first thread, which gets and reaps all orphans, and the loop's, which expects some of them."""

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._changed = threading.Condition()

    def expect(self, pid: int) -> None:
        """Leave this one to the loop, from before it is an orphan."""
        with self._changed:
            self._expected.add(pid)

    def reaped(self, pid: int) -> None:
        """Say that the loop has reaped it, or never will have it."""
        with self._changed:
            self._expected.discard(pid)
            self._changed.notify_all()

    def leave(self, pid: int) -> None:
        """Wait until the loop has taken the status of this one, if it is its to take."""
        with self._changed:
            self._changed.wait_for(lambda: pid not in self._expected)
