"""Moves a file that git would obey out of the workspace, to where commands cannot reach it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from shellback.exec.backends.inspection.gitdirs import reached
from shellback.exec.core.sight.place import Root, closing, opened
from shellback.exec.wire import linux

MOST_BYTES: Final = 4 * 1024 * 1024
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1 << 18


class Quarantine:
    """Keeps what was taken from the workspace `root` in the directory `home`, which is ours alone."""

    def __init__(self, root: Root, home: Path) -> None:
        self._root = root
        self._home = home

    def take(self, path: str, name: str) -> str:
        """Take what stands at `path` (from the workspace) away and return where it is kept, in a directory `name`.

        First it loses its name, in one step, so that git no longer meets it; then it is moved, or copied within a bound
        where the directory is on another file system. What cannot be moved stays beside its old name under a new one.

        Raises:
            OSError, ExecError: It could not be taken; it is where it was.
        """
        with reached(self._root, path) as place:
            aside = f".shellback-quarantined-{secrets.token_hex(8)}"
            os.rename(place.name, aside, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            kept = self._home / name / os.path.basename(path)
            try:
                self._move(place.directory, aside, kept)
            except OSError:
                return f"{self._root.workspace}/{os.path.dirname(path)}/{aside}"
        return str(kept)

    def _move(self, directory: int, name: str, kept: Path) -> None:
        for made in (self._home, kept.parent):
            with contextlib.suppress(FileExistsError):
                made.mkdir(mode=0o700)
        try:
            os.rename(name, kept, src_dir_fd=directory)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(directory, name, kept)
            os.unlink(name, dir_fd=directory)
            return
        status = os.lstat(kept)
        if stat.S_ISREG(status.st_mode):
            os.chmod(kept, 0o600, follow_symlinks=False)

    def unlink_others(self, path: str) -> None:
        """Give `path` a file of its own, with the same bytes, mode and owner, so that other names no longer write it.

        Raises:
            OSError, ExecError: It could not be done, or it is longer than `MOST_BYTES`; nothing has changed.
        """
        with reached(self._root, path) as place, closing(opened(place.name, place.directory)) as source:
            status = os.fstat(source)
            aside = f".shellback-copy-{secrets.token_hex(8)}"
            copy = os.open(aside, _MAKE, 0o600, dir_fd=place.directory)
            try:
                with closing(copy):
                    _bytes(source, copy)
                    with contextlib.suppress(PermissionError):
                        os.fchown(copy, status.st_uid, status.st_gid)
                    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)
                os.rename(aside, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(aside, dir_fd=place.directory)
                raise


def other_name(workspace: str, status: os.stat_result, path: str, *, entries: int) -> str | None:
    """Another name of a file in the workspace, looked for among so many entries at most; None if none was met."""
    waiting, left = [workspace], entries
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                left -= 1
                if left < 0:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.inode() == status.st_ino and entry.path != path:
                    return entry.path
    return None


def _copy(directory: int, name: str, kept: Path) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    with closing(os.open(kept, _MAKE, 0o600)) as target:
        if stat.S_ISLNK(status.st_mode):
            os.write(target, os.fsencode(os.readlink(name, dir_fd=directory)))
            return
        with closing(opened(name, directory)) as source:
            _bytes(source, target)


def _bytes(source: int, target: int) -> None:
    left = MOST_BYTES
    while part := os.read(source, _CHUNK):
        left -= len(part)
        if left < 0:
            raise OSError(errno.EFBIG, "too long to be copied")
        linux.write_all(target, part)
