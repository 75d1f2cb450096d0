"""Reading what a process printed: slices of a log by bytes, by lines, or its two ends.

A log has the offsets it was written with; ranges that were dropped to keep it within its cap are
listed beside it, with the newlines they held. That table is written before the range is punched
out, so text is read first and the table second: what was a hole while reading is in the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from shellback.exec.core import limits
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import SessionEnd
from shellback.exec.core.sight.place import closing
from shellback.exec.log.plain_text import continuation_bytes, decoded, printed, whole_characters
from shellback.exec.wire import gaps, layout
from shellback.exec.wire.gaps import Hole

T = TypeVar("T")

_INLINE_BYTES: Final = 128 * 1024
_NOTE_CHARS: Final = 400
"""Kept free for the line that says what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Part of a log as text. `start` to `end` is the range asked for, `bytes_shown` what of it is in `text`.

    `bytes_total` and `bytes_dropped` count the whole log; `lines_total`, `dropped_lines` too, where counted. `errno` is
    why some of it could not be written; with `uncounted` it is at least that much, and how many lines nobody knows.
    """

    text: str
    start: int = 0
    end: int = 0
    bytes_total: int = 0
    bytes_shown: int = 0
    bytes_dropped: int = 0
    lines_total: int | None = None
    dropped_lines: int | None = 0
    errno: int = 0
    uncounted: bool = False

    @property
    def cut(self) -> bool:
        """Whether something of the range is not in the text."""
        return self.bytes_shown < self.end - self.start

    @property
    def partial(self) -> bool:
        """Whether a result has to say that there is, or was, more than its text."""
        return self.cut or self.bytes_dropped > 0 or self.uncounted


EMPTY: Final = Slice(text="")


class OutputLog:
    """One stream of one session. Memory is bounded by what is shown; long scans run in a thread.

    A log that does not exist reads as empty. Cancelling a read leaves nothing behind.
    """

    def __init__(
        self, directory: str | Path, session_id: str, *, err: bool = False, end: SessionEnd | None = None
    ) -> None:
        self._path = os.path.join(directory, layout.ERR if err else layout.LOG)
        self._holes_path = os.path.join(directory, layout.ERR_HOLES if err else layout.HOLES)
        self._session_id = session_id
        self._err = err
        self._end = end
        self.text_of = decoded

    @property
    def paths(self) -> tuple[str, str]:
        """Where the log is, and the table of what it lost."""
        return self._path, self._holes_path

    def exists(self) -> bool:
        """Whether the log is there; that of an ended session goes for its age."""
        return os.path.exists(self._path)

    def size(self) -> int:
        """Bytes written so far, dropped ones included."""
        with closing(self._open()) as fd:
            return self._extent(fd)[0]

    def _extent(self, fd: int) -> tuple[int, list[Hole]]:
        return extent(fd, self._holes_path, self._end, err=self._err)

    def modified_at(self) -> float:
        """When something was printed last, in wall-clock seconds; 0 without a log."""
        try:
            return os.stat(self._path).st_mtime
        except FileNotFoundError:
            return 0.0

    def with_controls(self) -> OutputLog:
        """The same log, in whose texts control characters stay that belong to no control sequence."""
        same = copy.copy(self)
        same.text_of = printed
        return same

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
            found = pieces(start, start + len(data), self._extent(fd)[1])
            return b"".join(data[first - start : last - start] for kind, first, last, _ in found if kind == "kept")

        return await self._read(read)

    def piece(self, start: int, most: int) -> bytes:
        """At most `most` bytes from `start`, as they are in the file, where dropped ones are zeros; read at once."""
        with closing(self._open()) as fd:
            return os.pread(fd, most, start)

    def touch(self) -> None:
        """Count this moment as one of use: `modified_at` has it, whoever asks then."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def last_lines(self, count: int, chars: int) -> Slice:
        """The last `count` lines, at most `chars` characters of them; read at once, as they are few."""
        with closing(self._open()) as fd:
            size, holes = self._extent(fd)
            kept = holes[-1].start if holes and holes[-1].end >= size else size
            window = max(0, kept - chars)
            data = os.pread(fd, kept - window, window)
            position = len(data) - 1 if data.endswith(b"\n") else len(data)
            for _ in range(count):
                position = data.rfind(b"\n", 0, position)
                if position < 0:
                    break
            skip = position + 1 if position >= 0 else continuation_bytes(data) if window else 0
            return self._sliced(size, window + skip, size, [(window + skip, kept)], fd)

    def tail(self, most: int) -> bytes:
        """The last `most` bytes as they are, read at once, as they are few; what was dropped of them are zeros."""
        with closing(self._open()) as fd:
            size = self._extent(fd)[0]
            return exactly(fd, max(0, size - most), size)

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
        size = self._extent(fd)[0]

        def read_and_close() -> T:
            with closing(fd):
                return work(fd, size)

        if min(size, size if span is None else span) <= _INLINE_BYTES:
            return read_and_close()
        return await asyncio.to_thread(read_and_close)

    def _ends(self, fd: int, start: int, end: int, size: int, budget: int) -> Slice:
        # What is dropped up to the end leaves its room to what comes before it.
        kept = next((max(hole.start, start) for hole in self._extent(fd)[1] if hole.start < end <= hole.end), end)
        if kept - start <= budget:
            return self._sliced(size, start, end, [(start, kept)], fd)
        half = (budget - _NOTE_CHARS) // 2
        head_end = start + _cut_after_line(os.pread(fd, half, start))
        tail = os.pread(fd, half, kept - half)
        tail_start = kept - half + _cut_before_line(tail)
        return self._sliced(size, start, end, [(start, head_end), (tail_start, kept)], fd)

    def _lines(self, fd: int, size: int, offset: int, limit: int) -> Slice:
        start = end = total = 0
        holes = self._extent(fd)[1]
        for _ in range(5):
            total = newlines_in(fd, 0, size, holes)
            if size and not any(hole.end >= size for hole in holes) and os.pread(fd, 1, size - 1) != b"\n":
                total += 1
            first = max(0, total + offset) if offset < 0 else offset
            start = line_start(fd, size, holes, first, in_hole="start")
            end = line_start(fd, size, holes, min(first + limit, total), in_hole="end")
            again = self._extent(fd)[1]
            if again == holes:
                break
            holes = again
        shown = self._ends(fd, start, end, size, limits.RESULT_CHARS)
        if shown.uncounted:
            return replace(shown, lines_total=None, dropped_lines=None)
        return replace(shown, lines_total=total, dropped_lines=sum(hole.newlines for hole in holes))

    def _bytes(self, fd: int, size: int, offset: int, limit: int) -> Slice:
        if offset > size:
            raise InvalidCommand(f"byte_offset {offset} is behind the end of the log, which has {size} bytes")
        end = min(size, offset + limit)
        if end < size:
            whole = self._back_to_character(fd, end)
            end = whole if whole > offset else end
        return self._sliced(size, offset, end, [(offset, end)], fd)

    def _back_to_character(self, fd: int, end: int) -> int:
        start = max(0, end - 4)
        return start + whole_characters(os.pread(fd, end - start, start))

    def _sliced(self, size: int, start: int, end: int, parts: list[tuple[int, int]], fd: int) -> Slice:
        raw = [exactly(fd, part_start, part_end) for part_start, part_end in parts]
        # Read after the bytes: what was dropped meanwhile is in the table before it is gone from the file.
        printed, holes = self._extent(fd)
        dropped = sum(hole.end - hole.start for hole in holes)
        counts = Slice(
            text="",
            start=start,
            end=end,
            bytes_total=max(size, printed),
            bytes_dropped=dropped,
            dropped_lines=sum(hole.newlines for hole in holes),
            errno=max((hole.errno for hole in holes), default=0),
            uncounted=any(hole.uncounted for hole in holes),
        )
        emptied = next((hole for hole in holes if hole.start <= 0 and hole.end >= size > 0), None)
        if emptied is not None and not emptied.errno:
            gone = dropped_text([emptied], lines=emptied.newlines)
            return replace(counts, text=f"[the log was emptied to make room on the disk: {gone}]\n")
        texts: list[str] = []
        shown = 0
        for (part_start, part_end), data in zip(parts, raw, strict=True):
            if texts:
                texts.append(self._left_out(fd, parts[0][1], part_start, holes))
            for kind, piece_start, piece_end, _ in pieces(part_start, part_end, holes):
                if kind == "kept":
                    texts.append(self.text_of(data[piece_start - part_start : piece_end - part_start]))
                    shown += piece_end - piece_start
                else:
                    texts.append(_dropped(piece_start, piece_end, holes))
        if parts[-1][1] < end:
            texts.append(_dropped(parts[-1][1], end, holes))
        return replace(counts, text="".join(texts), bytes_shown=shown)

    def _left_out(self, fd: int, start: int, end: int, holes: list[Hole]) -> str:
        gone = sum(min(hole.end, end) - max(hole.start, start) for hole in holes if hole.start < end > start < hole.end)
        # Counting reads it all: a log without a cap may be of any size, and the result would wait for that.
        whole = not any(hole.start < edge < hole.end or hole.uncounted for hole in holes for edge in (start, end))
        few = whole and end - start - gone <= limits.LOG_BYTES
        counted = f" with {newlines_in(fd, start, end, holes):,} line ends" if few else ""
        least = "at least " if any(hole.uncounted for hole in holes if hole.start < end > start < hole.end) else ""
        dropped = f", of them {least}{gone:,} bytes dropped for good" if gone else ""
        page = min(end - start, limits.RESULT_CHARS)
        stream = ", stderr=true" if self._err else ""
        return (
            f"\n[{end - start:,} bytes{counted} left out here{dropped}; read them with process_log"
            f"(session_id={self._session_id!r}{stream}, byte_offset={start}, byte_limit={page})]\n"
        )


