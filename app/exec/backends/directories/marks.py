"""Locks a directory of a conversation, and remembers that it was made."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.wire import linux

_MADE: Final = b"made\n"
_GOES: Final = b"goes\n"
"""As long as the other, and written in its place."""
_PLACE: Final = "directories"


@dataclass(slots=True)
class Mark:
    """The mark of a directory, whose lock is held by `descriptor`."""

    descriptor: int
    made: bool

    def note(self) -> None:
        """Note that the directory was made. Raises OSError."""
        if not self.made:
            os.pwrite(self.descriptor, _MADE, 0)
            self.made = True

    def forget(self) -> None:
        """Forget it before it is removed: it may be made again, also after a crash. Raises OSError."""
        if self.made:
            os.pwrite(self.descriptor, _GOES, 0)
            self.made = False


def made(state: Path, directory: Path) -> bool:
    """Whether it is noted in a state directory that a directory was made, and not that it has gone."""
    try:
        return _file(state, directory).stat().st_size > 0
    except OSError:
        return False


@contextmanager
def marked(state: Path, directory: Path) -> Generator[Mark]:
    """Exclude others who make or remove a directory; waits for them. A mark without a note leaves no file behind.

    Raises:
        OSError: The state directory cannot be written.
    """
    file = _file(state, directory)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    while True:
        with linux.opened(file, os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:
                continue  # whoever held it has removed the file
            mark = Mark(descriptor, os.pread(descriptor, len(_MADE), 0) == _MADE)
            try:
                yield mark
            finally:
                if not mark.made:
                    file.unlink()
            return


def _file(state: Path, directory: Path) -> Path:
    return state / _PLACE / hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]
