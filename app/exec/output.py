"""Reading what a process printed: slices of a log by bytes, by lines, or its two ends.

A log has the offsets it was written with; ranges that were dropped to keep it within its cap are
listed beside it, with the newlines they held. That table is written before the range is punched
out, so text is read first and the table second: what was a hole while reading is in the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from app.exec import limits
from app.exec.errors import InvalidCommand
from app.exec.holes import Hole, exactly, holes_in, line_start, newlines_in, pieces
from app.exec.plain_text import continuation_bytes, decoded, whole_characters
from app.exec.supervisor import layout

T = TypeVar("T")

_INLINE_BYTES: Final = 128 * 1024
_NOTE_CHARS: Final = 400
"""Kept free for the line that says what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Part of a log as text. `start` to `end` is the range asked for, `bytes_shown` what of it is in `text`.

    `bytes_total` and `bytes_dropped` count the whole log; `lines_total`, `dropped_lines` too, where counted.
    """

    text: str
    start: int = 0
    end: int = 0
    bytes_total: int = 0
    bytes_shown: int = 0
    bytes_dropped: int = 0
    lines_total: int | None = None
    dropped_lines: int = 0

    @property
    def cut(self) -> bool:
        """Whether something of the range is not in the text."""
        return self.bytes_shown < self.end - self.start


EMPTY: Final = Slice(text="")


class OutputLog:
    """One stream of one session. Memory is bounded by what is shown; long scans run in a thread.

    A log that does not exist reads as empty. Cancelling a read leaves nothing behind.
    """

    def __init__(self, directory: str | Path, session_id: str, *, err: bool = False) -> None:
        self._path = os.path.join(directory, layout.ERR if err else layout.LOG)
        self._holes_path = os.path.join(directory, layout.ERR_HOLES if err else layout.HOLES)
        self._session_id = session_id
        self._err = err

    @property
    def paths(self) -> tuple[str, str]:
        """Where the log is, and the table of what it lost."""
        return self._path, self._holes_path

    def exists(self) -> bool:
        """Whether the log is there; that of an ended session goes for its age."""
        return os.path.exists(self._path)

    def size(self) -> int:
        """Bytes written so far, dropped ones included."""
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def modified_at(self) -> float:
        """When something was printed last, in wall-clock seconds; 0 without a log."""
        try:
            return os.stat(self._path).st_mtime
        except FileNotFoundError:
            return 0.0

    async def ends(self, start: int = 0, end: int | None = None, *, most: int = limits.RESULT_CHARS) -> Slice:
        """The range, its middle left out where it is longer than `most` bytes."""
        return await self._read(
            lambda fd, size: self._ends(fd, start, size if end is None else min(end, size), size, most),
            span=None if end is None else end - start,
        )

    async def lines(self, offset: int, limit: int) -> Slice:
        """Lines `offset` to `offset + limit`; a negative offset counts from the end."""
        return await self._read(lambda fd, size: self._lines(fd, size, offset, limit))

    async def bytes(self, offset: int, limit: int) -> Slice:
        """The bytes from `offset`, at most `limit`; the end is moved back to the end of a character.

        Raises:
            InvalidCommand: The offset is behind the end of the log.
        """
        return await self._read(lambda fd, size: self._bytes(fd, size, offset, limit))

    async def raw(self, start: int, end: int) -> bytes:
        """What was printed in a range, byte by byte; what was dropped of it is missing."""

        def read(fd: int, size: int) -> bytes:
            data = exactly(fd, start, min(end, size))
            found = pieces(start, start + len(data), holes_in(self._holes_path))
            return b"".join(data[first - start : last - start] for kind, first, last, _ in found if kind == "kept")

        return await self._read(read)

    def piece(self, start: int, most: int) -> bytes:
        """At most `most` bytes from `start`, as they are in the file, where dropped ones are zeros; read at once."""
        fd = self._open()
        try:
            return os.pread(fd, most, start)
        finally:
            os.close(fd)

    def touch(self) -> None:
        """Count this moment as one of use: `modified_at` has it, whoever asks then."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def last_lines(self, count: int, chars: int) -> Slice:
        """The last `count` lines, at most `chars` characters of them; read at once, as they are few."""
        fd = self._open()
        try:
            return self._last_lines(fd, os.fstat(fd).st_size, count, chars)
        finally:
            os.close(fd)

    def tail(self, most: int) -> bytes:
        """The last `most` bytes as they are, read at once, as they are few; what was dropped of them are zeros."""
        fd = self._open()
        try:
            size = os.fstat(fd).st_size
            return exactly(fd, max(0, size - most), size)
        finally:
            os.close(fd)

    async def readable_end(self, *, ended: bool) -> int:
        """Where a reader may stop: the end of the log, before an unfinished character while the process lives."""
        if ended:
            return self.size()
        return (await self._read(self._back_to_character)) or 0

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    async def _read(self, work: Callable[[int, int], T], *, span: int | None = None) -> T:
        """Let `work` read, in a thread where that is the whole of a large log, or a `span` of it that is."""
        fd = self._open()
        size = os.fstat(fd).st_size

        def read_and_close() -> T:
            try:
                return work(fd, size)
            finally:
                os.close(fd)

        if min(size, size if span is None else span) <= _INLINE_BYTES:
            return read_and_close()
        return await asyncio.to_thread(read_and_close)

    def _ends(self, fd: int, start: int, end: int, size: int, budget: int) -> Slice:
        if end - start <= budget:
            return self._sliced(size, start, end, [(start, end)], fd)
        half = (budget - _NOTE_CHARS) // 2
        head_end = start + _cut_after_line(os.pread(fd, half, start))
        tail = os.pread(fd, half, end - half)
        tail_start = end - half + _cut_before_line(tail)
        return self._sliced(size, start, end, [(start, head_end), (tail_start, end)], fd)

    def _lines(self, fd: int, size: int, offset: int, limit: int) -> Slice:
        start = end = total = 0
        holes = holes_in(self._holes_path)
        for _ in range(5):
            total = newlines_in(fd, 0, size, holes)
            if size and not any(hole.end >= size for hole in holes) and os.pread(fd, 1, size - 1) != b"\n":
                total += 1
            first = max(0, total + offset) if offset < 0 else offset
            start = line_start(fd, size, holes, first, in_hole="start")
            end = line_start(fd, size, holes, min(first + limit, total), in_hole="end")
            again = holes_in(self._holes_path)
            if again == holes:
                break
            holes = again
        shown = self._ends(fd, start, end, size, limits.RESULT_CHARS)
        return _with_lines(shown, total, sum(hole.newlines for hole in holes))

    def _bytes(self, fd: int, size: int, offset: int, limit: int) -> Slice:
        if offset > size:
            raise InvalidCommand(f"byte_offset {offset} is behind the end of the log, which has {size} bytes")
        end = min(size, offset + limit)
        if end < size:
            whole = self._back_to_character(fd, end)
            end = whole if whole > offset else end
        return self._sliced(size, offset, end, [(offset, end)], fd)

    def _last_lines(self, fd: int, size: int, count: int, chars: int) -> Slice:
        window = max(0, size - chars)
        data = os.pread(fd, chars, window)
        position = len(data) - 1 if data.endswith(b"\n") else len(data)
        for _ in range(count):
            position = data.rfind(b"\n", 0, position)
            if position < 0:
                break
        skip = position + 1 if position >= 0 else continuation_bytes(data) if window else 0
        return self._sliced(size, window + skip, size, [(window + skip, size)], fd)

    def _back_to_character(self, fd: int, end: int) -> int:
        start = max(0, end - 4)
        return start + whole_characters(os.pread(fd, end - start, start))

    def _sliced(self, size: int, start: int, end: int, parts: list[tuple[int, int]], fd: int) -> Slice:
        raw = [exactly(fd, part_start, part_end) for part_start, part_end in parts]
        # Read after the bytes: what was dropped meanwhile is in the table before it is gone from the file.
        holes = holes_in(self._holes_path)
        emptied = next((hole for hole in holes if hole.start <= 0 and hole.end >= size > 0), None)
        if emptied is not None:
            counted = f"{size:,} bytes with {emptied.newlines:,} line ends"
            return Slice(
                text=f"[the log was emptied to make room on the disk: {counted} were dropped, not readable]\n",
                start=start,
                end=end,
                bytes_total=size,
                bytes_dropped=size,
                dropped_lines=emptied.newlines,
            )
        texts: list[str] = []
        shown = 0
        for (part_start, part_end), data in zip(parts, raw, strict=True):
            if texts:
                texts.append(self._left_out(fd, parts[0][1], part_start, holes))
            for kind, piece_start, piece_end, newlines in pieces(part_start, part_end, holes):
                if kind == "kept":
                    texts.append(decoded(data[piece_start - part_start : piece_end - part_start]))
                    shown += piece_end - piece_start
                else:
                    dropped = piece_end - piece_start
                    texts.append(f"\n[{dropped:,} bytes with {newlines:,} line ends were dropped here, not readable]\n")
        return Slice(
            text="".join(texts),
            start=start,
            end=end,
            bytes_total=size,
            bytes_shown=shown,
            bytes_dropped=sum(hole.end - hole.start for hole in holes),
            dropped_lines=sum(hole.newlines for hole in holes),
        )

    def _left_out(self, fd: int, start: int, end: int, holes: list[Hole]) -> str:
        gone = sum(min(hole.end, end) - max(hole.start, start) for hole in holes if hole.start < end > start < hole.end)
        # Counting reads it all: a log without a cap may be of any size, and the result would wait for that.
        few = end - start - gone <= limits.LOG_BYTES
        counted = f" with {newlines_in(fd, start, end, holes):,} line ends" if few else ""
        dropped = f", of them {gone:,} bytes dropped for good" if gone else ""
        if self._err:
            where = f".tmp/exec/{self._session_id}.err"
            return f"\n[{end - start:,} bytes{counted} left out here{dropped}; they are in {where}]\n"
        page = min(end - start, limits.RESULT_CHARS)
        return (
            f"\n[{end - start:,} bytes{counted} left out here{dropped}; read them with process_log"
            f"(session_id={self._session_id!r}, byte_offset={start}, byte_limit={page})]\n"
        )


async def both_ends(out: OutputLog, err: OutputLog, most: int) -> tuple[Slice, Slice]:
    """Two streams that share `most` bytes: each is sure of half, and has what the other leaves."""
    room = most - most // 2
    return (
        await out.ends(most=max(room, most - err.size())),
        await err.ends(most=max(most - room, most - out.size())),
    )


def _cut_after_line(data: bytes) -> int:
    line_end = data.rfind(b"\n", len(data) * 3 // 4)
    return line_end + 1 if line_end >= 0 else whole_characters(data)


def _cut_before_line(data: bytes) -> int:
    line_end = data.find(b"\n", 0, len(data) // 4)
    return line_end + 1 if line_end >= 0 else continuation_bytes(data)


def _with_lines(shown: Slice, total: int, dropped: int) -> Slice:
    return Slice(
        text=shown.text,
        start=shown.start,
        end=shown.end,
        bytes_total=shown.bytes_total,
        bytes_shown=shown.bytes_shown,
        bytes_dropped=shown.bytes_dropped,
        lines_total=total,
        dropped_lines=dropped,
    )
