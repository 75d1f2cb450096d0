"""When what was printed: a small table beside a log, for `logs --since`.

Output comes in stretches: one begins with a byte that arrives `_STRETCH_S` or more after the stretch before it
began. Each entry says when the stretch before it printed last, and the offset at which the new one begins, so
that everything before the offset is known to be older. Entries may be left out: what is read then begins
earlier than need be, never later. That is how the table stays small.
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
    """Writes the table `name`, below a directory's descriptor; a table that cannot be written is left alone."""

    def __init__(self, directory: int, name: str, printed_at: float) -> None:
        self._directory = directory
        self._name = name
        self._printed_at = printed_at
        self._begun_at = 0.0

    def arrived(self, offset: int) -> None:
        """Something has just been put at `offset`."""
        now = time.time()
        if not 0 <= now - self._begun_at < _STRETCH_S:
            self._begun_at = now
            if offset:
                self._enter(offset)
        # Never back with the clock: what was printed before an offset would seem older than it is.
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
            # Over what a full disk may have left of an entry.
            os.pwrite(fd, _ENTRY.pack(self._printed_at, offset), entries * _ENTRY.size)


def offset_since(path: str, moment: float) -> int:
    """Where to begin to read a log so as to miss nothing printed at `moment` or later."""
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
