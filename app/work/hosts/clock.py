"""Finds leaps of this machine's clock by comparing it with the time since boot, which includes sleep."""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.tables import hosts

LEAP_S: Final = 2.0
_AT_ONCE_S: Final = 0.05


def since_boot() -> float:
    """Seconds since this machine was started, including sleep. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Tells how far wall time has leapt between two looks; up to `leap_s` is no leap."""

    def __init__(self, leap_s: float = LEAP_S) -> None:
        self._leap_s = leap_s
        self._offset = _offset()

    def leapt(self) -> float:
        """Seconds that wall time has leapt since the last look, negative for back; 0.0 for no leap."""
        before, self._offset = self._offset, _offset()
        by = self._offset - before
        return by if abs(by) > self._leap_s else 0.0


def _offset() -> float:
    while True:
        first = since_boot()
        wall = time.time()
        # A pause between the two readings would look like a leap.
        if since_boot() - first < _AT_ONCE_S:
            return wall - first


def note_leap(conn: sa.Connection, host_id: str, by: float) -> None:
    """Store the last leap of a host's clock for `shellback doctor`."""
    rows.change(conn, hosts, host_id, jumped_at=rows.now(conn), jumped_by=by)
