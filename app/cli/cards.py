"""The card of a request, and texts about it, as rows of a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from shellback.cli.output import styled
from shellback.cli.shared import columns
from shellback.exec.core.display import folded

_DIFFERENCE: Final = re.compile(r"    (?:diff: |      )([-+])")


def painted(lines: Sequence[str]) -> list[str]:
    """The lines of a card, folded to the terminal; what will run is bold, and a difference has its colours."""
    first, *more = folded(lines, columns())
    return [styled(first, "bold"), *map(_of_a_difference, more)]


def _of_a_difference(line: str) -> str:
    found = _DIFFERENCE.match(line)
    return line if found is None else styled(line, "red" if found[1] == "-" else "green")


def wrapped(texts: Iterable[str]) -> str:
    """Texts of Shellback's own, each in rows that fit the terminal and end with a word."""
    return "\n".join(textwrap.fill(text, columns() or 80, subsequent_indent="   ") for text in texts)
