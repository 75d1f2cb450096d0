"""Standard output and error of the command line, with control characters made visible.

`guard` puts the writer below `print`, `click`, `logging`, `warnings` and traces, so no command can bypass it. Only
Shellback's own sequences (`drawn`), on a terminal, and the bytes of `logs --raw` (`bytes_out`) pass unchanged.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from typing import IO, Any, Final, Literal, NoReturn, TextIO, cast

from shellback.exec.core.display import FOLDED, escaped, folded, visible

# Random in each process, so that no other text can contain it.
_OURS: Final = f"\0{os.urandom(16).hex()}\0"
_STYLES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_ASCII: Final = codecs.lookup("ascii").name


class Shown(io.TextIOWrapper):
    """A standard stream that makes control characters visible. It gives no access to its bytes."""

    def __init__(self, stream: io.TextIOWrapper[Any]) -> None:
        self.underlying = _bytes_of(stream)
        plain = codecs.lookup(stream.encoding).name == _ASCII  # the encoding without a locale
        super().__init__(
            self.underlying,
            "utf-8" if plain else stream.encoding,
            "shown",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    @property
    def buffer(self) -> NoReturn:
        """Missing, because `click` and others would bypass this class with it."""
        raise AttributeError("bytes would be written as they are: use shellback.cli.output.bytes_out")

    def write(self, text: str | bytes, /) -> int:
        """Write text, made visible except for our own sequences; click writes completions as bytes.

        Raises:
            TypeError: For b"", with which click tests whether this is a stream of bytes.
        """
        if isinstance(text, bytes):
            if not text:
                raise TypeError("this stream takes text")
            text = text.decode("utf-8", "replace")
        parts = text.split(_OURS)
        parts[::2] = map(visible, parts[::2])
        super().write("".join(parts))
        return len(text)

    def writelines(self, lines: Any, /) -> None:
        """Write each line as `write` does."""
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """Flush. The stream below stays open, because others use it."""
        self.flush()


def guard() -> None:
    """Replace standard output and error by `Shown`. Idempotent."""
    codecs.register_error("shown", _shown)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)  # None if our parent has closed it
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Shown):
            stream.flush()
            setattr(sys, name, Shown(cast("io.TextIOWrapper[Any]", stream)))


def drawn(sequence: str) -> str:
    """A control sequence that passes to the terminal unchanged; "" if standard output is none.

    Call it with constants of Shellback only, never with text from elsewhere.
    """
    return f"{_OURS}{sequence}{_OURS}" if isinstance(sys.stdout, Shown) and sys.stdout.isatty() else ""


def styled(text: str, how: Literal["bold", "red", "green", "yellow"]) -> str:
    """The text in bold or a colour, on a terminal that has colours and without NO_COLOR."""
    from shellback.environment import plain_terminal

    begin = "" if plain_terminal() else drawn(f"\x1b[{_STYLES[how]}m")
    return begin + text + drawn("\x1b[0m") if begin else text


def dyed(text: str) -> str:
    """Text whose colours pass to the terminal unchanged; it has been made visible before it was coloured."""
    return _COLOUR.sub(lambda found: f"{_OURS}{found[0]}{_OURS}", text)


def painter() -> TextIO:
    """The terminal itself, for a library that draws cells and replaces control characters in them."""
    return open(sys.stdout.fileno(), "w", encoding="utf-8", errors="replace", newline="", closefd=False)


def undrawn(text: str) -> str:
    """The text without the sequences of `drawn`."""
    return "".join(text.split(_OURS)[::2])


def fitted(line: str, width: int | None) -> list[str]:
    """The line folded to rows of at most `width` columns, which keep the sequences of `drawn` in their places."""
    line = line if width is None else line.replace("\t", "    ")
    plain = undrawn(line)
    rows = folded([plain], width)
    if len(rows) == 1 or plain == line:
        return [line] if len(rows) == 1 else rows
    parts, at, places = line.split(_OURS), 0, list[tuple[int, str]]()
    for text, sequence in zip(parts[::2], parts[1::2], strict=False):
        at += len(text)
        places.append((at, sequence))
    margin, end = rows[1].index(FOLDED) + len(FOLDED), len(plain)
    for number in reversed(range(len(rows))):
        begin = margin if number else 0
        start = end - len(rows[number]) + begin
        while places and places[-1][0] >= start:
            place, sequence = places.pop()
            cut = place - start + begin
            rows[number] = f"{rows[number][:cut]}{_OURS}{sequence}{_OURS}{rows[number][cut:]}"
        end = start
    return rows


def bytes_out() -> IO[bytes]:
    """Standard output for unchanged bytes."""
    sys.stdout.flush()
    out = sys.stdout
    return out.underlying if isinstance(out, Shown) else cast("IO[bytes]", out.buffer)


def _bytes_of(stream: io.TextIOWrapper[Any]) -> IO[bytes]:
    try:
        return open(stream.fileno(), "wb", 0 if stream.write_through else -1, closefd=False)
    except OSError:  # a stream in memory
        return cast("IO[bytes]", stream.buffer)


def _shown(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(escaped(ord(char)) for char in error.object[error.start : error.end]), error.end
