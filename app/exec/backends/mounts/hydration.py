"""Filling a workspace from host mounts: beside it first, then in its place by one rename.

A workspace that has anything in it, or ever was filled, is left as it is: what an agent wrote or removed there stays.
Whoever comes second waits for the first; what a crash has left beside the workspace is thrown away and made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import itertools
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.mounts.mount import HostMount, Roots
from shellback.exec.backends.mounts.tree import MOUNT_BYTES, Entry, plan, signature
from shellback.exec.core.errors import MountUnusable, WorkspaceUnusable
from shellback.exec.wire.descriptors import closing

log = logging.getLogger(__name__)

BLOCK: Final = 2**20
ATTEMPTS: Final = 3
"""Times that a file is copied which changes meanwhile."""
TOLD_S: Final = 1.0
_ROOM: Final = {errno.ENOSPC: "make room", errno.EDQUOT: "make room in the quota"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whom the copies belong to: `uid` and `gid` None is ourselves. `group` gives the group what the owner may do."""

    uid: int | None = None
    gid: int | None = None
    group: bool = False


def hydrate(
    mounts: Sequence[HostMount],
    workspace: Path,
    *,
    roots: Sequence[str | os.PathLike[str]],
    secret: Callable[[Path], bool] = lambda _: False,
    owner: Owner | None = None,
    parents: int = 0o700,
    stop: Callable[[], bool] = lambda: False,
) -> int | None:
    """Make the workspace with what the mounts bring, all of it or nothing; how many files. Blocks.

    None where the workspace was left as it is.

    Args:
        mounts: What to copy; without any, an empty workspace is made.
        workspace: Where to.
        roots: Where mounts may come from.
        secret: Whether a real path is a secret, which no mount brings.
        owner: Whom the copies belong to.
        parents: The mode of the directories above it that have to be made.
        stop: Asked while copying; once it says True, nothing is left and `InterruptedError` is raised.

    Raises:
        MountUnusable: A mount is missing, outside the roots, too large, changed too often, or cannot be read.
        WorkspaceUnusable: The place of the workspace cannot be written.
    """
    owner = owner or Owner()
    staging = workspace.with_name(f".{workspace.name}.new")
    with _first(workspace, parents) as mark:
        if workspace.is_dir() and (os.fstat(mark).st_size or any(workspace.iterdir())):
            return None
        if not mounts and workspace.is_dir():
            return 0  # somebody may have it mounted already
        shutil.rmtree(staging, ignore_errors=True)
        with Roots(roots if mounts else (), secret) as opened:
            wanted = plan(mounts, opened)
            budget = sum(mount.max_bytes or MOUNT_BYTES for mount in mounts)
            copying = Copying(wanted, budget, opened, staging, owner, stop)
            try:
                copying.run()
                staging.rename(workspace)
            except InterruptedError:
                raise
            except OSError as error:
                raise MountUnusable(
                    f"{error.filename or workspace}: {error.strerror}; "
                    f"{_ROOM.get(error.errno or 0, 'mend that')}, then try again. Nothing was copied"
                ) from None
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        if mounts:
            os.pwrite(mark, f"{copying.files} files, {copying.bytes} bytes\n".encode(), 0)
            os.fsync(mark)
    return copying.files


async def hydrated(mounts: Sequence[HostMount], workspace: Path, **more: Any) -> None:
    """`hydrate` in a thread; cancelling gives it up, and leaves nothing."""
    given_up = threading.Event()
    try:
        await asyncio.to_thread(partial(hydrate, mounts, workspace, **more, stop=given_up.is_set))
    finally:
        given_up.set()


def overlay(cache: Path, kind: str, scope: str) -> Path:
    """Where the workspace of a scope is kept: under its own name where that is a plain one."""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", scope)
    name = scope if plain else f"s-{hashlib.sha256(scope.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
    return cache / kind / name


def forget(workspace: Path) -> None:
    """Remove a workspace that nothing uses, and that it ever was filled. Blocks.

    Raises:
        OSError: Something of it cannot be removed.
    """
    if workspace.is_symlink():
        workspace.unlink()
    elif workspace.exists():
        shutil.rmtree(workspace)
    _mark(workspace).unlink(missing_ok=True)


def _mark(workspace: Path) -> Path:
    return workspace.with_name(f".{workspace.name}.filled")


