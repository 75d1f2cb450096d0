"""Readers of logs: slices by bytes, by lines, or of both ends.

A dropped range shifts no offset. A table beside the log lists the holes and the newlines in each. A hole is in the
table before its range is removed from the file, so the text is read first and the table second.
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
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from shellback.exec.core import limits
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import SessionEnd
from shellback.exec.log.mask import UNMASKED, Hidden, Mask
from shellback.exec.log.plain_text import continuation_bytes, decoded, printed, whole_characters
from shellback.exec.wire import gaps, layout
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.gaps import Hole

T = TypeVar("T")

_INLINE_BYTES: Final = 128 * 1024
_NOTE_CHARS: Final = 400
"""Characters reserved for the line that describes the omitted part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Part of a log as text. `start` to `end` is the requested range; `bytes_shown` of it are in `text`.

    `bytes_total`, `bytes_dropped`, `lines_total` and `dropped_lines` describe the whole log; None: not counted. `errno`
    is the error that kept output from being written. If `uncounted`, more may have been dropped than was counted.
    `secrets` were found in the text.
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
    secrets: int = 0

    @property
    def cut(self) -> bool:
        """Whether the text lacks a part of the range."""
        return self.bytes_shown < self.end - self.start

    @property
    def partial(self) -> bool:
        """Whether the text lacks a part of the range, or output of the log was dropped."""
        return self.cut or self.bytes_dropped > 0 or self.uncounted


EMPTY: Final = Slice(text="")


