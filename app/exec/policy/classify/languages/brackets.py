"""Where a pattern ends depends on whether its brackets shield the delimiter; programs differ in that."""

from __future__ import annotations

import re
from typing import Final

_BRACKET: Final = re.compile(r"\[\^?+\]?+(?:\[:\w+:\]|\\[^\]]|[^\]\\\[])*+\]")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)


def all_closed(pattern: str) -> bool:
    """Whether the brackets of a pattern are closed before its first delimiter, so that it ends there for all."""
    return "[" not in _ESCAPED.sub("", _BRACKET.sub("", pattern))
