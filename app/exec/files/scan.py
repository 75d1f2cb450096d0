"""Walks a tree in sorted order, within bounds and never through a symlink; and matches patterns of names.

`**` is any number of directories, `*`, `?` and `[...]` are within a name, `{a,b}` is either. A leading dot is nothing
special. There is no escape: `[*]` is a star.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Generator, Iterable
from operator import attrgetter
from typing import Final, TypeVar

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.wire.descriptors import closing

SCANNED_MOST: Final = 100_000
DEPTH_MOST: Final = 100
SKIPPED_SHOWN: Final = 20
IGNORED: Final = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache"}
)
"""Directories of generated files: not searched unless the search begins in one."""

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

S = TypeVar("S")


class Scan:
    """One search of at most `seconds`; `stopped` says why it did not see everything, "" if it did.

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
        self,
        directory: int,
        state: S,
        into: Callable[[S, str], tuple[bool, S | None]],
        prefix: str = "",
        depth: int = 0,
    ) -> Generator[tuple[str, os.DirEntry[str], int]]:
        """What `into` wants of the tree in `directory`: path below it, entry, and the directory that it is in.

        `into` says of the state of a directory and a name in it whether that is wanted, and with what state to enter
        it if it is a directory; None is not to. Descriptors are valid until the next step.
        """
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
                    below = opened(found.name, directory)
                except OSError:
                    self._skip(path)
                    continue
                with closing(below):
                    yield from self.entries(below, inner, into, f"{path}/", depth + 1)
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
        names.sort(key=attrgetter("name"))
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


PATTERN_MOST: Final = 1000
ALTERNATIVES_MOST: Final = 64
_MAGIC: Final = re.compile(r"[*?\[]")
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*)\}")

_Segment = Callable[[str], object] | None
State = tuple[int, int]


def alternatives(pattern: str) -> list[str]:
    """The patterns without braces that this one stands for.

    Raises:
        InvalidCommand: It is empty, too long, holds a NUL or a `..`, or stands for too many.
    """
    if not pattern or len(pattern) > PATTERN_MOST:
        raise InvalidCommand(f"a pattern has 1 to {PATTERN_MOST} characters; this one has {len(pattern)}")
    if "\0" in pattern or ".." in pattern.split("/"):
        raise InvalidCommand("a pattern has no NUL and no `..`; give the directory to search as path")
    done: list[str] = []
    todo = [pattern]
    while todo:
        one = todo.pop()
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            head, tail = one[: braces.start()], one[braces.end() :]
            todo.extend(f"{head}{choice}{tail}" for choice in reversed(braces[1].split(",")))
        if len(done) + len(todo) > ALTERNATIVES_MOST:
            raise InvalidCommand(f"the braces stand for more than {ALTERNATIVES_MOST} patterns; give fewer")
    return list(dict.fromkeys(done))


def split(pattern: str) -> tuple[str, str]:
    """The directory that the pattern begins in, "" for none, and what is left; that is never empty."""
    head, rest = ("/", pattern.lstrip("/")) if pattern[0] == "/" else ("", pattern)
    while True:
        name, slash, after = rest.partition("/")
        if not slash or not after.strip("/") or _MAGIC.search(name):
            return head, rest.strip("/")
        head, rest = f"{head}{name}/", after.lstrip("/")


class Pattern:
    """Several patterns, matched a name at a time on the way down; `states` is how far each has come."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [[_segment(part) for part in one.split("/") if part not in {"", "."}] for one in patterns]
        self.start = self._closed({(number, 0) for number, one in enumerate(self._patterns) if one})

    def step(self, states: frozenset[State], name: str) -> tuple[bool, frozenset[State] | None]:
        """Whether `name` is a match, and what is left to match below it if it is a directory, None for nothing."""
        below: set[State] = set()
        matched = False
        for number, place in states:
            segments = self._patterns[number]
            segment = segments[place]
            if segment is None:
                below.add((number, place))
                matched = matched or place == len(segments) - 1
            elif segment(name):
                if place == len(segments) - 1:
                    matched = True
                else:
                    below.add((number, place + 1))
        return matched, self._closed(below) or None

    def _closed(self, states: set[State]) -> frozenset[State]:
        todo = list(states)
        while todo:
            number, place = todo.pop()
            after = (number, place + 1)
            if (
                self._patterns[number][place] is None
                and place + 1 < len(self._patterns[number])
                and after not in states
            ):
                states.add(after)
                todo.append(after)
        return frozenset(states)


def _segment(part: str) -> _Segment:
    if part == "**":
        return None
    if not _MAGIC.search(part):
        return part.__eq__
    try:
        return re.compile(fnmatch.translate(part)).match
    except re.error as error:
        raise InvalidCommand(f"{part!r} is no pattern of names: {error}") from None
