"""Names that are given to something else outside: the kernel tells of them where no mount is lost by it.

Who renames a file away takes what is mounted on it along, and what comes to stand there is not covered. Source:
inotify(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterable
from typing import Final

from shellback.exec.supervisor.loop import IN, Loop

_MOVED_FROM: Final = 0x40
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORIES: Final = 0x1000000
_EVENT: Final = struct.Struct("iIII")
_BYTES: Final = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)

Call = Callable[[], None]


class Renames:
    """Tells who asked when one of their paths is renamed away. All of its methods run on the loop's thread."""

    def __init__(self, loop: Loop, refused: Callable[[str], None]) -> None:
        self._loop = loop
        self._refused = refused
        self._fd = -1
        self._users: dict[int, dict[Call, frozenset[bytes]]] = {}

    def watch(self, paths: Iterable[str], root: str, call: Call) -> None:
        """Call when one of these, or a directory on the way there from `root`, gets another name.

        Where the kernel has no room for that, `refused` gets why: removing and renaming over are seen without it.
        """
        names: dict[str, set[bytes]] = {}
        for path in paths:
            below = path
            while len(below) > len(root):
                above, _, name = below.rpartition("/")
                names.setdefault(above or "/", set()).add(os.fsencode(name))
                below = above
        try:
            for folder, wanted in names.items():
                if (number := self._added(folder)) is not None:
                    users = self._users.setdefault(number, {})
                    users[call] = users.get(call, frozenset()) | wanted
        except OSError as error:
            self._refused(f"renames are not watched: {error.strerror}")

    def forget(self, call: Call) -> None:
        """Tell this one no more."""
        for number, users in list(self._users.items()):
            if users.pop(call, None) is not None and not users:
                del self._users[number]
                _libc.inotify_rm_watch(self._fd, number)

    def _added(self, folder: str) -> int | None:
        if self._fd < 0:
            self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            self._loop.watch(self._fd, self._read, IN)
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _MOVED_FROM | _ONLY_DIRECTORIES)
        if number < 0:
            number = ctypes.get_errno()
            # Who may not be looked into, or has gone, is seen by its mount.
            if number in {errno.EACCES, errno.ENOENT, errno.ENOTDIR}:
                return None
            raise OSError(number, os.strerror(number))
        return number

    def _read(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _BYTES)
            calls: dict[Call, None] = {}
            place = 0
            while place < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size + length
                name = data[place - length : place].rstrip(b"\0")
                if mask & _OVERFLOW:
                    calls.update(dict.fromkeys(call for users in self._users.values() for call in users))
                elif mask & _IGNORED:
                    self._users.pop(number, None)
                else:
                    users = self._users.get(number, {})
                    calls.update(dict.fromkeys(call for call, names in users.items() if name in names))
            for call in calls:
                call()
