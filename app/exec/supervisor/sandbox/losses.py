"""Covers that are lost while commands run: restored within milliseconds, or the commands are ended.

A mount on a file disappears in all mount namespaces when a process in another one removes the file or renames a file
over it, as git and most editors do: unlink(2), rename(2). Polling the mount table of a namespace detects that:
proc_pid_mountinfo(5). Renaming the file away moves the mount along: `Renames` detects that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from shellback.exec.supervisor.loop import IN, Loop, now
from shellback.exec.supervisor.sandbox import covers, restoring
from shellback.exec.supervisor.sandbox.restoring import Who
from shellback.exec.wire import gitconfig, layout, linux
from shellback.exec.wire.descriptors import kept
from shellback.exec.wire.protocol import Loss
from shellback.exec.wire.sandbox import CONTAINED, EMPTY, FIXED, MASKED, NOTHING, READ_ONLY, STUB

RESTORED: Final = "restored"
ENDED: Final = "ended"
CHANGED: Final = "changed"
MOST: Final = 64
"""How many losses are recorded for one session."""
_AWAY_S: Final = 0.05
"""How long a file may be missing: editors rename it before they write the new one."""
_LIMIT_S: Final = 0.5
_AGAIN_S: Final = 0.002
_FILES: Final = 256
_CONFIGURATIONS: Final = frozenset({"config", "config.worktree", ".gitconfig"})
"""Names of git configuration files, whose settings are compared."""
_MASKS: Final = frozenset({b"null", *(os.path.basename(path).encode() for path in (EMPTY, NOTHING)), b""})
"""The roots of mounts that hide files: the null device, the symlink to nothing, an empty directory, a tmpfs."""
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

Enter = Callable[[], Mapping[str, int] | None]
"""Descriptors of the namespaces to restore in, which are then closed; None if restoring is impossible."""


@dataclass(slots=True)
class _Lost:
    """`file` is device and inode of the newly covered file, which a command may have opened before."""

    since: float
    file: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One mount namespace: its covers, their root directory, how it is entered, and as which user.

    `told` gets each loss once it is settled; `end` is called once if a cover cannot be restored.
    """

    covered: dict[str, str]
    root: str
    who: Who
    told: Callable[[Loss], None]
    end: Callable[[], None]
    enter: Enter = field(default=lambda: None)
    stands: Callable[[str], None] = field(default=lambda _path: None)


class Losses:
    def __init__(self, loop: Loop, note: Callable[[str], None]) -> None:
        self.loop = loop
        self.renames = Renames(loop, note)
        self._read: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def watch(self, place: Place, pid: int = 0, table: int = -1) -> Watch:
        """Watch the mount namespace of process `pid`, or the one whose mount table is open as `table`.

        The caller keeps `table`. Raises OSError if the process has gone, or there is no room.
        """
        if pid:
            table = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            place = replace(place, enter=lambda: restoring.namespaces_of(pid))
        else:
            table = os.dup(table)
        with kept(table):
            return Watch(self, table, place)

    def content(self, path: str) -> bytes:
        """The content of a configuration, cut if too long; read only if the file has changed."""
        try:
            found = os.lstat(path)
        except OSError:
            return b""
        identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        known = self._read.get(path)
        if known is None or known[0] != identity:
            if len(self._read) >= _FILES:
                self._read.clear()
            known = self._read[path] = identity, _content(path)
        return known[1]


