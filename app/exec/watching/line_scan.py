"""Lines of a log that a pattern matches: looked for in big blocks, in linear time, from an offset on."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.log.holes import holes_in, nth_newline
from shellback.exec.log.plain_text import decoded

re2: Final[Any] = _re2  # it says nothing of its types
PATTERN_CHARS: Final = 1000
BLOCK: Final = 1 << 20
LINE_BYTES: Final = 1 << 16
"""A line that is longer is looked at in pieces."""
LOOK_BYTES: Final = 16 << 20
"""What one look goes through at most."""
LINES: Final = 5
LINE_CHARS: Final = 400
"""Lines that a finding shows, and characters of each."""
COUNTED: Final = 1000
"""Matching lines that are counted between two hits; the others are as many or more."""

_ENDS_OF_TEXT: Final = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-[a-zA-Z]*m|\(\?[a-zA-Z]*-?[a-zA-Z]*U")
# Bounded, and never across a line end, so that lines are the same with and without them.
_SEQUENCES: Final = re.compile(
    rb"\x1b\[[0-?]{0,256}[ -/]{0,16}[@-~]?"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]{0,4}[0-~]?"
)


def compiled(pattern: str) -> Any:
    """A regular expression that is matched against single lines, in time linear in them.

    Raises:
        InvalidCommand: It does not compile, is too long, or says nothing about a line.
    """
    if not pattern or len(pattern) > PATTERN_CHARS:
        raise InvalidCommand(f"pattern has {len(pattern)} characters; it must have 1 to {PATTERN_CHARS}")
    if "\n" in pattern or "\r" in pattern or _ENDS_OF_TEXT.search(pattern):
        raise InvalidCommand(
            r"pattern is matched line by line: ^ and $ are the ends of a line; leave out \A, \z, line ends and (?-m)"
        )
    options = re2.Options()
    options.never_nl = True
    options.log_errors = False
    try:
        alone = pattern.encode()
        re2.compile(alone, options)
        regex = re2.compile(b"(?m:" + alone + b")", options)
    except UnicodeEncodeError:
        raise InvalidCommand("pattern holds a lone surrogate, which is not text; leave it out") from None
    except re2.error as error:
        reason = error.args[0]
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidCommand(
            f"pattern does not compile: {said}. The syntax is RE2's: no look-around, no back-references"
        ) from None
    if regex.search(b"") is not None:
        raise InvalidCommand("pattern matches an empty line and so everything; name what has to be in the line")
    return regex


@dataclass(slots=True)
class Found:
    """Matching lines: how many, the first few, from where to where; and how many bytes were gone before the look."""

    count: int = 0
    lines: list[str] = field(default_factory=list[str])
    start: int = 0
    end: int = 0
    dropped: int = 0

    def add(self, line: bytes) -> None:
        """Count one more line."""
        self.count += 1
        if len(self.lines) < LINES:
            text = decoded(line)
            self.lines.append(text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…")


class LineScan:
    """Goes through one log (`paths`: it, and the table of its holes) with one pattern; holds one block of it.

    `offset` may lie within a line. Then a match has to end behind it.
    """

    def __init__(self, regex: Any, paths: tuple[str, str], offset: int) -> None:
        self._regex = regex
        self._path, self._holes = paths
        self._old = offset
        self._told = False
        self._begun = False
        self.position: int = offset
        """The beginning of the first line that has not been looked at."""
        self.found = Found()
        """What there is to tell."""
        self.spent_s = 0.0
        """Seconds of a processor that the last look took."""

    def take(self) -> Found:
        """What there is to tell, which it then is."""
        found, self.found = self.found, Found()
        return found

    def look(self, upto: int, *, last: bool = False) -> bool:
        """Go on towards `upto`, at most `LOOK_BYTES`; whether that much was left. Blocks.

        With `last` a line that is not complete is looked at as if it were, once.
        """
        began = time.thread_time()
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            self.position = upto
            return False
        try:
            if not self._begun:
                self._begin(fd)
            most = self.position + LOOK_BYTES
            while self.position < min(upto, most) and self._block(fd, upto, last=last):
                pass
            return self.position >= most and self.position < upto
        finally:
            os.close(fd)
            self.spent_s = time.thread_time() - began

    def _begin(self, fd: int) -> None:
        """Go back to the beginning of the line that the offset lies in."""
        self._begun = True
        start = max(0, self._old - LINE_BYTES)
        before = os.pread(fd, self._old - start, start).replace(b"\r", b"\n")
        self.position = start + before.rfind(b"\n") + 1

    def _block(self, fd: int, upto: int, *, last: bool) -> bool:
        """Look at the complete lines of one block; whether there may be more."""
        position = self.position
        raw = os.pread(fd, min(BLOCK, upto - position), position)
        hole = next((one for one in holes_in(self._holes) if one.end > position), None)
        if hole is not None and hole.start <= position:
            self.found.dropped += min(hole.end, upto) - position
            self.position, self._told = min(hole.end, upto), False
            return True
        cut = hole is not None and hole.start < position + len(raw)
        if hole is not None and cut:
            raw = raw[: hole.start - position]
        text = raw.replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        if end == 0:
            if cut or len(raw) >= LINE_BYTES:
                end = len(raw)
            else:
                return bool(raw) and last and self._unfinished(text)
        first = 0
        if self._told:
            first = text.find(b"\n", 0, end) + 1
            self._told = not first
            first = first or end
        self._search(text, first, end)
        self.position = position + end
        return True

    def _unfinished(self, text: bytes) -> bool:
        """Look at a line that may go on: whether it matches already. Then it is not told a second time."""
        count = self.found.count
        if not self._told:
            self._search(text, 0, len(text))
        if self.found.count == count:
            return False
        self.position, self._told = self.position + len(text), True
        return True

    def _search(self, text: bytes, first: int, end: int) -> None:
        """Note the matching lines between two borders of lines of `text`, which is what begins at our position."""
        plain, at, fresh = text, self.position, self._old - self.position
        if b"\x1b" in text:
            text, at, fresh = text[first:end], at + first, fresh - first
            plain = _SEQUENCES.sub(b"", text)
            fresh = len(_SEQUENCES.sub(b"", text[:fresh])) if fresh > 0 else fresh
            first, end = 0, len(plain)
        position = first
        while position < end and self.found.count < COUNTED:
            match = self._regex.search(plain, position, end)
            if match is None:
                return
            if match.end() <= fresh:
                position = max(match.end(), match.start() + 1)
                continue
            start = plain.rfind(b"\n", first, match.start()) + 1 or first
            stop = plain.find(b"\n", match.end(), end)
            stop = end if stop < 0 else stop
            if plain is text:
                self._note(plain[start:stop], at + start, at + stop)
            else:
                self._note(plain[start:stop], *_line_in(text, plain.count(b"\n", 0, start), at))
            position = stop + 1

    def _note(self, line: bytes, start: int, end: int) -> None:
        if not self.found.count:
            self.found.start = start
        self.found.add(line)
        self.found.end = end


def _line_in(text: bytes, number: int, at: int) -> tuple[int, int]:
    """Where line `number` of a text that begins at `at` begins and ends; its escapes are in neither count."""
    start = nth_newline(text, number) + 1
    end = text.find(b"\n", start)
    return at + start, at + (len(text) if end < 0 else end)
