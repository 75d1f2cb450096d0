"""Reading the marks of a shell out of its log, each byte once, a piece at a time."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from shellback.exec.log.output import OutputLog
from shellback.exec.persistent.marks import LONGEST, OPEN, Mark, found_in

_TAIL: Final = 4096
_PIECE: Final = 64 * 1024
_LARGE: Final = 4 * 1024 * 1024
"""Bytes that are read at once; what is more than a small piece is read in a thread."""
_OPENED: Final = re.compile(rb"\x1b(?:\]7770;[^\x07\x1b]{0,%d}|\]?7{0,3}0?)?\Z" % LONGEST)


class Reader:
    """Marks from an offset on. `at` is what has been read; an unfinished mark is read again."""

    def __init__(self, log: OutputLog, at: int) -> None:
        self._log = log
        self.at = at
        self.size = at
        """The end of what has been looked at, an unfinished mark included."""

    async def marks(self) -> list[Mark]:
        """The marks that have come since, in order. Takes a thread where much has come."""
        found: list[Mark] = []
        end = self._log.size()
        while self.size < end:
            if end - self.at <= _PIECE:
                found += self._piece(_PIECE)
            else:
                found += await asyncio.to_thread(self._piece, _LARGE)
        return found

    def _piece(self, most: int) -> list[Mark]:
        data = self._log.piece(self.at, most)
        self.size = self.at + len(data)
        found = found_in(data, self.at) if OPEN in data else []
        rest = found[-1].end - self.at if found else 0
        unfinished = _OPENED.search(data, max(rest, len(data) - LONGEST))
        self.at += len(data) if unfinished is None else unfinished.start()
        return found


def before_unfinished(log: OutputLog, end: int) -> int:
    """Where the log can be read to, at most `end`: not into a mark whose rest has yet to come. Blocks shortly."""
    start = max(0, end - LONGEST)
    unfinished = _OPENED.search(log.piece(start, end - start))
    return end if unfinished is None else start + unfinished.start()


def last_mark(log: OutputLog, kinds: str) -> Mark | None:
    """The last mark of one of these kinds, of the last MiB of a log; None where there is none. Blocks shortly."""
    end = log.size()
    for most in (_TAIL, _PIECE, 1024 * 1024):
        start = max(0, end - most)
        data = log.piece(start, most)
        at = len(data)
        while (at := data.rfind(OPEN, 0, at)) >= 0:
            for mark in found_in(data[at : at + 2 * LONGEST], start + at)[:1]:
                if mark.start == start + at and mark.kind in kinds:
                    return mark
        if start == 0:
            break
    return None


async def mark_named(log: OutputLog, name: str) -> Mark | None:
    """The first mark with this name, wherever in the log it is; None where there is none."""
    reader = Reader(log, 0)
    while reader.size < log.size():
        for mark in await reader.marks():
            if mark.name == name:
                return mark
    return None
