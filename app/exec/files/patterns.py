"""Patterns of names: `**` for any number of directories, `*`, `?` and `[...]` within a name, `{a,b}` for either.

A leading dot is nothing special. There is no escape: `[*]` is a star.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Final

from shellback.exec.core.errors import InvalidCommand

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

    def step(self, states: frozenset[State], name: str) -> tuple[bool, frozenset[State]]:
        """Whether `name` is a match, and what is left to match below it if it is a directory."""
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
        return matched, self._closed(below)

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
