"""Lists directories and finds names by pattern. Blocks for a bounded time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.sight.place import Place, Root
from shellback.exec.files import scan
from shellback.exec.files.contents import FileTooLarge
from shellback.exec.files.scan import Pattern, Scan, alternatives, split
from shellback.exec.wire.descriptors import closing

LIST_MOST: Final = 100_000


class Entry(NamedTuple):
    """One file, directory or symlink; a name that is not UTF-8 has surrogates, as in `os.fsdecode`."""

    name: str
    path: str
    """As commands see it: absolute, but for symlinks on the way and at the end, which are kept."""
    is_dir: bool
    """Also of a symlink to a directory in the workspace; not of one that leads nowhere, round in a circle, or out."""
    size: int | None
    """Bytes of a regular file, or of the one a symlink leads to; None for all else."""
    link: bool
    mtime: float
    """Seconds since the epoch; of the symlink itself."""
    mode: int
    """Permission bits; of the symlink itself."""


def entry(root: Root, name: str, path: str, status: os.stat_result) -> Entry:
    """The entry of `path`, whose `lstat` is `status`; the target of a symlink is looked up."""
    mode = status.st_mode
    link = stat.S_ISLNK(mode)
    if link:
        end = _end(root, path)
        mode = 0 if end is None else end.st_mode
        size = end.st_size if end is not None and stat.S_ISREG(mode) else None
    else:
        size = status.st_size if stat.S_ISREG(mode) else None
    return Entry(name, path, stat.S_ISDIR(mode), size, link, status.st_mtime, stat.S_IMODE(status.st_mode))


def _end(root: Root, path: str) -> os.stat_result | None:
    try:
        with root.place(path) as place:
            return place.status
    except (OSError, ValueError):
        return None


def entry_of(root: Root, path: str, place: Place) -> Entry:
    """The entry of a place that was found for `path`; FileNotFoundError if nothing stands there."""
    shown = root.asked(path, place.names)
    return entry(root, os.path.basename(shown), shown, place.there)


def listed(root: Root, path: str, place: Place) -> list[Entry]:
    """The entries of the directory at `place`, which was found for `path`, sorted by name.

    Raises:
        FileTooLarge: It has more than `LIST_MOST`.
        OSError: It is none, or may not be read.
    """
    place.there  # noqa: B018 - raises where nothing is
    base = root.asked(path, place.names).rstrip("/")
    made: list[Entry] = []
    with closing(scan.opened(place.name, place.directory)) as directory:
        with os.scandir(directory) as found:
            names = sorted(itertools.islice(found, LIST_MOST + 1), key=attrgetter("name"))
        if len(names) > LIST_MOST:
            raise FileTooLarge(path, len(names), LIST_MOST, "find what is meant by a pattern")
        for one in names:
            with contextlib.suppress(FileNotFoundError):  # gone since
                made.append(entry(root, one.name, f"{base}/{one.name}", one.stat(follow_symlinks=False)))
    return made


FOUND_MOST: Final = 1000
SECONDS_MOST: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Files and directories that match a pattern, sorted by path."""

    entries: tuple[Entry, ...]
    stopped: str
    """Why there may be more; "" where this is all."""
    skipped: tuple[str, ...]
    """Directories that were not searched, below where the search began; the first of them."""


class Glob:
    """One search for names that match `pattern`, beginning in `path`.

    Raises:
        InvalidCommand: The pattern or a bound is not acceptable.
    """

    def __init__(self, root: Root, pattern: str, path: str, limit: int, seconds: float) -> None:
        bounded(limit, FOUND_MOST, seconds)
        self._root = root
        self._limit = limit
        self._path = path
        self._heads: dict[str, list[str]] = {}
        for one in alternatives(pattern):
            head, rest = split(one)
            self._heads.setdefault(head, []).append(rest)
        self._scan = Scan(seconds)

    def stop(self) -> None:
        """End the search soon."""
        self._scan.cancelled = True

    def run(self) -> Found:
        """Search.

        Raises:
            InvalidCommand, PathOutsideSandbox, WorkspaceUnusable: As `Root.place`.
            OSError: `path` is no directory, or may not be read.
        """
        with self._root.place(self._path) as place:
            if not stat.S_ISDIR(place.there.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        found: dict[str, Entry] = {}
        for head, patterns in self._heads.items():
            where = head if head[:1] == "/" else f"{self._path}/{head}"
            with contextlib.ExitStack() as stack:
                try:
                    place = stack.enter_context(self._root.place(where))
                    directory = stack.enter_context(closing(scan.opened(place.name, place.directory)))
                except (FileNotFoundError, NotADirectoryError):
                    continue
                self._search(directory, self._root.shown(place.names), Pattern(patterns), found)
        return Found(
            entries=tuple(found[path] for path in sorted(found)),
            stopped=self._scan.stopped,
            skipped=tuple(self._scan.skipped),
        )

    def _search(self, directory: int, base: str, pattern: Pattern, found: dict[str, Entry]) -> None:
        for path, name, _ in self._scan.entries(directory, pattern.start, pattern.step):
            if len(found) == self._limit:
                self._scan.stopped = f"stopped after {self._limit} matches; give a narrower pattern"
                return
            full = f"{base.rstrip('/')}/{path}"
            with contextlib.suppress(OSError):  # gone since
                found[full] = entry(self._root, name.name, full, name.stat(follow_symlinks=False))


def bounded(limit: int, most: int, seconds: float) -> None:
    """Check the bounds of a search; raises InvalidCommand where one is out of range."""
    if not 1 <= limit <= most:
        raise InvalidCommand(f"limit is {limit}; it can be 1 to {most}")
    if not 0 < seconds <= SECONDS_MOST:
        raise InvalidCommand(f"seconds is {seconds}; it can be up to {SECONDS_MOST:g}")
