"""Finding files by their names. Blocks, for a bounded time."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.sight.place import Root
from shellback.exec.files import scan
from shellback.exec.files.entries import Entry, entry
from shellback.exec.files.patterns import Pattern, State, alternatives, split
from shellback.exec.files.scan import Scan

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
        """Come to an end soon."""
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
                    directory = scan.opened(place.name, place.directory)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                stack.callback(os.close, directory)
                self._search(directory, self._root.shown(place.names), Pattern(patterns), found)
        return Found(
            entries=tuple(found[path] for path in sorted(found)),
            stopped=self._scan.stopped,
            skipped=tuple(self._scan.skipped),
        )

    def _search(self, directory: int, base: str, pattern: Pattern, found: dict[str, Entry]) -> None:
        def into(states: frozenset[State], name: str) -> tuple[bool, frozenset[State] | None]:
            matched, below = pattern.step(states, name)
            return matched, below or None

        for path, name, _ in self._scan.entries(directory, pattern.start, into):
            if len(found) == self._limit:
                self._scan.stopped = f"stopped after {self._limit} matches; give a narrower pattern"
                return
            full = f"{base.rstrip('/')}/{path}"
            with contextlib.suppress(OSError):  # gone since
                found[full] = entry(self._root, name.name, full, name.stat(follow_symlinks=False))


def bounded(limit: int, most: int, seconds: float) -> None:
    """Pass for bounds of a search that can be kept.

    Raises:
        InvalidCommand: They cannot.
    """
    if not 1 <= limit <= most:
        raise InvalidCommand(f"limit is {limit}; it can be 1 to {most}")
    if not 0 < seconds <= SECONDS_MOST:
        raise InvalidCommand(f"seconds is {seconds}; it can be up to {SECONDS_MOST:g}")
