"""Holes of a log: rows of a table beside it, and the last hole in a symlink.

The target of a short symlink is in its inode, so it can be made when the disk has no room for a table. It is made
before the first byte of the hole is dropped, and removed once the table has the hole. So if a supervisor finds one at
its start, the last supervisor died while it dropped output, and the amount is unknown.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final, NamedTuple

from shellback.exec.wire.protocol import Message

LAST: Final = ".last"
"""Added to the name of a table."""
_MOST: Final = 1 << 62
_WORDS: Final = {
    errno.ENOSPC: "the disk of the state directory is full",
    errno.EDQUOT: "the disk quota of the state directory is used up",
    errno.EFBIG: "the file may not grow, by a limit of the supervisor",
}


class Hole(NamedTuple):
    """A dropped range of a log, and its number of newlines.

    `errno` is why it could not be written, or 0 if it was dropped because of the cap. With `uncounted`, more may have
    been dropped.
    """

    start: int
    end: int
    newlines: int
    errno: int = 0
    uncounted: bool = False


def why(number: int) -> str:
    """Why output could not be written, in words."""
    return _WORDS.get(number) or f"the disk of the state directory does not take it ({os.strerror(number)})"


def row_of(hole: Hole) -> Message:
    """A row of the table."""
    more = {name: value for name, value in hole._asdict().items() if value}
    return {"start": hole.start, "end": hole.end, "newlines": hole.newlines, **more}


def hole_of(row: Message) -> Hole:
    """The hole in a row; raises ValueError if the row is damaged."""
    counts = [row.get("start"), row.get("end"), row.get("newlines"), row.get("errno", 0), row.get("uncounted", 0)]
    if not all(isinstance(count, int) and 0 <= count < _MOST for count in counts) or row["start"] > row["end"]:
        raise ValueError("no range of a log")
    return Hole(row["start"], row["end"], row["newlines"], row.get("errno", 0), bool(row.get("uncounted")))


def write_last(table: str, hole: Hole, directory: int | None = None) -> None:
    """Record the last hole of a log when the disk has no room for the table; OSError without a free inode."""
    draft = f"{table}{LAST}.new"
    text = " ".join(str(int(number)) for number in hole)
    try:
        os.symlink(text, draft, dir_fd=directory)
    except FileExistsError:
        os.unlink(draft, dir_fd=directory)
        os.symlink(text, draft, dir_fd=directory)
    os.rename(draft, f"{table}{LAST}", src_dir_fd=directory, dst_dir_fd=directory)


def read_last(table: str, directory: int | None = None) -> Hole | None:
    """The last hole of a log if the table lacks it, else None."""
    try:
        words = os.readlink(f"{table}{LAST}", dir_fd=directory).split()
        return hole_of(dict(zip(Hole._fields, map(int, words), strict=True)))
    except (OSError, ValueError):
        return None


def remove_last(table: str, directory: int | None = None) -> None:
    """Remove the record of the last hole, once the table has it."""
    with contextlib.suppress(OSError):
        os.unlink(f"{table}{LAST}", dir_fd=directory)


def with_last(holes: list[Hole], last: Hole | None) -> list[Hole]:
    """The holes of a table, in order, and the part of the last hole that the table lacks."""
    covered = holes[-1].end if holes else 0
    if last is None or (last.end <= covered and holes):
        return holes
    return [*holes, last._replace(start=max(last.start, covered))]