class OutputLog:
    """One stream of one session; a missing log reads as empty. Memory is bounded by the text returned.

    Long scans run in a thread. Cancelling a read leaves nothing behind. `mask` hides secrets in what is for readers:
    each `Slice`, and `shown`. What `raw`, `piece` and `tail` return is for programs.
    """

    def __init__(
        self,
        directory: str | Path,
        session_id: str,
        *,
        err: bool = False,
        end: SessionEnd | None = None,
        mask: Mask = UNMASKED,
    ) -> None:
        self._path = os.path.join(directory, layout.ERR if err else layout.LOG)
        self._holes_path = os.path.join(directory, layout.ERR_HOLES if err else layout.HOLES)
        self.session_id = session_id
        self._err = err
        self._end = end
        self.mask = mask
        self.text_of = decoded

    @property
    def paths(self) -> tuple[str, str]:
        return self._path, self._holes_path

    def exists(self) -> bool:
        """Whether the log exists; old logs of ended sessions are deleted."""
        return os.path.exists(self._path)

    def size(self) -> int:
        """Bytes printed so far, including dropped ones."""
        with closing(self._open()) as fd:
            return self._extent(fd)[0]

    def _extent(self, fd: int) -> tuple[int, list[Hole]]:
        return extent(fd, self._holes_path, self._end, err=self._err)

    def modified_at(self) -> float:
        """The wall-clock time of the last output; 0 without a log."""
        try:
            return os.stat(self._path).st_mtime
        except FileNotFoundError:
            return 0.0

    def with_controls(self) -> OutputLog:
        """The same log; its texts keep control characters outside of control sequences."""
        same = copy.copy(self)
        same.text_of = printed
        return same

    async def ends(self, start: int = 0, end: int | None = None, *, most: int = limits.RESULT_CHARS) -> Slice:
        """The range, without its middle if it is longer than `most` bytes."""
        return await self._read(
            lambda fd, size: self._ends(fd, start, size if end is None else min(end, size), size, most),
            span=None if end is None else end - start,
        )

    async def lines(self, offset: int, limit: int) -> Slice:
        """Lines `offset` to `offset + limit`; a negative offset counts from the end."""
        return await self._read(lambda fd, size: self._lines(fd, size, offset, limit))

    async def bytes(self, offset: int, limit: int) -> Slice:
        """At most `limit` bytes from `offset`, ending with a whole character.

        Raises:
            InvalidCommand: The offset is beyond the end of the log.
        """
        return await self._read(lambda fd, size: self._bytes(fd, size, offset, limit))

    async def raw(self, start: int, end: int) -> bytes:
        """The raw bytes of a range, without dropped ones."""

        def read(fd: int, size: int) -> bytes:
            data = exactly(fd, start, min(end, size))
            found = pieces(start, start + len(data), self._extent(fd)[1])
            return b"".join(data[first - start : last - start] for kind, first, last, _ in found if kind == "kept")

        return await self._read(read)

    async def shown(self, start: int, end: int) -> tuple[bytes, int]:
        """The bytes of a range as a reader sees them, and how many of the range were dropped."""

        def read(fd: int, size: int) -> tuple[bytes, int]:
            upto = min(end, size)
            wide = wide_of(fd, start, upto, self.mask)
            printed, holes = self._extent(fd)
            found = [(first, last) for kind, first, last, _ in pieces(start, upto, holes) if kind == "kept"]
            of = self.session_id
            texts = [hidden(self.mask, wide, first, last, holes, printed, of).data for first, last in found]
            return b"".join(texts), upto - start - sum(last - first for first, last in found)

        return await self._read(read)

    def piece(self, start: int, most: int) -> bytes:
        """At most `most` bytes of the file from `start`; dropped bytes are zeros. Blocks."""
        with closing(self._open()) as fd:
            return os.pread(fd, most, start)

    def touch(self) -> None:
        """Set `modified_at` to now."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def last_lines(self, count: int, chars: int) -> Slice:
        """The last `count` lines, at most `chars` characters. Blocks."""
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
        """The last `most` bytes; dropped bytes are zeros. Blocks."""
        with closing(self._open()) as fd:
            size = self._extent(fd)[0]
            return exactly(fd, max(0, size - most), size)

    async def readable_end(self, *, ended: bool) -> int:
        """The offset up to which to read: the log's end, without an unfinished character while the process lives."""
        if ended:
            return self.size()
        return (await self._read(self._back_to_character)) or 0

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    async def _read(self, work: Callable[[int, int], T], *, span: int | None = None) -> T:
        """Let `work` read; in a thread if both the log and the `span` are large."""
        fd = self._open()
        size = self._extent(fd)[0]

        def read_and_close() -> T:
            with closing(fd):
                return work(fd, size)

        if min(size, size if span is None else span) <= _INLINE_BYTES:
            return read_and_close()
        return await asyncio.to_thread(read_and_close)

    def _ends(self, fd: int, start: int, end: int, size: int, budget: int) -> Slice:
        # If the end of the range was dropped, the text before it gets the whole budget.
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
        raw = [wide_of(fd, part_start, part_end, self.mask) for part_start, part_end in parts]
        # Read the table after the bytes: a dropped range is in the table before it is removed from the file.
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
        shown = secrets = 0
        for (part_start, part_end), wide in zip(parts, raw, strict=True):
            if texts:
                texts.append(self._left_out(fd, parts[0][1], part_start, holes))
            for kind, piece_start, piece_end, _ in pieces(part_start, part_end, holes):
                if kind == "kept":
                    data, found = hidden(
                        self.mask, wide, piece_start, piece_end, holes, counts.bytes_total, self.session_id
                    )
                    texts.append(self.text_of(data))
                    secrets += found
                    shown += piece_end - piece_start
                else:
                    texts.append(_dropped(piece_start, piece_end, holes))
        if parts[-1][1] < end:
            texts.append(_dropped(parts[-1][1], end, holes))
        return replace(counts, text="".join(texts), bytes_shown=shown, secrets=secrets)

    def _left_out(self, fd: int, start: int, end: int, holes: list[Hole]) -> str:
        gone = sum(min(hole.end, end) - max(hole.start, start) for hole in holes if hole.start < end > start < hole.end)
        # Line ends of a large range are not counted: counting reads all of it, and an uncapped log has no maximum.
        whole = not any(hole.start < edge < hole.end or hole.uncounted for hole in holes for edge in (start, end))
        few = whole and end - start - gone <= limits.LOG_BYTES
        counted = f" with {newlines_in(fd, start, end, holes):,} line ends" if few else ""
        least = "at least " if any(hole.uncounted for hole in holes if hole.start < end > start < hole.end) else ""
        dropped = f", of them {least}{gone:,} bytes dropped for good" if gone else ""
        page = min(end - start, limits.RESULT_CHARS)
        stream = ", stderr=true" if self._err else ""
        return (
            f"\n[{end - start:,} bytes{counted} left out here{dropped}; read them with process_log"
            f"(session_id={self.session_id!r}{stream}, byte_offset={start}, byte_limit={page})]\n"
        )


def _dropped(start: int, end: int, holes: list[Hole]) -> str:
    """The line that replaces a dropped range; it has no line count for a part of a hole."""
    within = [hole for hole in holes if hole.start < end and start < hole.end]
    whole = all(start <= hole.start and hole.end <= end for hole in within)
    parts = [hole._replace(start=max(start, hole.start), end=min(end, hole.end)) for hole in within]
    return f"\n[{dropped_text(parts, lines=sum(hole.newlines for hole in parts) if whole else None)}]\n"


Range = tuple[int, int | None]
WHOLE: Final[Range] = (0, None)


