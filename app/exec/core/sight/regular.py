"""Opening a regular file whose place was found. Nothing else is ever opened to be read: no pipe, device or directory.

What is there is first opened by its name alone (`O_PATH`), which neither waits nor tells a device anything; only what
then turns out to be a regular file is opened for its bytes, through that very descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from typing import Final

from shellback.exec.core.sight.place import Place

_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NAMED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1 << 18


@contextlib.contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Close a descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def regular(status: os.stat_result) -> None:
    """Pass for a regular file.

    Raises:
        IsADirectoryError: It is a directory.
        OSError: ENOTSUP: a pipe, a socket or a device, which could block whoever opens it.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENOTSUP, "not a regular file")


def opened(name: str, directory: int | None, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file `name`, which is there and is no symlink; never waits.

    Raises:
        OSError: As `regular`, and what the kernel says.
    """
    with closing(os.open(name, _NAMED, dir_fd=directory)) as named:
        regular(os.fstat(named))
        return os.open(f"/proc/self/fd/{named}", flags | (_SAFE & ~os.O_NOFOLLOW))


def made(name: str, directory: int, flags: int, mode: int = 0o666) -> int:
    """A descriptor of the file `name`, which is made where nothing is; never through a symlink, and never waits.

    Raises:
        OSError: As `regular`, and what the kernel says.
    """
    descriptor = os.open(name, flags | os.O_CREAT | _SAFE, mode, dir_fd=directory)
    try:
        regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def content(place: Place, most: int) -> bytes:
    """The first `most` bytes of the file at `place`.

    Raises:
        FileNotFoundError: Nothing stands there.
        OSError: As `opened`.
    """
    place.there  # noqa: B018 - raises where nothing is
    return head(place.name, most, place.directory)


def head(name: str, most: int, directory: int | None = None) -> bytes:
    """The first `most` bytes of the regular file `name`, which is no symlink.

    Raises:
        OSError: As `opened`.
    """
    with closing(opened(name, directory)) as descriptor:
        parts, left = list[bytes](), most
        while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def empty(name: str) -> bool:
    """Whether there is nothing in the directory `name`, which is no symlink.

    Raises:
        OSError: It is none, or may not be read.
    """
    with closing(os.open(name, _SAFE | os.O_RDONLY | os.O_DIRECTORY)) as descriptor, os.scandir(descriptor) as entries:
        return next(entries, None) is None
