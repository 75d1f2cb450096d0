"""The card of a request, and texts about it, as rows of a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from shellback.cli.output import fitted, styled
from shellback.cli.shared import columns

_DIFFERENCE: Final = re.compile(r"    (?:diff: |      )([-+])")


def painted(lines: Sequence[str]) -> list[str]:
    """The lines of a card, folded to the terminal; what will run is bold, and a difference has its colours."""
    first, *more = lines
    return [row for one in (styled(first, "bold"), *map(_of_a_difference, more)) for row in fitted(one, columns())]


def _of_a_difference(line: str) -> str:
    found = _DIFFERENCE.match(line)
    return line if found is None else styled(line, "red" if found[1] == "-" else "green")


def wrapped(texts: Iterable[str]) -> str:
    """Texts of Shellback's own, each in rows that fit the terminal and end with a word."""
    width = columns() or 80
    return "\n".join(textwrap.fill(one, width, subsequent_indent="   ", break_on_hyphens=False) for one in texts)
