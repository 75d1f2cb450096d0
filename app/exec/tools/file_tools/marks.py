"""What stands at a path, so that a change can be refused where something else stands there by then. Blocks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import InvalidCommand

MARKED_BYTES: Final = 16 << 20
"""Up to this size the content of a file is bound; above it, size and time of its last change."""
ENTRIES: Final = 10_000
"""So many entries of a directory are bound one by one."""
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What stands at a path: `mark` differs where something else does, and is empty for nothing.

    `kind` is `nothing`, `file`, `directory` or `other`; `size` in bytes; `entries` are those below a directory, `more`
    than were counted. `data` is the content of a file, where it was asked for.
    """

    mark: str = ""
    kind: str = "nothing"
    size: int = 0
    entries: int = 0
    more: bool = False
    data: bytes | None = None


NOTHING: Final = Mark()


def marked(fd: int | None, *, data_most: int = 0) -> Mark:
    """The mark of what a descriptor is of, with the content of a file of at most `data_most` bytes. Blocks.

    Raises:
        OSError: It cannot be read.
    """
    if fd is None:
        return NOTHING
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        return _directory(fd, status)
    if not stat.S_ISREG(status.st_mode):
        return Mark(mark=f"other:{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}", kind="other")
    size = status.st_size
    if size > max(MARKED_BYTES, data_most):
        return Mark(mark=f"file:{status.st_dev}:{status.st_ino}:{size}:{status.st_mtime_ns}", kind="file", size=size)
    digest, parts, at = hashlib.sha256(), list[bytes](), 0
    while chunk := os.pread(fd, _CHUNK, at):
        at += len(chunk)
        digest.update(chunk)
        if at <= data_most:
            parts.append(chunk)
        if at > max(MARKED_BYTES, data_most) + _CHUNK:
            raise InvalidCommand("the file grows while it is read; try again when nothing writes to it")
    data = b"".join(parts) if at <= data_most else None
    return Mark(mark=f"sha256:{digest.hexdigest()}", kind="file", size=at, data=data)


def named(fd: int | None) -> Mark:
    """What kind of thing a descriptor is of, unmarked."""
    if fd is None:
        return NOTHING
    mode = os.fstat(fd).st_mode
    return Mark(kind="directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other")


def _directory(fd: int, status: os.stat_result) -> Mark:
    digest = hashlib.sha256()
    entries = size = 0
    more = False
    for place, name, at in _below(fd):
        if more := entries == ENTRIES:
            break
        entries += 1
        with contextlib.suppress(FileNotFoundError):
            one = os.stat(name, dir_fd=at, follow_symlinks=False)
            plain = not stat.S_ISDIR(one.st_mode)
            size += one.st_size if plain else 0
            row = (place, name, one.st_mode, one.st_ino, one.st_size if plain else 0, one.st_mtime_ns if plain else 0)
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
    mark = f"directory:{status.st_dev}:{status.st_ino}:{digest.hexdigest()}"
    return Mark(mark=mark, kind="directory", size=size, entries=entries, more=more)


def _below(fd: int) -> Iterator[tuple[str, str, int]]:
    for place, directories, files, at in os.fwalk(".", dir_fd=fd, follow_symlinks=False):
        directories.sort()
        for name in sorted([*directories, *files]):
            yield place, name, at
