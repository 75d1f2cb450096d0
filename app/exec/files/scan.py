"""Going through a tree: sorted, never through a symlink, and only so far."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Final, TypeVar

SCANNED_MOST: Final = 100_000
DEPTH_MOST: Final = 100
SKIPPED_SHOWN: Final = 20
IGNORED: Final = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
"""Directories that are not searched unless the search begins in one: what is there was written by programs."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

S = TypeVar("S")


class Scan:
    """One search, at most `seconds` long; when it is over, `stopped` says why it did not see everything, "" if it did.

    `skipped` are directories that were not entered, by their paths below the beginning.
    """

    def __init__(self, seconds: float) -> None:
        self.stopped = ""
        self.skipped: list[str] = []
        self.cancelled = False
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._left = SCANNED_MOST

    def over(self) -> bool:
        """Whether it is time to end."""
        if not self.stopped:
            if self.cancelled:
                self.stopped = "cancelled"
            elif time.monotonic() > self._ends:
                self.stopped = f"stopped after {self._seconds:g} s"
        return self.stopped != ""

    def entries(
        self, directory: int, state: S, into: Callable[[S, str], tuple[bool, S | None]]
    ) -> Generator[tuple[str, os.DirEntry[str], int]]:
        """What `into` wants of the tree in `directory`: path below it, entry, and the directory that it is in.

        `into` says of the state of a directory and a name in it whether that is wanted, and with what state to enter
        it if it is a directory; None is not to. Descriptors are valid until the next step.
        """
        yield from self._below(directory, "", state, into, 0)

    def _below(
        self, directory: int, prefix: str, state: S, into: Callable[[S, str], tuple[bool, S | None]], depth: int
    ) -> Generator[tuple[str, os.DirEntry[str], int]]:
        if self.over():
            return
        for found in self._listed(directory):
            wanted, inner = into(state, found.name)
            path = f"{prefix}{found.name}"
            if wanted:
                yield path, found, directory
                if self.stopped:
                    return
            if inner is not None and found.is_dir(follow_symlinks=False):
                if found.name in IGNORED or depth == DEPTH_MOST:
                    self._skip(path)
                    continue
                try:
                    below = os.open(found.name, _OPEN, dir_fd=directory)
                except OSError:
                    self._skip(path)
                    continue
                try:
                    yield from self._below(below, f"{path}/", inner, into, depth + 1)
                finally:
                    os.close(below)
                if self.stopped:
                    return

    def _listed(self, directory: int) -> list[os.DirEntry[str]]:
        names: list[os.DirEntry[str]] = []
        with os.scandir(directory) as entries:
            for found in entries:
                if self._left == 0:
                    self.stopped = f"stopped after {SCANNED_MOST} names; search a directory further down"
                    break
                self._left -= 1
                names.append(found)
        names.sort(key=_name)
        return names

    def _skip(self, path: str) -> None:
        if len(self.skipped) < SKIPPED_SHOWN:
            self.skipped.append(path)


def opened(name: str, directory: int) -> int:
    """A descriptor to look through the directory `name`; never through a symlink.

    Raises:
        OSError: It is none, or may not be read.
    """
    return os.open(name, _OPEN, dir_fd=directory)


def _name(found: os.DirEntry[str]) -> str:
    return found.name