async def both_ends(
    out: OutputLog, err: OutputLog, most: int, out_range: Range = WHOLE, err_range: Range = WHOLE
) -> tuple[Slice, Slice]:
    """Ranges of two streams that share `most` bytes: each gets half, and the rest that the other leaves unused."""
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
    """The holes of a log, in order, from the table beside it."""
    # Read the symlink of the last hole before the table: when the symlink is removed, the table has the hole.
    last = gaps.read_last(path)
    try:
        with open(path, "rb", buffering=0) as table:  # without `Path`, which takes longer than this
            rows = cast("list[dict[str, Any]]", json.loads(table.readall()))
        return gaps.with_last(sorted(map(gaps.hole_of, rows)), last)
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # We only rename complete tables into place, so this table was damaged. Ends must be reported all the same.
        log.warning("the table of holes %s cannot be read, dropped ranges read as zeros: %s", path, error)
    return gaps.with_last([], last)


def extent(fd: int, table: str, end: SessionEnd | None = None, *, err: bool = False) -> tuple[int, list[Hole]]:
    """The size of a log and its holes, from the file, the table beside it, and the session's end.

    If the disk was too full to record even the hole, only the session's end has the number of bytes.
    """
    status = os.fstat(fd)
    holes = holes_in(table)
    size = max(status.st_size, holes[-1].end) if holes else status.st_size
    printed = 0 if end is None else end.err_bytes_total if err else end.bytes_total
    if size < printed and end is not None and stat.S_ISREG(status.st_mode):
        return printed, [*holes, Hole(size, printed, 0, end.log_errno, uncounted=True)]
    return size, holes


def dropped_text(holes: Sequence[Hole], *, lines: int | None = None) -> str:
    """The text that says how much was dropped, and why."""
    count = sum(hole.end - hole.start for hole in holes)
    least = "at least " if any(hole.uncounted for hole in holes) else ""
    with_lines = "" if lines is None or least else f" with {lines:,} line ends"
    number = max((hole.errno for hole in holes), default=0)
    reason = f": {gaps.why(number)}" if number else ""
    return f"{least}{count:,} bytes{with_lines} were dropped here, not readable{reason}"


def exactly(fd: int, start: int, end: int) -> bytes:
    """The bytes of a range; fewer only if the file ends earlier."""
    # A pread may return less than requested; the end of the file ends the loop.
    parts: list[bytes] = []
    while start < end and (data := os.pread(fd, min(_CHUNK, end - start), start)):
        parts.append(data)
        start += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Wide(NamedTuple):
    """Bytes of a log from offset `start` on: of a range, and what stands around it."""

    start: int
    data: bytes


def wide_of(fd: int, start: int, end: int, mask: Mask) -> Wide:
    """The bytes of a range, with as many around it as `mask` needs."""
    first = max(0, start - mask.reach)
    return Wide(first, exactly(fd, first, end + mask.reach))


def hidden(mask: Mask, wide: Wide, start: int, end: int, holes: Sequence[Hole], size: int, of: str = "") -> Hidden:
    """The kept bytes of a range in the log `of` a session, without secrets.

    `wide` was read before the `holes` and the `size` of the log.
    """
    before = max((hole.end for hole in holes if hole.end <= start), default=0)
    after = min((hole.start for hole in holes if hole.start >= end), default=size)
    first = max(wide.start, before)
    data = wide.data[first - wide.start : after - wide.start]
    return mask.hide(
        data,
        start - first,
        end - first,
        torn=first == before > 0,
        ends=first + len(data) >= after,
        of=of,
    )


def pieces(start: int, end: int, holes: list[Hole]) -> Iterator[tuple[str, int, int, int]]:
    """Split a range into `kept` and `hole` pieces: (kind, start, end, dropped newlines)."""
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
    """The number of line ends in a range, including dropped ones."""
    count = 0
    for kind, piece_start, piece_end, newlines in pieces(start, end, holes):
        count += newlines
        if kind == "kept":
            for position in range(piece_start, piece_end, _CHUNK):
                count += os.pread(fd, min(_CHUNK, piece_end - position), position).count(b"\n")
    return count


def line_start(fd: int, size: int, holes: list[Hole], number: int, *, in_hole: Literal["start", "end"]) -> int:
    """The offset of line `number`; if the line starts in a hole, the edge of the hole that `in_hole` names."""
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
    """The position of newline number `wanted`, counted from 1; -1 for 0. `data` must have that many newlines."""
    position, width = -1, len(data)
    while width > 4096:
        # Bisection: counting is fast, stepping from line to line is slow.
        width //= 2
        here = data.count(b"\n", position + 1, position + 1 + width)
        if here < wanted:
            wanted -= here
            position += width
    for _ in range(wanted):
        position = data.index(b"\n", position + 1)
    return position
