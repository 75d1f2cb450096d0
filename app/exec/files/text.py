"""Files as UTF-8 text; line ends (LF or CRLF) and the byte order mark are kept."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import InvalidCommand

SNIFFED: Final = 8192
"""Bytes at the beginning in which a NUL makes a file binary."""
_LINES_SHOWN: Final = 20


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


def decoded(path: str, data: bytes) -> str:
    """The text of a file, with its byte order mark if it has one.

    Raises:
        InvalidCommand: It has a NUL near its beginning, or is not UTF-8.
    """
    if b"\0" in data[:SNIFFED]:
        raise _binary(path, len(data), "it holds NUL bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _binary(path, len(data), f"it is not UTF-8 from byte {error.start} on") from None


def lines_of(path: str, data: bytes, offset: int, limit: int, most: int) -> Text:
    """At most `limit` lines from line `offset` on (0 is the first), and at most `most` characters; as `decoded`."""
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
        InvalidCommand: As `decoded`; `old` is empty, the same as `new`, not there, or there twice without `every`.
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
        raise InvalidCommand(
            f"the text to replace is not in {path}; read the file and give the text exactly as it stands there, "
            "with its spaces and line ends"
        )
    if len(found) > 1 and not every:
        shown = ", ".join(map(str, found[:_LINES_SHOWN])) + (", ..." if len(found) > _LINES_SHOWN else "")
        raise InvalidCommand(
            f"the text to replace is in {path} {len(found)} times (lines {shown}); "
            "give more of what is around the one that is meant, or replace every one"
        )
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


def _binary(path: str, size: int, why: str) -> InvalidCommand:
    return InvalidCommand(f"{path} is binary ({size} bytes, {why}); look at it with a command such as `file` or `xxd`")
