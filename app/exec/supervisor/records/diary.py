"""The supervisor's log: one line for each happening, bounded; never an argument, a value or a secret."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from shellback.exec.wire import linux

MAX_BYTES: Final = 1 << 20


def plain(text: str) -> str:
    """The text on one line of visible ASCII; other characters are shown as Python escapes."""
    return "".join(char if char.isascii() and char.isprintable() else ascii(char)[1:-1] for char in text)


class Diary:
    """Appends lines; at 1 MiB the file is renamed to `<name>.1` and begun anew."""

    def __init__(self, path: str, who: str) -> None:
        self._path = path
        self._who = who

    def note(self, what: str) -> None:
        """Append one line, if the file can be written."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = plain(f"{stamp} {self._who}[{os.getpid()}] {what}")[:1000] + "\n"
        with (
            contextlib.suppress(OSError),
            linux.opened(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as fd,
        ):
            if os.fstat(fd).st_size >= MAX_BYTES:
                os.rename(self._path, self._path + ".1")
            os.write(fd, line.encode())
