"""Marks of files and directories, to notice changes between look and act. Everything blocks."""

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
"""Up to this size the mark binds the content of a file; above it size and mtime."""
ENTRIES: Final = 10_000
"""Entries of a directory that its mark binds."""
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The state of a path: `mark` differs when it changes, and is empty if nothing is there.

    `kind` is `nothing`, `file`, `directory` or `other`; `size` is in bytes; `entries` counts those below a directory,
    `more` says that there are more. `data` is the content of a file, if requested.
    """

    mark: str = ""
    kind: str = "nothing"
    size: int = 0
    entries: int = 0
    more: bool = False
    data: bytes | None = None


NOTHING: Final = Mark()


def marked(fd: int | None, *, data_most: int = 0) -> Mark:
    """The mark of a descriptor, with the content of a file of at most `data_most` bytes. Raises OSError."""
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
    """The kind of a descriptor, without a mark."""
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
