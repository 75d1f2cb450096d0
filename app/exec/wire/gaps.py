"""Ranges of a log that were dropped: rows of a table beside it, and the last one in a symlink.

A symlink this short has its target in its inode: it can be made where the disk has no room for a table. It is there
before the first byte of its range is dropped, and goes once the table has the range. So one that a supervisor finds
when it starts was being added to when the last one died: how much went, nobody knows.
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
    """A range of a log that was dropped, and how many newlines it held.

    `errno` is why it could not be written, 0 where that was to keep the log within its cap. With `uncounted` it was at
    least that much.
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
    """What a row says.

    Raises:
        ValueError: It is none.
    """
    counts = [row.get("start"), row.get("end"), row.get("newlines"), row.get("errno", 0), row.get("uncounted", 0)]
    if not all(isinstance(count, int) and 0 <= count < _MOST for count in counts) or row["start"] > row["end"]:
        raise ValueError("no range of a log")
    return Hole(row["start"], row["end"], row["newlines"], row.get("errno", 0), bool(row.get("uncounted")))


def write_last(table: str, hole: Hole, directory: int | None = None) -> None:
    """Note the range at the end of a log for which its table has no room.

    Raises:
        OSError: Nor is there an inode for it, or nothing can be written at all.
    """
    draft = f"{table}{LAST}.new"
    text = " ".join(str(int(number)) for number in hole)
    try:
        os.symlink(text, draft, dir_fd=directory)
    except FileExistsError:
        os.unlink(draft, dir_fd=directory)
        os.symlink(text, draft, dir_fd=directory)
    os.rename(draft, f"{table}{LAST}", src_dir_fd=directory, dst_dir_fd=directory)


def read_last(table: str, directory: int | None = None) -> Hole | None:
    """The range at the end of a log that its table has not; None where there is none."""
    try:
        words = os.readlink(f"{table}{LAST}", dir_fd=directory).split()
        return hole_of(dict(zip(Hole._fields, map(int, words), strict=True)))
    except (OSError, ValueError):
        return None


def remove_last(table: str, directory: int | None = None) -> None:
    """Forget the range at the end: the table has it."""
    with contextlib.suppress(OSError):
        os.unlink(f"{table}{LAST}", dir_fd=directory)


def with_last(holes: list[Hole], last: Hole | None) -> list[Hole]:
    """The holes of a table, in order, and what it lacks of the one at the end."""
    covered = holes[-1].end if holes else 0
    if last is None or (last.end <= covered and holes):
        return holes
    return [*holes, last._replace(start=max(last.start, covered))]
