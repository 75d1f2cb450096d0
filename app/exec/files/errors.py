"""What a file operation raises beside the errors that Python has for it."""

from __future__ import annotations

import errno
from typing import Final

from shellback.exec.core.errors import ExecError, InvalidCommand

_LINES_SHOWN: Final = 20


class FileTooLarge(ExecError, OSError):
    """Raised when more would have to be read than is ever read at once; `size` and `limit` in bytes or entries."""

    def __init__(self, path: str, size: int, limit: int, remedy: str) -> None:
        super().__init__(errno.EFBIG, f"{size} of at most {limit}; {remedy}", path)
        self.size = size
        self.limit = limit


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
