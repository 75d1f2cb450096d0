"""Hydration is this copying: entries of mounts into a directory that nobody else looks at yet."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.backends.mounts.mount import Roots
from shellback.exec.backends.mounts.tree import Entry, signature
from shellback.exec.core.errors import MountUnusable
from shellback.exec.core.sight.place import closing

log = logging.getLogger(__name__)

BLOCK: Final = 2**20
ATTEMPTS: Final = 3
"""Times that a file is copied which changes meanwhile."""
TOLD_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whom the copies belong to: `uid` and `gid` None is ourselves. `group` gives the group what the owner may do."""

    uid: int | None = None
    gid: int | None = None
    group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hydrated:
    """What was copied; `skipped` says that the workspace was left as it is. `changed` were written to meanwhile."""

    files: int = 0
    bytes: int = 0
    changed: tuple[str, ...] = ()
    skipped: bool = False


@dataclass
class Copying:
    """One copying of `wanted` into a staging directory that nobody else looks at."""

    wanted: Sequence[Entry]
    budget: int
    roots: Roots
    staging: Path
    owner: Owner
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        """Begin to count."""
        self._files = self._bytes = 0
        self._changed: list[str] = []
        self._made = {self.staging}
        self._began = self._told = time.monotonic()

    def run(self) -> Hydrated:
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
        return Hydrated(files=self._files, bytes=self._bytes, changed=tuple(self._changed))

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
                if self._bytes + before.st_size > self.budget:
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
        self._files += 1
        self._bytes += number

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
                f"{self._files:,}",
                f"{sum(not entry.is_directory for entry in self.wanted):,}",
                f"{self._bytes:,}",
                f"{sum(entry.size for entry in self.wanted):,}",
            )


def _sync(path: Path) -> None:
    """Make all that was written to the file system of `path` durable: one sync for each file would take minutes."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
