"""The directories below a workspace, looked at again before every command at the price of one `lstat` each.

A directory is read again when its inode or ctime has changed; mtime can be set by anybody, ctime cannot. Symlinks and
other file systems are not entered. Commands may change the tree meanwhile: what is found is what was there at some
moment of the look, and every directory that was there all the time is in it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.core.sight.place import closing

_SETTLED_NS: Final = 20_000_000
"""Longer than a tick of any kernel: a change within one tick of the last need not move the ctime."""
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


@dataclass(slots=True, eq=False)
class Directory:
    """One directory: what its names were when it was last read.

    `marks` are the names that matter, each with `d`, `f` or `l` for what it is, and all of pipes, sockets and devices,
    with `s`. `closed`: it is there and nobody knows what is in it, as it cannot be read, or has more directories in it
    than there was room for. `need` is how many it has, at least: all of them are in `children` where it is `whole`.
    """

    path: str
    stamp: tuple[int, int] | None = None
    settled: bool = False
    closed: bool = False
    marks: dict[str, str] = field(default_factory=dict[str, str])
    children: dict[str, Directory] = field(default_factory=dict[str, "Directory"])
    need: int = 0
    whole: bool = False


class Tree:
    """The directories below `root`, which is absolute and without symlinks, at most `most` of them.

    `marked` says of a name whether it matters, `entered` of a directory and the name of one in it whether to go there.
    Not for several threads at once.
    """

    def __init__(
        self, root: str, *, most: int, marked: Callable[[str], bool], entered: Callable[[Directory, str], bool]
    ) -> None:
        self._root = Directory(root)
        self._most = most
        self._marked = marked
        self._entered = entered
        self._device = 0

    def look(self) -> list[Directory]:
        """Every directory that is there, the root first; of one that is `closed`, none of those in it.

        What was looked at before comes before what is new, so that a flood of new directories closes no old one.

        Raises:
            OSError: The root cannot be read: E2BIG if it has more directories than there is room for.
        """
        self._device = os.lstat(self._root.path).st_dev
        found: list[Directory] = []
        room = self._most - 1
        known, new = deque([self._root]), deque[Directory]()
        while known or new:
            directory = known.popleft() if known else new.popleft()
            if not self._there(directory, room):
                continue
            found.append(directory)
            if directory.closed:
                continue
            room -= len(directory.children)
            for child in directory.children.values():
                (new if child.stamp is None else known).append(child)
        if not found or self._root.closed:
            number = errno.E2BIG if self._root.need else errno.EACCES
            raise OSError(number, "cannot be read", self._root.path)
        return found

    def _there(self, directory: Directory, room: int) -> bool:
        try:
            status = os.lstat(directory.path)
            if directory.settled and directory.stamp == (status.st_ino, status.st_ctime_ns):
                if status.st_dev != self._device:
                    return False
                directory.closed = directory.need > room
                if directory.closed or directory.whole:
                    return True
            if not stat.S_ISDIR(status.st_mode) or status.st_dev != self._device:
                return False
            return self._read(directory, room)
        except OSError as error:
            if error.errno in _GONE:
                return False
        directory.closed, directory.settled, directory.stamp = True, False, (0, 0)
        directory.marks, directory.children, directory.need = {}, {}, 0
        return True

    def _read(self, directory: Directory, room: int) -> bool:
        with closing(os.open(directory.path, _OPEN)) as descriptor:
            if os.readlink(f"/proc/self/fd/{descriptor}") != directory.path:
                return False  # a symlink on the way, put there after the look at its parent
            now = time.time_ns()
            status = os.stat(".", dir_fd=descriptor)  # unlike fstat it fails where the names lead nowhere
            if status.st_dev != self._device:
                return False
            self._take(directory, descriptor, room)
        directory.stamp = (status.st_ino, status.st_ctime_ns)
        directory.settled = now - status.st_ctime_ns > _SETTLED_NS
        directory.closed = directory.need > room
        return True

    def _take(self, directory: Directory, descriptor: int, room: int) -> None:
        before, names = directory.children, list[str]()
        marks: dict[str, str] = {}
        directory.whole = True
        with os.scandir(descriptor) as entries:
            for entry in entries:
                folder = entry.is_dir(follow_symlinks=False)
                if self._marked(entry.name):
                    marks[entry.name] = "d" if folder else "l" if entry.is_symlink() else "f"
                elif not (folder or entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    marks[entry.name] = "s"
                if folder:
                    names.append(entry.name)
                    if len(names) > room:
                        directory.whole = False
                        break
        directory.marks = marks
        directory.children = {
            name: before.get(name) or Directory(f"{directory.path}/{name}")
            for name in sorted(names)
            if directory.whole and self._entered(directory, name)
        }
        directory.need = len(directory.children) if directory.whole else len(names)