class Watch:
    """Detects and restores lost covers in one namespace."""

    def __init__(self, losses: Losses, table: int, place: Place) -> None:
        self._losses = losses
        self._loop = losses.loop
        self._table = table
        self._place = place
        self._covered = dict(place.covered)
        self._lost: dict[str, _Lost] = {}
        self._absent = set[str]()
        self._busy = self._over = self._due = False
        self._before = {
            path: losses.content(path)
            for path, kind in self._covered.items()
            if kind == READ_ONLY and os.path.basename(path) in _CONFIGURATIONS
        }
        self._after: dict[str, bytes] = {}
        self._loop.watch(table, self._changed, select.EPOLLPRI)
        losses.renames.watch(self._covered, place.root, self.look)

    def gone(self) -> list[str]:
        """Paths that are not covered now."""
        table = _table(self._table)
        return [path for path, kind in self._covered.items() if not _holds(table.get(os.fsencode(path), ()), kind)]

    def bare(self) -> list[str]:
        """Paths that exist and are not covered now; a secret that does not exist needs no cover."""
        return [path for path in self.gone() if self._covered[path] != MASKED or os.path.lexists(path)]

    def look(self) -> None:
        """Compare the mounts with the required covers, and restore lost ones."""
        if self._over:
            return
        gone, moment = self.gone(), now()
        self._absent = {path for path in self._absent if path in gone and not os.path.lexists(path)}
        gone = [path for path in gone if path not in self._absent]
        for path in gone:
            self._lost.setdefault(path, _Lost(moment))
        if self._busy:
            # Restored covers are known once the child reports them.
            return
        for path in self._lost.keys() - gone:
            self._back(path)
        if self._over or not gone:
            return
        absent = {path for path in gone if self._covered[path] == MASKED and not os.path.lexists(path)}
        old = [path for path in gone if path not in absent and moment - self._lost[path].since > _LIMIT_S]
        if old:
            self._give_up()
            return
        # A missing file mostly comes back in a moment, without a notification.
        away = {path for path in gone if not os.path.lexists(path) and self._comes_back(path, moment)}
        if len(away) < len(gone):
            self._restore([path for path in gone if path not in away])
        else:
            self._soon()

    def _comes_back(self, path: str, moment: float) -> bool:
        # A missing secret cannot be read, so there is time to wait for it.
        return moment - self._lost[path].since < (_LIMIT_S if self._covered[path] == MASKED else _AWAY_S)

    def last_look(self) -> None:
        """Report settings changed after the cover was restored, through a descriptor opened before."""
        for path, before in self._after.items():
            after = self._after[path] = self._losses.content(path)
            keys = _changed(before, after)
            if keys:
                self._place.told(Loss(path=path, at=time.time(), ms=0.0, how=CHANGED, keys=keys))

    def close(self) -> None:
        """Stop watching; repeating it changes nothing."""
        self._over = True
        if self._table >= 0:
            self._losses.renames.forget(self.look)
            self._loop.forget(self._table)
            os.close(self._table)
            self._table = -1

    def _changed(self, _events: int) -> None:
        self.look()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.after(_AGAIN_S, self._again)

    def _again(self) -> None:
        self._due = False
        self.look()

    def _restore(self, paths: Collection[str]) -> None:
        moment = now()
        try:
            namespaces = self._place.enter()
            if namespaces is None:
                self._give_up()
                return
            wanted = {
                path: (self._covered[path], self._may_stand_in(path) and moment - self._lost[path].since >= _AWAY_S)
                for path in paths
            }
            pid, said = restoring.begin(namespaces, self._place.who, wanted)
            pidfd = os.pidfd_open(pid)
        except OSError:
            self._give_up()
            return
        self._busy = True

        def done(_events: int) -> None:
            self._loop.forget(pidfd)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)
            self._busy = False
            self._restored(restoring.said(said))

        self._loop.watch(pidfd, done, IN)

    def _may_stand_in(self, path: str) -> bool:
        """Whether a directory may replace a missing path; git does not accept one for its files."""
        kind = self._covered[path]
        return kind == STUB or (kind == READ_ONLY and os.path.dirname(path) == self._place.root)

    def _restored(self, found: Mapping[str, restoring.Result]) -> None:
        if self._over:
            return
        failed = not found
        for path, (what, device, inode) in found.items():
            lost = self._lost.get(path)
            if lost is None:
                continue
            if what == restoring.FILE:
                lost.file = device, inode
            elif what == restoring.STANDS:
                self._place.stands(path)
            elif what == restoring.ABSENT and self._covered[path] == MASKED:
                # The secret does not exist; when it does again, it is covered again.
                del self._lost[path]
                self._absent.add(path)
                self._losses.renames.expect(path)
            elif what == restoring.FAILED:
                failed = True
        if failed:
            self._give_up()
        else:
            self.look()

    def _back(self, path: str) -> None:
        """It is covered again: no process may have it open from before."""
        if self._over:
            return
        lost = self._lost[path]
        if lost.file is not None and not _nobodys(path, lost.file):
            if now() - lost.since > _LIMIT_S:
                self._give_up()
            else:
                self._soon()
            return
        del self._lost[path]
        self._tell(path, lost, RESTORED)

    def _tell(self, path: str, lost: _Lost, how: str) -> None:
        keys: list[str] = []
        if path in self._before:
            after = self._losses.content(path)
            keys = _changed(self._before[path], after)
            self._before[path] = self._after[path] = after
        took = now() - lost.since
        self._place.told(Loss(path=path, at=time.time() - took, ms=round(took * 1000, 1), how=how, keys=keys))

    def _give_up(self) -> None:
        if not self._over:
            lost, self._lost, self._over = self._lost, {}, True
            # End the commands first: telling takes time.
            self._place.end()
            for path, one in lost.items():
                self._tell(path, one, ENDED)


