"""Reading a log that has holes: what is kept, where lines begin, how many there are."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, cast

from shellback.exec.core.model import SessionEnd
from shellback.exec.wire import gaps
from shellback.exec.wire.gaps import Hole

log = logging.getLogger(__name__)

_CHUNK: Final = 1024 * 1024


def holes_in(path: str) -> list[Hole]:
    """What was dropped of a log, in order, by the table beside it; empty where nothing was."""
    # Before the table: one that is gone by now is in there.
    last = gaps.read_last(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            rows = cast("list[dict[str, Any]]", json.loads(file.read()))
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
