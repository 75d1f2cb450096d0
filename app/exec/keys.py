"""Names of keys, and what a terminal receives for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.exec.errors import InvalidCommand

NAMED: Final = {
    "Enter": b"\r",
    "Tab": b"\t",
    "Escape": b"\x1b",
    "Space": b" ",
    "Backspace": b"\x7f",
    "C-c": b"\x03",
    "C-d": b"\x04",
    "Up": b"\x1b[A",
    "Down": b"\x1b[B",
    "Right": b"\x1b[C",
    "Left": b"\x1b[D",
}


def key_bytes(keys: Sequence[str]) -> bytes:
    """What typing `keys` sends: a name of `NAMED` is that key, anything else is typed as it stands.

    Raises:
        InvalidCommand: There are no keys.
    """
    if not any(keys):
        raise InvalidCommand(f"keys is empty; give text or names: {', '.join(NAMED)}")
    return b"".join(NAMED.get(key) or key.encode("utf-8", "replace") for key in keys)
