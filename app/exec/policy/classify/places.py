"""In which directories each command of a line may run: `cd` may fail, be in a subshell, or lead nobody knows where."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shellback.exec.policy.classify.asking import Asks
from shellback.exec.policy.classify.syntax import Simple

MOST: Final = 6
"""Directories in which a command after `cd` may run; it is judged for each."""
MAY_MOVE: Final = frozenset({"popd", "eval", "source", "."})
"""What may change the directory without saying where to."""

_ONLY_AFTER: Final = re.compile(r"\s*&&\s*")
_SIGNS: Final = re.compile(r"[\s()&|;]*")


class Places:
    """Follows the directory from one command of a line to the next; None is one that nobody knows."""

    def __init__(self, source: str, cwd: Path) -> None:
        self.here: tuple[Path | None, ...] = (cwd,)
        self._source = source
        self._any = self.here
        self._outer: list[tuple[Path | None, ...]] = []
        self._end = 0
        self._apart = False
        self._loose = False

    def reach(self, simple: Simple) -> None:
        """Go on to the next command: `here` is then where it may run.

        Behind `&&` what stands before has not failed, unless it was negated or in a shell of its own (a pipe, a
        substitution); behind all else it may have. What is between two commands and more than signs (a reserved
        word) leaves open which subshell ends, and so does all of a line with a heredoc.
        """
        between = self._source[self._end : simple.start]
        inside = simple.start < self._end
        self._end = max(self._end, simple.end)
        self._loose |= any(one.op in {"<<", "<<-"} for one in simple.redirects)
        if self._loose or self._apart or inside or not _ONLY_AFTER.fullmatch(between):
            self.here = self._any
        self._apart = inside or simple.piped or "!" in between
        if self._loose or not _SIGNS.fullmatch(between):
            self._outer.clear()
            return
        for sign in between:
            if sign == "(":
                self._outer.append(self._any)
            elif sign == ")" and self._outer:
                self.here = self._any = self._outer.pop()

    def move(self, to: Iterable[Path | None]) -> None:
        """Note where the command that was reached leads, unless it fails.

        Raises:
            Asks: There have been too many.
        """
        self.here = tuple(dict.fromkeys(to))
        self._any = tuple(dict.fromkeys((*self._any, *self.here)))
        if len(self._any) > MOST:
            self.here = self._any = (None,)
            raise Asks("it changes the directory too often to be followed")
