"""When output arrived: a small table beside a log, for `logs --since`.

Output is divided into stretches. A new one begins with output that arrives `_STRETCH_S` or more after the begin of the
last one. An entry has the time of the last output of the stretch before, and the offset of the new one: all output
before the offset is older than that time. Entries may be left out to keep the table small: reading then begins too
early, never too late.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import Final

from shellback.exec.wire import linux

ENTRIES: Final = 4096
_STRETCH_S: Final = 1.0
_ENTRY: Final = struct.Struct("<dq")


class Times:
    """Writes the table `name` below a directory's descriptor, as far as it can be written."""

    def __init__(self, directory: int, name: str, printed_at: float) -> None:
        self._directory = directory
        self._name = name
        self._printed_at = printed_at
        self._begun_at = 0.0

    def arrived(self, offset: int) -> None:
        """Note that output was stored at `offset` just now."""
        now = time.time()
        if not 0 <= now - self._begun_at < _STRETCH_S:
            self._begun_at = now
            if offset:
                self._enter(offset)
        # Never set back with the clock: output before an offset must not seem older than it is.
        self._printed_at = max(self._printed_at, now)

    def _enter(self, offset: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with contextlib.suppress(OSError), linux.opened(self._name, flags, dir_fd=self._directory) as fd:
            entries = os.fstat(fd).st_size // _ENTRY.size
            if entries >= ENTRIES:
                kept = _entries(fd)[1::2]
                entries = len(kept)
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"".join(_ENTRY.pack(*entry) for entry in kept), 0)
            # Overwrites the part of an entry that a full disk may have left.
            os.pwrite(fd, _ENTRY.pack(self._printed_at, offset), entries * _ENTRY.size)


def offset_since(path: str, moment: float) -> int:
    """The offset from which to read a log so that no output of `moment` or later is missed."""
    offset = 0
    with contextlib.suppress(FileNotFoundError), linux.opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
        for ended, begins in _entries(fd):
            if ended >= moment:
                break
            offset = begins
    return offset


def _entries(fd: int) -> list[tuple[float, int]]:
    data = os.pread(fd, ENTRIES * _ENTRY.size, 0)
    whole = len(data) - len(data) % _ENTRY.size
    return [(float(ended), int(offset)) for ended, offset in _ENTRY.iter_unpack(data[:whole])]
