"""Standard output and error of the command line: whatever is written there is made visible on its way.

A command cannot forget it: `guard` puts the writer below `print`, `click`, `logging`, `warnings` and traces. Only what
Shellback draws itself (`drawn`), on a terminal, and the bytes that `logs --raw` is for (`bytes_out`) pass as they are.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import IO, Any, Final, Literal, NoReturn, cast

from shellback.exec.core.display import escaped, visible

# Another one in each process, so that no text from elsewhere can have it.
_OURS: Final = f"\0{os.urandom(16).hex()}\0"
_STYLES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
_ASCII: Final = codecs.lookup("ascii").name


class Shown(io.TextIOWrapper):
    """A standard stream that makes visible what would make a terminal act. Its bytes cannot be had from it."""

    def __init__(self, stream: io.TextIOWrapper[Any]) -> None:
        self.underlying = _bytes_of(stream)
        plain = codecs.lookup(stream.encoding).name == _ASCII  # what a program says of no locale at all
        super().__init__(
            self.underlying,
            "utf-8" if plain else stream.encoding,
            "shown",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    @property
    def buffer(self) -> NoReturn:
        """Not there: `click` and others would write past what is done here."""
        raise AttributeError("bytes would be written as they are: use shellback.cli.output.bytes_out")

    def write(self, text: str | bytes, /) -> int:
        """Write text; what is not ours, made visible. click gives completions as bytes.

        Raises:
            TypeError: For no bytes at all, by which click asks whether this is a stream of bytes.
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
        """Write each of them as `write` does."""
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """Write what is left. The stream itself stays open: it was somebody else's before."""
        self.flush()


def guard() -> None:
    """Put standard output and error behind it; again is fine."""
    codecs.register_error("shown", _shown)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)  # None where whoever started us has closed it
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Shown):
            stream.flush()
            setattr(sys, name, Shown(cast("io.TextIOWrapper[Any]", stream)))


def drawn(sequence: str) -> str:
    """A control sequence of Shellback's own, to be part of what is written to a terminal; "" where there is none.

    Never give it anything that came from elsewhere.
    """
    return f"{_OURS}{sequence}{_OURS}" if isinstance(sys.stdout, Shown) and sys.stdout.isatty() else ""


def styled(text: str, how: Literal["bold", "red", "green", "yellow"]) -> str:
    """The text in bold or a colour, on a terminal that has them and where NO_COLOR does not ask for none."""
    from shellback.settings import plain_terminal

    begin = "" if plain_terminal() else drawn(f"\x1b[{_STYLES[how]}m")
    return begin + text + drawn("\x1b[0m") if begin else text


def undrawn(text: str) -> str:
    """The text without what `drawn` has put into it."""
    return "".join(text.split(_OURS)[::2])


def bytes_out() -> IO[bytes]:
    """Standard output for bytes that are wanted as they are."""
    sys.stdout.flush()
    out = sys.stdout
    return out.underlying if isinstance(out, Shown) else cast("IO[bytes]", out.buffer)


def _bytes_of(stream: io.TextIOWrapper[Any]) -> IO[bytes]:
    try:
        return open(stream.fileno(), "wb", 0 if stream.write_through else -1, closefd=False)
    except OSError:  # no file at all, but memory
        return cast("IO[bytes]", stream.buffer)


def _shown(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(escaped(ord(char)) for char in error.object[error.start : error.end]), error.end
