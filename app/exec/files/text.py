"""Files as text: UTF-8, lines that end with LF or CRLF, with a byte order mark or without, all kept as they are."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import InvalidCommand

SNIFFED: Final = 8192
"""Bytes at the beginning in which a NUL makes a file binary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Some lines of a file."""

    path: str
    """Of the file itself, as commands see it: without symlinks."""
    text: str
    """The lines with their ends; without the byte order mark."""
    first: int
    """The number of the first line, counted from 1."""
    lines: int
    total: int
    """How many lines the file has."""
    size: int
    """Bytes of the file."""
    cut: bool
    """The last line is not whole: it alone was longer than what may be returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What was replaced in a file."""

    path: str
    """Of the file itself, as commands see it: without symlinks."""
    count: int
    lines: tuple[int, ...]
    """Numbers of the lines in which what was replaced began, counted from 1, as they were before."""
    size: int
    """Bytes of the file now."""


def decoded(path: str, data: bytes) -> str:
    """The text of a file, with its byte order mark if it has one.

    Raises:
        BinaryFile: It has a NUL near its beginning, or is not UTF-8.
    """
    if b"\0" in data[:SNIFFED]:
        raise BinaryFile(path, len(data), "it holds NUL bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BinaryFile(path, len(data), f"it is not UTF-8 from byte {error.start} on") from None


def lines_of(path: str, data: bytes, offset: int, limit: int, most: int) -> Text:
    """At most `limit` lines from line `offset` on (0 is the first), and at most `most` characters.

    Raises:
        BinaryFile: As `decoded`.
    """
    text = decoded(path, data).removeprefix(codecs.BOM_UTF8.decode())
    total = text.count("\n") + (not text.endswith("\n") and text != "")
    start = _line_start(text, offset)
    end = min(_line_start(text, limit, start), len(text))
    cut = False
    if end - start > most:
        whole = text.rfind("\n", start, start + most) + 1
        cut = whole <= start
        end = start + most if cut else whole
    shown = text[start:end]
    return Text(
        path=path,
        text=shown,
        first=min(offset, total) + 1,
        lines=shown.count("\n") + (not shown.endswith("\n") and shown != ""),
        total=total,
        size=len(data),
        cut=cut,
    )


def replaced(path: str, data: bytes, old: str, new: str, *, every: bool) -> tuple[bytes, tuple[int, ...]]:
    """The file with `old` replaced by `new`, and the numbers of the lines where it was.

    In a file in which all lines end with CRLF, texts with LF only match too, and what is put in comes out with CRLF.

    Raises:
        BinaryFile: As `decoded`.
        InvalidCommand: `old` is empty or the same as `new`; TextAbsent, TextNotUnique (without `every`).
    """
    if not old:
        raise InvalidCommand("the text to replace is empty; write the file as a whole instead")
    if old == new:
        raise InvalidCommand("both texts are the same, so nothing would change")
    text = decoded(path, data)
    if "\r\n" in text and text.count("\n") == text.count("\r\n") and "\r" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    found = _line_numbers(text, old)
    if not found:
        raise TextAbsent(path)
    if len(found) > 1 and not every:
        raise TextNotUnique(path, found)
    try:
        return text.replace(old, new).encode(), found
    except UnicodeEncodeError:
        raise InvalidCommand("the new text has characters that UTF-8 cannot write (lone surrogates)") from None


def _line_start(text: str, lines: int, start: int = 0) -> int:
    for _ in range(lines):
        start = text.find("\n", start) + 1
        if start == 0:
            return len(text)
    return start


def _line_numbers(text: str, old: str) -> tuple[int, ...]:
    numbers: list[int] = []
    line, seen = 1, 0
    at = text.find(old)
    while at >= 0:
        line += text.count("\n", seen, at)
        numbers.append(line)
        seen = at
        at = text.find(old, at + len(old))
    return tuple(numbers)


_LINES_SHOWN: Final = 20


class BinaryFile(InvalidCommand):
    """Raised when a file was to be taken as text and is none; `size` in bytes."""

    def __init__(self, path: str, size: int, why: str) -> None:
        super().__init__(f"{path} is binary ({size} bytes, {why}); look at it with a command such as `file` or `xxd`")
        self.path = path
        self.size = size


class TextAbsent(InvalidCommand):
    """Raised when the text to replace is not in the file; nothing was written."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the text to replace is not in {path}; read the file and give the text exactly as it stands there, "
            "with its spaces and line ends"
        )
        self.path = path


class TextNotUnique(InvalidCommand):
    """Raised when the text to replace is in the file more than once; nothing was written."""

    def __init__(self, path: str, lines: tuple[int, ...]) -> None:
        shown = ", ".join(map(str, lines[:_LINES_SHOWN])) + (", ..." if len(lines) > _LINES_SHOWN else "")
        super().__init__(
            f"the text to replace is in {path} {len(lines)} times (lines {shown}); "
            "give more of what is around the one that is meant, or replace every one"
        )
        self.path = path
        self.count = len(lines)
        self.lines = lines
