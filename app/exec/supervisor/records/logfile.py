"""A log on disk that grows at its end and drops output in its middle only, with a table of its holes."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import now
from shellback.exec.supervisor.records.records import Records
from shellback.exec.supervisor.records.times import Times
from shellback.exec.wire import gaps, layout, linux
from shellback.exec.wire.gaps import Hole

WOULD_BLOCK: Final = -1
_CHUNK: Final = 1 << 18
_RETRY_S: Final = 0.5


class LogFile:
    """Moves bytes from a pipe to the end of the log.

    `size` counts all bytes that arrived, `dropped` those in holes. A hole is recorded before its bytes are dropped: in
    the table, or in a symlink beside it if the disk has no room.
    """

    def __init__(self, records: Records, session_id: str, names: tuple[str, str], cap: int) -> None:
        self._records = records
        self._session_id = session_id
        self._name, self._table = names
        self._cap = cap
        self._slack = min(cap // 16, 4 << 20)
        self._path = f"{session_id}/{self._table}"
        self._splices = True
        self._punches = True
        self._unsaved = False
        self._retry_at = 0.0
        self._fd = os.open(
            f"{session_id}/{self._name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600,
            dir_fd=records.fd,
        )  # fmt: skip
        self.holes: list[Hole] = []
        self.losing: Callable[[int], None] = lambda _number: None
        """Called with the errno when output is dropped because it cannot be written."""
        found = os.fstat(self._fd)
        self.size = found.st_size
        self.dropped = 0
        self.grown_at = now()
        """When output arrived last, or the log was begun, on the clock of `now`."""
        self.times = Times(records.fd, f"{session_id}/{self._name}{layout.TIMES}", found.st_mtime)

    def resume(self) -> None:
        """Continue the log of an earlier supervisor."""
        last = gaps.read_last(self._path, self._records.fd)
        self.holes = self._on_record()
        if last is not None:
            self.holes[-1] = self.holes[-1]._replace(uncounted=True)
        self.grown_at = now() - max(0.0, time.time() - os.fstat(self._fd).st_mtime)
        self.dropped = sum(hole.end - hole.start for hole in self.holes)
        self.size = max([self.size, *(hole.end for hole in self.holes)])
        for hole in self.holes:
            self._punch(hole.start, hole.end)
        if last is not None:
            self._unsaved = True
            self._note_last()

    @property
    def errno(self) -> int:
        """Why some output could not be written, or 0."""
        return max((hole.errno for hole in self.holes), default=0)

    @property
    def uncounted(self) -> bool:
        """Whether more than the counted output may have been dropped."""
        return any(hole.uncounted for hole in self.holes)

    def _on_record(self) -> list[Hole]:
        holes: list[Hole] = []
        for row in self._records.read_list(self._session_id, self._table):
            # A damaged row is skipped: the session must not be lost for it.
            with contextlib.suppress(ValueError):
                holes.append(gaps.hole_of(row))
        return gaps.with_last(sorted(holes), gaps.read_last(self._path, self._records.fd))

    def take(self, pipe: int, limit: int) -> int:
        """Move at most `limit` bytes from `pipe`; 0 at its end, WOULD_BLOCK if it is empty."""
        if self._unsaved or (self._cap and not self._punches and self.size - self.dropped >= self._cap):
            return self._take_or_drop(pipe, limit)
        if self._cap and self._punches:
            if self.size - self.dropped >= self._cap:
                self._trim()
            limit = min(limit, max(1, self._cap - (self.size - self.dropped)))
        try:
            return self._splice(pipe, limit) if self._splices else self._copy(pipe, limit)
        except BlockingIOError:
            return WOULD_BLOCK
        except OSError as error:
            return self._drop(pipe, limit, error.errno or errno.EIO)

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
        except OSError as error:
            self._begin_hole(error.errno or errno.EIO)
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
        # No output may be stored after a hole that is not in the table yet.
        full = bool(self._cap) and not self._punches and self.size - self.dropped >= self._cap
        if not full and time.monotonic() >= self._retry_at and self.save():
            return self.take(pipe, limit)
        return self._drop(pipe, limit, 0)

    def _drop(self, pipe: int, limit: int, number: int) -> int:
        self._begin_hole(number)
        try:
            data = os.read(pipe, min(limit, _CHUNK))
        except BlockingIOError:
            return WOULD_BLOCK
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_S
        if data:
            self._lose(data)
        return len(data)

    def _begin_hole(self, number: int) -> None:
        """Record that output is dropped from here on, before it is dropped: we may die meanwhile."""
        if self._unsaved and not number:
            return
        if number and number != self.errno:
            self.losing(number)
        if not self.holes or self.holes[-1].end != self.size:
            self.holes.append(Hole(self.size, self.size, 0, number))
        self.holes[-1] = self.holes[-1]._replace(errno=number or self.holes[-1].errno)
        self._unsaved = True
        self._note_last()

    def _lose(self, data: bytes) -> None:
        last = self.holes[-1]
        self.size += len(data)
        self.dropped += len(data)
        self.holes[-1] = last._replace(end=self.size, newlines=last.newlines + data.count(b"\n"))
        self._note_last()

    def _note_last(self) -> None:
        # Readers take the length of the file for the output, so it must not exceed `size`.
        with contextlib.suppress(OSError):
            gaps.write_last(self._path, self.holes[-1], self._records.fd)
            os.ftruncate(self._fd, self.size)

    def _take_over(self) -> None:
        """Take over the hole that a worker made by emptying the log of an ended session with survivors."""
        first = next(iter(self._on_record()), Hole(0, 0, 0))
        after = first.end
        if first.start == 0 < after and not any(hole.start == 0 and hole.end >= after for hole in self.holes):
            later = [hole._replace(start=max(hole.start, after)) for hole in self.holes if hole.end > after]
            self.holes = [first, *later]
            self.dropped = sum(hole.end - hole.start for hole in self.holes)

    def _trim(self) -> None:
        self._take_over()
        if self.size - self.dropped < self._cap:
            return
        start, end = self._cap // 2, self.size - (self._cap // 2 - self._slack)
        lines, at = 0, start
        before: list[Hole] = []
        within: list[Hole] = []
        after: list[Hole] = []
        for hole in self.holes:
            if hole.end < start:
                before.append(hole)
            elif hole.start > end:
                after.append(hole)
            else:
                start = min(start, hole.start)
                lines += self._newlines(at, hole.start) + hole.newlines
                at = hole.end
                within.append(hole)
        end = max(end, at)
        lines += self._newlines(at, end)
        kept = self.holes, self.dropped
        number, uncounted = max((hole.errno for hole in within), default=0), any(hole.uncounted for hole in within)
        self.holes = [*before, Hole(start, end, lines, number, uncounted), *after]
        self.dropped = sum(hole.end - hole.start for hole in self.holes)
        if not self.save():
            self.holes, self.dropped = kept
            self._punches = False
        elif not self._punch(start, end):
            # The bytes stay on disk but count as dropped; the file is only not smaller.
            self._punches = False

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two offsets; zeroes in holes."""
        return os.pread(self._fd, end - start, start)

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
        """Write the table of holes; False if there is no room now."""
        self._take_over()
        rows = [gaps.row_of(hole) for hole in self.holes if hole.end > hole.start or hole.uncounted]
        try:
            self._records.write(self._session_id, self._table, rows)
        except OSError:
            self._retry_at = time.monotonic() + _RETRY_S
            return False
        # Readers take the size from the file, so a hole at the end extends it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.size)
        if self._unsaved:
            gaps.remove_last(self._path, self._records.fd)
        self._unsaved = False
        return True

    def close(self) -> None:
        if self._unsaved:
            self.save()
        os.close(self._fd)
