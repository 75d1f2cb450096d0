"""The stored output of a session, also while it runs: what a client reads of it, and where that goes."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shellback.exec.core.model import Session
from shellback.exec.log.mask import UNMASKED
from shellback.exec.log.output import dropped_text, extent, hidden, line_start, newlines_in, pieces, wide_of
from shellback.exec.log.plain_text import masked
from shellback.exec.supervisor.records.times import offset_since
from shellback.exec.wire import layout
from shellback.exec.wire.gaps import Hole
from shellback.work.errors import Deleted, InvalidRequest

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place

CHUNK: Final = 256 * 1024


class Shown:
    """Output as text, with tokens masked unless it is to be `revealed`, and with each hole as a line."""

    def __init__(self, *, revealed: bool = False) -> None:
        self._masked = str if revealed else masked
        # A piece may end inside a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        self.say(self._masked(self._decoder.decode(data)))

    def dropped(self, holes: list[Hole]) -> None:
        self.say(f"\n[{dropped_text(holes)}]\n")

    def say(self, text: str) -> None:
        """Show a piece."""
        raise NotImplementedError


class Collected(Shown):
    """What a terminal showed, until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []

    def say(self, text: str) -> None:
        self._parts.append(text)

    def dropped(self, holes: list[Hole]) -> None:
        self.say(f"\r\n[{dropped_text(holes)}]\r\n")

    def take(self) -> bytes:
        """What was collected since the last call."""
        data = "".join(self._parts).encode()
        self._parts.clear()
        return data


class Kept(Shown):
    """Text and counts, for a program."""

    def __init__(self, *, revealed: bool = False) -> None:
        super().__init__(revealed=revealed)
        self._parts: list[str] = []
        self._dropped: list[Hole] = []

    def say(self, text: str) -> None:
        self._parts.append(text)

    def dropped(self, holes: list[Hole]) -> None:
        self._dropped += holes

    def unfinished(self) -> int:
        """How many bytes at the end are the beginning of a character, of which the rest is not there yet."""
        return len(self._decoder.getstate()[0])

    def finish(self) -> None:
        """Show such bytes too, because no more will come."""
        self.say(self._decoder.decode(b"", final=True))

    def facts(self) -> dict[str, object]:
        count = sum(hole.end - hole.start for hole in self._dropped)
        text = dropped_text(self._dropped) if any(hole.errno or hole.uncounted for hole in self._dropped) else None
        return {"text": "".join(self._parts), "bytes_dropped_in_text": count, **({"note": text} if text else {})}


class SessionLog:
    """The file of one stream, with its holes. Bytes are read before the table of holes, which is written first.

    Secrets are hidden in what is copied, unless it is `revealed`. Raises:
        Deleted: It is no longer kept.
        InvalidRequest: The session has one log for both streams.
    """

    def __init__(self, where: Place, session: Session, *, err: bool, revealed: bool = False) -> None:
        directory = Path(where.home) / layout.SESSIONS / session.id
        if not directory.is_dir() and not session.live:
            hours = where.settings.log_age_hours
            raise Deleted(f"the log of {session.id} was deleted: logs are kept for {hours:g} hours (LOG_AGE_HOURS)")
        if err and not session.separate_stderr:
            raise InvalidRequest(f"session {session.id} has one log for both streams: omit --stderr")
        self.path = str(directory / (layout.ERR if err else layout.LOG))
        self._holes = str(directory / (layout.ERR_HOLES if err else layout.HOLES))
        self._end, self._err = session.end, err
        self._mask = UNMASKED if revealed else where.mask

    def size(self) -> int:
        """How many bytes were printed so far, with those that were dropped."""
        try:
            with open(self.path, "rb") as file:
                return extent(file.fileno(), self._holes, self._end, err=self._err)[0]
        except FileNotFoundError:
            return 0

    def since(self, moment: float) -> int:
        """The offset from which all output since `moment` is read."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return 0
        # The clock of the file system is the coarse one of the kernel.
        return found.st_size if found.st_mtime + 0.1 < moment else offset_since(self.path + layout.TIMES, moment)

    def start_of(self, lines: int | None) -> int:
        """The offset at which the last `lines` lines begin; None means all lines."""
        if lines is None:
            return 0
        try:
            with open(self.path, "rb") as file:
                size, holes = extent(file.fileno(), self._holes, self._end, err=self._err)
                total = newlines_in(file.fileno(), 0, size, holes)
                file.seek(max(0, size - 1))
                total += file.read(1) not in {b"", b"\n"}
                first = max(0, total - lines)
                return size if lines == 0 else line_start(file.fileno(), size, holes, first, in_hole="start")
        except FileNotFoundError:
            return 0

    def copy(self, offset: int, to: Shown, most: int | None = None) -> int:
        """Write the output from `offset` on, at most `most` bytes of it, and return the offset of its end."""
        dropped: list[Hole] = []
        self._mask.refresh()  # who follows a log reads for long

        def told() -> None:
            if dropped:
                to.dropped(dropped)
                dropped.clear()

        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed by the `with` below; missing is no error
        except FileNotFoundError:
            return offset
        with file:
            printed, _ = extent(file.fileno(), self._holes, self._end, err=self._err)
            size = printed if most is None else min(printed, offset + most)
            while offset < size:
                end = min(offset + CHUNK, size)
                wide = wide_of(file.fileno(), offset, end, self._mask)
                printed, holes = extent(file.fileno(), self._holes, self._end, err=self._err)
                for kind, start, stop, _ in pieces(offset, end, holes):
                    if kind == "hole":
                        of = next(hole for hole in holes if hole.start <= start < hole.end)
                        dropped.append(of._replace(start=start, end=stop))
                        continue
                    told()
                    to.write(hidden(self._mask, wide, start, stop, holes, printed).data)
                offset = end
        told()
        return offset
