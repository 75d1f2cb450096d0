"""How a text that stands elsewhere as a whole is named."""

from __future__ import annotations

from typing import Final

_MOST: Final = 80


def label(text: str) -> str:
    """How it begins: its first line, 80 characters at most."""
    first = text.split("\n", 1)[0][:_MOST]
    return first if first == text else f"{first} ..."
