"""What a person has typed in earlier chats: a file of the state directory that only its owner reads."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

FILE: Final = "chat_history"
MOST: Final = 1_000
"""Lines that are kept."""
LONGEST: Final = 10_000
"""Characters of a line that is kept."""
BYTES: Final = 1024 * 1024


class History:
    """The last lines, one as JSON in each line of the file; `hide` takes secrets out of a line before it is written.

    Chats may use it at the same time. What cannot be read or written is left out: no chat fails for its history.
    """

    def __init__(self, home: Path, hide: Callable[[str], str]) -> None:
        self._path = home / FILE
        self._hide = hide
        self._last = ""

    def lines(self) -> list[str]:
        """The lines, the oldest first. A file that has become too long is cut."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - BYTES))
                written = file.read(BYTES).splitlines()
        except OSError:
            return []
        if size > BYTES or len(written) > 2 * MOST:
            written = written[1:][-MOST:]
            self._replace(written)
        return [line for one in written[-MOST:] if (line := _read(one))]

    def add(self, line: str) -> None:
        """Keep a line, unless it is the one before again, or too long."""
        if not line.strip() or line == self._last or len(line) > LONGEST:
            return
        self._last = line
        data = json.dumps(self._hide(line)).encode() + b"\n"
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)

    def _replace(self, written: list[bytes]) -> None:
        """Keep only these lines; one that another chat adds at this moment may be lost."""
        draft = self._path.with_name(f".{FILE}.{os.getpid()}")
        with contextlib.suppress(OSError):
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(b"".join(line + b"\n" for line in written))
            draft.replace(self._path)


def _read(written: bytes) -> str:
    """A line of the file; "" if it is none, as after a crash in the middle."""
    try:
        found = json.loads(written)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""