@contextlib.contextmanager
def _first(workspace: Path, parents: int) -> Generator[int]:
    """The mark of the workspace, locked: only one fills it at a time."""
    try:
        for above in reversed(workspace.parents):
            with contextlib.suppress(FileExistsError):
                above.mkdir(mode=parents)
        fd = os.open(_mark(workspace), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise WorkspaceUnusable(
            f"{error.filename}, where workspaces are kept, cannot be written: {error.strerror}; set SHELLBACK_CACHE"
        ) from None
    with closing(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd


@dataclass
class Copying:
    """One copying of `wanted` into a staging directory that nobody else looks at; counts `files` and `bytes`."""

    wanted: Sequence[Entry]
    budget: int
    roots: Roots
    staging: Path
    owner: Owner
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        """Begin to count."""
        self.files = self.bytes = 0
        self._changed: list[str] = []
        self._made = {self.staging}
        self._began = self._told = time.monotonic()

    def run(self) -> None:
        """Copy everything, durably."""
        self.staging.mkdir(mode=0o700)
        directories = [(self.staging, 0o755)]
        for entry in self.wanted:
            to = self.staging / entry.path
            if to != self.staging:
                directories += [(above, 0o755) for above in self._missing(to)]
            if entry.is_directory:
                to.mkdir(mode=0o700, exist_ok=True)
                self._made.add(to)
                directories.append((to, entry.mode))
            elif entry.link is not None:
                os.symlink(entry.link, to)
                self._own(to, None)
            else:
                self._copied(entry, to)
            self._tell(at_end=False)
        for path, mode in reversed(directories):  # a directory that may not be written takes its files before
            self._own(path, mode)
        _sync(self.staging)
        self._tell(at_end=True)
        if self._changed:
            log.warning(
                "%d files of host mounts changed while they were copied, %s the first; each was copied again",
                len(self._changed),
                self._changed[0],
            )

    def _missing(self, to: Path) -> list[Path]:
        missing = list(itertools.takewhile(lambda path: path not in self._made, to.parents))[::-1]
        for path in missing:
            path.mkdir(mode=0o700)
        self._made.update(missing)
        return missing

    def _copied(self, entry: Entry, to: Path) -> None:
        changed = False
        for _ in range(ATTEMPTS):
            try:
                fd = self.roots.open(entry.source)
            except OSError as error:
                raise self._refused(f"{entry.source} went away while it was copied ({error.strerror})") from None
            with closing(fd):
                before = os.fstat(fd)
                if not stat.S_ISREG(before.st_mode):
                    raise self._refused(f"{entry.source} became another kind of file")
                if self.bytes + before.st_size > self.budget:
                    raise self._refused(f"{entry.source} and others grew beyond {self.budget:,} bytes (max_bytes)")
                number = self._bytes_of(fd, before.st_size, to)
                same = signature(os.fstat(fd)) == signature(before) and number == before.st_size
            changed = changed or not same or signature(before) != entry.seen
            if same:
                break
        else:
            raise self._refused(
                f"{entry.source} changes each time it is copied: stop what writes it, or leave it out with exclude_glob"
            )
        if changed:
            self._changed.append(entry.source)
        self._own(to, before.st_mode)
        self.files += 1
        self.bytes += number

    def _refused(self, why: str) -> MountUnusable:
        return MountUnusable(f"a host mount is refused: {why}. Nothing was copied")

    def _bytes_of(self, source: int, size: int, to: Path) -> int:
        number = 0
        with open(to, "wb") as target:
            while number <= size and (block := os.read(source, BLOCK)):
                if self.stop():
                    raise InterruptedError("the copying of host mounts was given up")
                target.write(block)
                number += len(block)
        return number

    def _own(self, path: Path, mode: int | None) -> None:
        if self.owner.uid is not None and self.owner.gid is not None:
            os.chown(path, self.owner.uid, self.owner.gid, follow_symlinks=False)
        if mode is not None:
            kept = mode & 0o777  # neither set-id nor sticky bits
            os.chmod(path, kept | (kept & 0o700) >> 3 if self.owner.group else kept)

    def _tell(self, *, at_end: bool) -> None:
        if self.stop():
            raise InterruptedError("the copying of host mounts was given up")
        now = time.monotonic()
        if now - self._began > TOLD_S and (at_end or now - self._told > TOLD_S):
            self._told = now
            log.info(
                "copying host mounts: %s of %s files, %s of %s bytes",
                f"{self.files:,}",
                f"{sum(not entry.is_directory for entry in self.wanted):,}",
                f"{self.bytes:,}",
                f"{sum(entry.size for entry in self.wanted):,}",
            )


def _sync(path: Path) -> None:
    """Make all that was written to the file system of `path` durable: one sync for each file would take minutes."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
