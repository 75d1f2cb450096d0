"""A log on disk that only grows at its end and loses only its middle, with a table of what it lost."""

from __future__ import annotations

import errno
import os
import time
from typing import Final

from app.exec.supervisor import layout, linux
from app.exec.supervisor.loop import now
from app.exec.supervisor.protocol import Message
from app.exec.supervisor.records import Records
from app.exec.supervisor.times import Times

WOULD_BLOCK: Final = -1
_CHUNK: Final = 1 << 18
_RETRY_S: Final = 0.5


class LogFile:
    """Takes bytes from a pipe at an offset of its own.

    `size` counts every byte that arrived, `dropped` those that are in a hole. A hole is written to
    the table before its bytes are given up, so that nobody has to guess from zeroes.
    """

    def __init__(self, records: Records, session_id: str, names: tuple[str, str], cap: int) -> None:
        self._records = records
        self._session_id = session_id
        self._name, self._table = names
        self._cap = cap
        self._slack = min(cap // 16, 4 << 20)
        self._splices = True
        self._punches = True
        self._dirty = 0
        self._retry_at = 0.0
        self._fd = os.open(
            f"{session_id}/{self._name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600,
            dir_fd=records.fd,
        )  # fmt: skip
        self.holes: list[tuple[int, int, int]] = []
        found = os.fstat(self._fd)
        self.size = found.st_size
        self.dropped = 0
        self.grown_at = now()
        """When something was printed last, or the log begun, on the clock of `now`."""
        self.times = Times(records.fd, f"{session_id}/{self._name}{layout.TIMES}", found.st_mtime)

    def resume(self) -> None:
        """Take up where an earlier process stopped."""
        self.holes = self._on_record()
        self.grown_at = now() - max(0.0, time.time() - os.fstat(self._fd).st_mtime)
        self.dropped = sum(end - start for start, end, _ in self.holes)
        self.size = max([self.size, *(end for _, end, _ in self.holes)])
        for start, end, _ in self.holes:
            self._punch(start, end)

    def _on_record(self) -> list[tuple[int, int, int]]:
        rows = self._records.read_list(self._session_id, self._table)
        # One damaged row is no reason to lose the process behind it, or to count what cannot be.
        holes = [_hole(row) for row in rows if all(_counts(row.get(name)) for name in ("start", "end", "newlines"))]
        return sorted(hole for hole in holes if hole[0] <= hole[1])

    def take(self, pipe: int, limit: int) -> int:
        """Move at most `limit` bytes out of `pipe`; 0 at its end, WOULD_BLOCK when it is empty."""
        if self._dirty or (self._cap and not self._punches and self.size - self.dropped >= self._cap):
            return self._take_or_drop(pipe, limit)
        if self._cap and self._punches:
            if self.size - self.dropped >= self._cap:
                self._trim()
            limit = min(limit, max(1, self._cap - (self.size - self.dropped)))
        try:
            moved = self._splice(pipe, limit) if self._splices else self._copy(pipe, limit)
        except BlockingIOError:
            return WOULD_BLOCK
        except OSError:
            return self._drop(pipe, limit)
        return moved

    def _splice(self, pipe: int, limit: int) -> int:
        try:
            moved = os.splice(pipe, self._fd, limit, offset_dst=self.size)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
            self._splices = False
            return self._copy(pipe, limit)
        self.size += moved
        return moved

    def _copy(self, pipe: int, limit: int) -> int:
        data = os.read(pipe, min(limit, 1 << 16))
        try:
            self._write(data)
        except OSError:
            self._lose(data)
            self._retry_at = time.monotonic() + _RETRY_S
        else:
            self.size += len(data)
        return len(data)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self.size + done)

    def _take_or_drop(self, pipe: int, limit: int) -> int:
        # Nothing may follow a hole that is not in the table yet.
        full = bool(self._cap) and not self._punches and self.size - self.dropped >= self._cap
        if not full and time.monotonic() >= self._retry_at and self.save():
            return self.take(pipe, limit)
        return self._drop(pipe, limit)

    def _drop(self, pipe: int, limit: int) -> int:
        try:
            data = os.read(pipe, min(limit, _CHUNK))
        except BlockingIOError:
            return WOULD_BLOCK
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_S
        if data:
            self._lose(data)
            if self._dirty >= self._slack and not self._punches:
                self.save()
        return len(data)

    def _lose(self, data: bytes) -> None:
        start, end, lines = self.size, self.size + len(data), data.count(b"\n")
        if self.holes and self.holes[-1][1] == start:
            first, _, before = self.holes.pop()
            start, lines = first, before + lines
        self.holes.append((start, end, lines))
        self._dirty += len(data)
        self.size = end
        self.dropped += len(data)

    def _take_over(self) -> None:
        """Know of it when the worker has emptied the log of an ended session, of which something still writes on."""
        start, after, newlines = next(iter(self._on_record()), (0, 0, 0))
        if start == 0 < after and not any(start == 0 and end >= after for start, end, _ in self.holes):
            later = [(max(start, after), end, lines) for start, end, lines in self.holes if end > after]
            self.holes = [(0, after, newlines), *later]
            self.dropped = sum(end - start for start, end, _ in self.holes)

    def _trim(self) -> None:
        self._take_over()
        if self.size - self.dropped < self._cap:
            return
        start, end = self._cap // 2, self.size - (self._cap // 2 - self._slack)
        lines, at = 0, start
        before: list[tuple[int, int, int]] = []
        after: list[tuple[int, int, int]] = []
        for hole in self.holes:
            if hole[1] < start:
                before.append(hole)
            elif hole[0] > end:
                after.append(hole)
            else:
                start = min(start, hole[0])
                lines += self._newlines(at, hole[0]) + hole[2]
                at = hole[1]
        end = max(end, at)
        lines += self._newlines(at, end)
        kept = self.holes, self.dropped
        self.holes = [*before, (start, end, lines), *after]
        self.dropped = sum(last - first for first, last, _ in self.holes)
        if not self.save():
            self.holes, self.dropped = kept
            self._punches = False
        elif not self._punch(start, end):
            # The bytes are still there, and said to be gone: right, only not smaller.
            self._punches = False

    def _newlines(self, start: int, end: int) -> int:
        lines = 0
        while start < end:
            data = os.pread(self._fd, min(_CHUNK, end - start), start)
            if not data:
                break
            lines += data.count(b"\n")
            start += len(data)
        return lines

    def _punch(self, start: int, end: int) -> bool:
        try:
            linux.punch_hole(self._fd, start, end - start)
        except OSError:
            return False
        return True

    def save(self) -> bool:
        """Write the table of holes; False when there is no room for it now."""
        self._take_over()
        rows = [{"start": start, "end": end, "newlines": lines} for start, end, lines in self.holes]
        try:
            self._records.write(self._session_id, self._table, rows)
            # A hole at the end is part of the size that the next process finds.
            os.ftruncate(self._fd, self.size)
        except OSError:
            self._retry_at = time.monotonic() + _RETRY_S
            return False
        self._dirty = 0
        return True

    def close(self) -> None:
        if self._dirty:
            self.save()
        os.close(self._fd)


def _hole(row: Message) -> tuple[int, int, int]:
    return row["start"], row["end"], row["newlines"]


def _counts(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 62
