"""The names that a pattern of a shell stands for, found by looking at no more directories than it takes."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Final, Protocol

from shellback.exec.core.sight.sight import Name, TooMuch

MOST: Final = 5_000
"""Names that a pattern may stand for; with more it is not expanded."""
_BRACKET: Final = re.compile(r"\[[!^]?[\w.,-]+\]")
"""One that stands for one character, whichever that is."""


class Looking(Protocol):
    """Who looks for `expanded`; paths are as the pattern has them."""

    def listed(self, path: str, *, hidden: bool) -> list[Name]:
        """The names in a directory that are, or are not, hidden; none where it cannot be looked at."""
        ...

    def enters(self, path: str) -> bool:
        """Whether a path leads, or may lead, to a directory."""
        ...

    def meets(self, path: str) -> bool:
        """Whether anything stands, or may stand, at a path."""
        ...


def expanded(pattern: str, looking: Looking, *, wide: bool = False) -> list[str]:
    """What a pattern stands for, sorted; empty where that is nothing. `wide`: or more, whatever a bracket means.

    Raises:
        TooMuch: It stands for more than `MOST`.
    """
    found: list[tuple[str, Name | None]] = [("/" if pattern.startswith("/") else "", None)]
    parts = [part for part in pattern.split("/") if part]

    def enters(path: str, one: Name | None) -> bool:
        return one.kind == "d" if one is not None and one.kind != "l" else looking.enters(path)

    for index, part in enumerate(parts):
        if not any(sign in part for sign in "*?["):
            found = [(os.path.join(base, part), None) for base, _ in found]
            continue
        matching = _matching(part, wide=wide)
        grown: list[tuple[str, Name | None]] = []
        for base, _ in found:
            names = looking.listed(base or ".", hidden=part.startswith("."))
            grown += [(os.path.join(base, one.name), one) for one in names if matching.fullmatch(one.name)]
            if len(grown) > MOST:
                raise TooMuch(f"{pattern} stands for too many files")
        last = index == len(parts) - 1
        found = grown if last else [(path, one) for path, one in grown if enters(path, one)]
    if pattern.endswith("/"):
        return sorted(f"{path}/" for path, one in found if enters(path, one))
    return sorted(path for path, one in found if one is not None or looking.meets(path))


def _matching(part: str, *, wide: bool) -> re.Pattern[str]:
    """A pattern of names, as bash has it; matches in no long time."""
    # What is in brackets depends on the locale, and an unclosed bracket is plain text: `wide` takes all that it can be.
    part = _BRACKET.sub("?", part) if wide else part
    return re.compile(".*" if wide and "[" in part else fnmatch.translate(part), re.DOTALL)