def _dropped(start: int, end: int, holes: list[Hole]) -> str:
    """The line that stands for a range that was dropped; of a part of one nobody knows the lines."""
    within = [hole for hole in holes if hole.start < end and start < hole.end]
    whole = all(start <= hole.start and hole.end <= end for hole in within)
    parts = [hole._replace(start=max(start, hole.start), end=min(end, hole.end)) for hole in within]
    return f"\n[{dropped_text(parts, lines=sum(hole.newlines for hole in parts) if whole else None)}]\n"


Range = tuple[int, int | None]
WHOLE: Final[Range] = (0, None)


async def both_ends(
    out: OutputLog, err: OutputLog, most: int, out_range: Range = WHOLE, err_range: Range = WHOLE
) -> tuple[Slice, Slice]:
    """Ranges of two streams that share `most` bytes: each is sure of half, and has what the other leaves."""
    room = most - most // 2
    of_out, of_err = (
        (log.size() if end is None else end) - start for log, (start, end) in ((out, out_range), (err, err_range))
    )
    return (
        await out.ends(*out_range, most=max(room, most - of_err)),
        await err.ends(*err_range, most=max(most - room, most - of_out)),
    )


def _cut_after_line(data: bytes) -> int:
    line_end = data.rfind(b"\n", len(data) * 3 // 4)
    return line_end + 1 if line_end >= 0 else whole_characters(data)


def _cut_before_line(data: bytes) -> int:
    line_end = data.find(b"\n", 0, len(data) // 4)
    return line_end + 1 if line_end >= 0 else continuation_bytes(data)


log = logging.getLogger(__name__)

_CHUNK: Final = 1024 * 1024


def holes_in(path: str) -> list[Hole]:
    """What was dropped of a log, in order, by the table beside it; empty where nothing was."""
    # Before the table: one that is gone by now is in there.
    last = gaps.read_last(path)
    try:
        rows = cast("list[dict[str, Any]]", json.loads(Path(path).read_bytes()))
        return gaps.with_last(sorted(map(gaps.hole_of, rows)), last)
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Ours is renamed into place whole; this one was damaged. The end of a process is told all the same.
        log.warning("the table of holes %s cannot be read, dropped ranges read as zeros: %s", path, error)
    return gaps.with_last([], last)


def extent(fd: int, table: str, end: SessionEnd | None = None, *, err: bool = False) -> tuple[int, list[Hole]]:
    """How much was printed into a log, and what was dropped of that: by its file, the table beside it, and its end.

    The file may not even have let itself be made longer by a hole, and the end knows of one that no disk took.
    """
    status = os.fstat(fd)
    holes = holes_in(table)
    size = max(status.st_size, holes[-1].end) if holes else status.st_size
    printed = 0 if end is None else end.err_bytes_total if err else end.bytes_total
    if size < printed and end is not None and stat.S_ISREG(status.st_mode):
        return printed, [*holes, Hole(size, printed, 0, end.log_errno, uncounted=True)]
    return size, holes


def dropped_text(holes: Sequence[Hole], *, lines: int | None = None) -> str:
    """How much was dropped, and why."""
    count = sum(hole.end - hole.start for hole in holes)
    least = "at least " if any(hole.uncounted for hole in holes) else ""
    with_lines = "" if lines is None or least else f" with {lines:,} line ends"
    number = max((hole.errno for hole in holes), default=0)
    reason = f": {gaps.why(number)}" if number else ""
    return f"{least}{count:,} bytes{with_lines} were dropped here, not readable{reason}"


def exactly(fd: int, start: int, end: int) -> bytes:
    """The bytes of a range; fewer only where the file ends before it."""
    # One pread may return less than asked; a file that has shrunk ends the loop.
    parts: list[bytes] = []
    while start < end and (data := os.pread(fd, min(_CHUNK, end - start), start)):
        parts.append(data)
        start += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def pieces(start: int, end: int, holes: list[Hole]) -> Iterator[tuple[str, int, int, int]]:
    """Cut a range into `kept` and `hole` pieces: (kind, start, end, newlines that were dropped)."""
    position = start
    for hole in holes:
        if hole.end <= position or hole.start >= end:
            continue
        if hole.start > position:
            yield "kept", position, hole.start, 0
        position = max(position, hole.start)
        yield "hole", position, min(hole.end, end), hole.newlines
        position = min(hole.end, end)
    if position < end:
        yield "kept", position, end, 0


def newlines_in(fd: int, start: int, end: int, holes: list[Hole]) -> int:
    """How many lines end in a range, dropped ones included."""
    count = 0
    for kind, piece_start, piece_end, newlines in pieces(start, end, holes):
        count += newlines
        if kind == "kept":
            for position in range(piece_start, piece_end, _CHUNK):
                count += os.pread(fd, min(_CHUNK, piece_end - position), position).count(b"\n")
    return count


def line_start(fd: int, size: int, holes: list[Hole], number: int, *, in_hole: Literal["start", "end"]) -> int:
    """Where line `number` begins; an edge of the hole where it begins in one."""
    wanted = number
    if wanted <= 0:
        return 0
    for kind, piece_start, piece_end, newlines in pieces(0, size, holes):
        if kind == "hole":
            if wanted <= newlines:
                return piece_start if wanted < newlines and in_hole == "start" else piece_end
            wanted -= newlines
            continue
        for position in range(piece_start, piece_end, _CHUNK):
            data = os.pread(fd, min(_CHUNK, piece_end - position), position)
            here = data.count(b"\n")
            if here >= wanted:
                return position + nth_newline(data, wanted) + 1
            wanted -= here
    return size


def nth_newline(data: bytes, wanted: int) -> int:
    """Where the newline of this number is, the first being 1; -1 for 0. There are as many."""
    position, width = -1, len(data)
    while width > 4096:
        # Halve towards the newline: counting is fast, stepping from line to line is not.
        width //= 2
        here = data.count(b"\n", position + 1, position + 1 + width)
        if here < wanted:
            wanted -= here
            position += width
    for _ in range(wanted):
        position = data.index(b"\n", position + 1)
    return position