def covers_of_container(home: str) -> dict[str, str]:
    """The covers that our container must have over its workspace, by kind; none outside of a container."""
    try:
        with open(os.path.join(home, layout.CONTAINER), encoding="utf-8") as file:
            row = cast("dict[str, Any]", json.load(file))
        kinds = {str(mount["target"]): FIXED if mount["writable"] else READ_ONLY for mount in row["mounts"]}
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return {path: kind for path, kind in kinds.items() if path.startswith(f"{CONTAINED}/")}


def _content(path: str) -> bytes:
    try:
        with linux.opened("/") as root, covers.beneath(root, path[1:], _READ) as fd:
            return os.read(fd, gitconfig.MOST_BYTES + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else b"\0"
    except OSError:
        return b"\0"


def _changed(before: bytes, after: bytes) -> list[str]:
    if before == after and len(after) <= gitconfig.MOST_BYTES:
        return []
    try:
        known = set(gitconfig.settings(before))
    except ValueError:
        known = set[tuple[str, str | None]]()
    return gitconfig.changed(known, after)


def _table(fd: int) -> dict[bytes, list[tuple[bytes, bool]]]:
    """The mounts at each path: the root of the mount in its file system, and whether it is read-only."""
    os.lseek(fd, 0, os.SEEK_SET)
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    found: dict[bytes, list[tuple[bytes, bool]]] = {}
    for line in data.splitlines():
        words = line.split(b" ", 6)
        found.setdefault(covers.unescaped(words[4]), []).append((words[3], words[5].startswith(b"ro")))
    return found


def _holds(mounts: Collection[tuple[bytes, bool]], kind: str) -> bool:
    if kind == FIXED:
        return bool(mounts)
    return any(ro and (kind != MASKED or root.rpartition(b"/")[2] in _MASKS) for root, ro in mounts)


def _nobodys(path: str, file: tuple[int, int]) -> bool:
    """Whether no process has this file open, and it has no other name: fcntl(2), F_SETLEASE.

    False if the file system has no leases. True if the path is another file by now: that is a new loss.
    """
    with contextlib.suppress(OSError), linux.opened("/") as root, covers.beneath(root, path[1:], _READ) as fd:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != file:
            return True
        # If a process opens it in this moment, it waits, and the kernel signals us: SIGURG does nothing.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return False


_MOVED_FROM: Final = 0x40
_APPEARED: Final = 0x80 | 0x100  # IN_MOVED_TO, IN_CREATE
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_DIRECTORIES: Final = 0x1000000
_ADD: Final = 0x20000000
_EVENT: Final = struct.Struct("iIII")
_BYTES: Final = 1 << 16

Call = Callable[[], None]


class Renames:
    """Calls back when a covered path is renamed away, or when an expected one appears.

    The mount moves along with the renamed file, so no mount is lost, but a new file at the path is not covered. Source:
    inotify(7).
    """

    def __init__(self, loop: Loop, refused: Callable[[str], None]) -> None:
        self._loop = loop
        self._refused = refused
        self._fd = -1
        self._users: dict[int, dict[Call, frozenset[bytes]]] = {}

    def watch(self, paths: Iterable[str], root: str, call: Call) -> None:
        """Call when one of these paths, or a directory between `root` and it, is renamed.

        If the kernel has no room for watches, `refused` gets the reason; removing and renaming over are seen anyway.
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

    def expect(self, path: str) -> None:
        """Call also when this path, which is watched and does not exist, appears in its directory."""
        with contextlib.suppress(OSError):
            self._added(os.path.dirname(path) or "/", _ADD | _APPEARED)

    def forget(self, call: Call) -> None:
        """Remove a callback."""
        for number, users in list(self._users.items()):
            if users.pop(call, None) is not None and not users:
                del self._users[number]
                linux.libc.inotify_rm_watch(self._fd, number)

    def _added(self, folder: str, events: int = _ADD | _MOVED_FROM) -> int | None:
        if self._fd < 0:
            self._fd = linux.checked(linux.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
            self._loop.watch(self._fd, self._read, IN)
        number: int = linux.libc.inotify_add_watch(self._fd, os.fsencode(folder), events | _ONLY_DIRECTORIES)
        if number < 0:
            number = ctypes.get_errno()
            # For an unreadable or missing directory, the mount table must suffice.
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
