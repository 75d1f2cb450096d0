"""When output arrived, and how large its terminal was then: small tables beside a log.

Output is divided into stretches. A new one begins with output that arrives `_STRETCH_S` or more after the begin of the
last one. An entry has the time of the last output of the stretch before, and the offset of the new one: all output
before the offset is older than that time. Entries may be left out to keep the table small: reading then begins too
early, never too late.

An entry of the other table has the time of a change of the size, the offset of the output after it, rows and columns.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import Any, Final, NamedTuple

from shellback.exec.wire import linux
from shellback.exec.wire.layout import SIZES

ENTRIES: Final = 4096
_STRETCH_S: Final = 1.0
_ENTRY: Final = struct.Struct("<dq")
_SIZE: Final = struct.Struct("<dqHH")


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
                _enter(self._directory, self._name, _ENTRY, (self._printed_at, offset), kept=slice(1, None, 2))
        # Never set back with the clock: output before an offset must not seem older than it is.
        self._printed_at = max(self._printed_at, now)

    def resized(self, offset: int, rows: int, cols: int) -> None:
        """Note that the terminal has this size from now on, and from `offset` of its output on."""
        # The first size stays, because the output begins in it.
        _enter(self._directory, self._name + SIZES, _SIZE, (time.time(), offset, rows, cols), kept=slice(0, None, 2))


class Size(NamedTuple):
    """A size of a terminal, and when it began."""

    at: float
    offset: int
    rows: int
    cols: int


class Stretch(NamedTuple):
    """Output up to the offset `end`, the last of which arrived at the time `at`."""

    at: float
    end: int


def stretches(path: str) -> list[Stretch]:
    """The stretches of a log but the last one, from its table at `path`."""
    return [Stretch(*entry) for entry in _table(path, _ENTRY)]


def sizes(path: str) -> list[Size]:
    """The sizes that the terminal of a log had, by its table of times at `path`; none of an earlier version."""
    return [Size(*entry) for entry in _table(path + SIZES, _SIZE)]


def offset_since(path: str, moment: float) -> int:
    """The offset from which to read a log so that no output of `moment` or later is missed."""
    offset = 0
    for ended, begins in stretches(path):
        if ended >= moment:
            break
        offset = begins
    return offset


def _enter(directory: int, name: str, entry: struct.Struct, values: tuple[float, ...], *, kept: slice) -> None:
    """Add an entry to a table; of a full one only `kept` stays."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with contextlib.suppress(OSError), linux.opened(name, flags, dir_fd=directory) as fd:
        entries = os.fstat(fd).st_size // entry.size
        if entries >= ENTRIES:
            left = _entries(fd, entry)[kept]
            entries = len(left)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"".join(entry.pack(*one) for one in left), 0)
        # Overwrites the part of an entry that a full disk may have left.
        os.pwrite(fd, entry.pack(*values), entries * entry.size)


def _table(path: str, entry: struct.Struct) -> list[tuple[Any, ...]]:
    with contextlib.suppress(FileNotFoundError), linux.opened(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
        return _entries(fd, entry)
    return []


def _entries(fd: int, entry: struct.Struct) -> list[tuple[Any, ...]]:
    data = os.pread(fd, ENTRIES * entry.size, 0)
    return [*entry.iter_unpack(data[: len(data) - len(data) % entry.size])]
