"""Removing a file, or a directory with all that is in it. Blocks."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import Final

from shellback.exec.core.sight.place import Place

SECONDS: Final = 120.0
"""Of one removal: a command may fill a directory faster than it is emptied."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove(place: Place, *, recursive: bool) -> int:
    """Take away what stands at `place`, a symlink itself; returns how many names that were.

    Raises:
        FileNotFoundError: Nothing stands there.
        OSError: It may not be removed, or it is a directory with something in it and not `recursive`. What of a
            directory was removed by then stays removed.
    """
    if not stat.S_ISDIR(place.there.st_mode):
        os.unlink(place.name, dir_fd=place.directory)
        return 1
    removed = 0
    if recursive:
        removed = _emptied(place)
    os.rmdir(place.name, dir_fd=place.directory)
    return removed + 1


def _emptied(place: Place) -> int:
    # Two descriptors at any depth: the way back is `..`, which has to be the directory that we came from.
    removed = 0
    ends = time.monotonic() + SECONDS
    here = os.open(place.name, _OPEN, dir_fd=place.directory)
    way: list[tuple[str, tuple[int, int]]] = []
    try:
        while True:
            if time.monotonic() > ends:
                raise OSError(errno.ETIMEDOUT, f"not removed as a whole within {SECONDS:g} s")
            below, count = _files_removed(here)
            removed += count
            if below is not None:
                status = os.fstat(here)
                inner = os.open(below, _OPEN, dir_fd=here)
                os.close(here)
                here = inner
                way.append((below, (status.st_dev, status.st_ino)))
            elif way:
                name, identity = way.pop()
                outer = os.open("..", _OPEN, dir_fd=here)
                os.close(here)
                here = outer
                status = os.fstat(here)
                if (status.st_dev, status.st_ino) != identity:
                    raise OSError(errno.EAGAIN, "a directory was moved away while it was removed; look, and try again")
                os.rmdir(name, dir_fd=here)
                removed += 1
            else:
                return removed
    finally:
        os.close(here)


def _files_removed(directory: int) -> tuple[str | None, int]:
    """Remove all in it that is no directory; a directory that is left, and how many names are gone."""
    removed = 0
    with os.scandir(directory) as entries:
        for found in entries:
            if found.is_dir(follow_symlinks=False):
                return found.name, removed
            try:
                os.unlink(found.name, dir_fd=directory)
            except FileNotFoundError:
                continue
            removed += 1
    return None, removed
