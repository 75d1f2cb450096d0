"""Reads, writes and removes the file or directory at a `Place`. Blocks; opens regular files only."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable
from typing import Final, Literal

from shellback.exec.core.errors import ExecError
from shellback.exec.core.sight.place import Place, made, opened, regular
from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing

READ_MOST: Final = 64 * 1024 * 1024
_LEAST: Final = 4096

NOTHING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors that mean that nothing exists at a path."""

Mode = Literal["overwrite", "create", "append"]


class FileTooLarge(ExecError, OSError):
    """Raised when a file or directory is larger than one read allows; `size` and `limit` are in bytes or entries."""

    def __init__(self, path: str, size: int, limit: int, remedy: str) -> None:
        super().__init__(errno.EFBIG, f"{size} of at most {limit}; {remedy}", path)
        self.size = size
        self.limit = limit


def read(place: Place, look: Callable[[int], object] = lambda _: None) -> bytes:
    """All bytes of the file at `place`; `look` is called first, with the descriptor that they are read from.

    Raises:
        FileNotFoundError: Nothing stands there.
        FileTooLarge: It has more than `READ_MOST` bytes.
        OSError: As `opened`.
    """
    place.there  # noqa: B018 - raises where nothing is
    parts: list[bytes] = []
    with closing(opened(place.name, place.directory)) as descriptor:
        look(descriptor)
        size, done = os.fstat(descriptor).st_size, 0
        # A buffer that is much larger than the file shrinks by a copy, which takes longer than the reading.
        while size <= READ_MOST and (part := os.pread(descriptor, max(size - done + 1, _LEAST), done)):
            parts.append(part)
            done += len(part)
            size = max(size, done)
    if size > READ_MOST:
        remedy = "read a part of it with a command, such as head -c or tail -c"
        raise FileTooLarge("/".join(place.names), size, READ_MOST, remedy)
    return b"".join(parts)


def looked_at(place: Place) -> contextlib.AbstractContextManager[int | None]:
    """A descriptor of the file or directory at `place`; None if nothing exists, an `O_PATH` descriptor for the rest.

    Raises:
        OSError: It may not be read.
    """
    if place.status is None:
        return contextlib.nullcontext()
    if stat.S_ISREG(place.status.st_mode):
        return closing(opened(place.name, place.directory))
    flags = os.O_RDONLY | os.O_DIRECTORY if stat.S_ISDIR(place.status.st_mode) else os.O_PATH
    return closing(os.open(place.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory))


def write(place: Place, data: bytes, mode: Mode) -> int:
    """Write into the file itself, which is made where there is none; returns its size.

    Raises:
        FileExistsError: `mode` is `create`, and something is there.
        OSError: As `opened`; on a full disk a part may be written.
    """
    flags = os.O_WRONLY | (os.O_APPEND if mode == "append" else 0)
    if place.status is None:
        descriptor = made(place.name, place.directory, flags | (os.O_EXCL if mode == "create" else 0))
    elif mode == "create":
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    else:
        descriptor = opened(place.name, place.directory, flags)
    with closing(descriptor):
        if mode == "overwrite" and place.status is not None:
            os.ftruncate(descriptor, 0)
        linux.write_all(descriptor, data)
        return os.fstat(descriptor).st_size


def make(place: Place) -> bool:
    """Make a directory; False if one is there.

    Raises:
        FileExistsError: Something else is there.
        OSError: It may not be made.
    """
    if place.status is None:
        try:
            os.mkdir(place.name, 0o777, dir_fd=place.directory)
        except FileExistsError:
            place.again()
        else:
            return True
    if not stat.S_ISDIR(place.there.st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    return False


def replace(place: Place, data: bytes, mode: Mode) -> int:
    """Put a new file, on disk with all its bytes, in the place of the old one; returns its size.

    Raises:
        FileExistsError: `mode` is `create`, and something is there.
        PermissionError: The old file may not be written, or a new one could not have its owner and group.
        OSError: As `opened`. The old file is as it was, and nothing else is left.
    """
    if place.name == ".":
        regular(place.there)
    kept: os.stat_result | None = None
    if place.status is not None:
        if mode == "create":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        with closing(opened(place.name, place.directory, os.O_WRONLY)) as old:  # the kernel says whether it may be
            kept = os.fstat(old)
    name = f".shellback-{secrets.token_hex(8)}.tmp"
    descriptor = made(name, place.directory, os.O_WRONLY | os.O_EXCL)
    try:
        with closing(descriptor):
            if kept is not None:
                _like(descriptor, kept)
            linux.write_all(descriptor, data)
            os.fsync(descriptor)
        if mode == "create":
            os.link(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory, follow_symlinks=False)
            os.unlink(name, dir_fd=place.directory)
        else:
            os.rename(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=place.directory)
        raise
    _settle(place)
    return len(data)


def _like(descriptor: int, kept: os.stat_result) -> None:
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (kept.st_uid, kept.st_gid):
        try:
            os.fchown(descriptor, kept.st_uid, kept.st_gid)
        except PermissionError:
            raise PermissionError(
                errno.EPERM,
                f"it belongs to user {kept.st_uid}, group {kept.st_gid}, which a new file in its place would not; "
                "write it without `atomic`",
            ) from None
    os.fchmod(descriptor, stat.S_IMODE(kept.st_mode))


def _settle(place: Place) -> None:
    """Sync the directory to disk; the kernel syncs a directory that we may write but not read."""
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.directory)
    except PermissionError:
        return
    with closing(directory):
        os.fsync(directory)


SECONDS: Final = 120.0
"""Limit of one removal: a command may fill a directory faster than we empty it."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove(place: Place) -> int:
    """Remove the file, symlink or directory tree at `place`; returns the number of names removed.

    Raises:
        FileNotFoundError: Nothing stands there.
        OSError: It may not be removed. Entries of a directory that were removed before stay removed.
    """
    if not stat.S_ISDIR(place.there.st_mode):
        os.unlink(place.name, dir_fd=place.directory)
        return 1
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
    """Remove entries up to the first directory; returns its name (None if there is none) and the number removed."""
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
