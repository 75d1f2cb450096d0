"""What a person is shown of a change before it is made: all that is written, and what is taken away for it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from typing import Final

SHOWN_CHARS: Final = 50_000
"""More than a tool may write in one call, so that what it writes is always shown whole."""
DIFF_BYTES: Final = 1 << 20


def shown_change(before: bytes, after: bytes) -> Mapping[str, object]:
    """A change of a file as a person reads it: the lines that differ, or why they cannot be shown."""
    if max(len(before), len(after)) > DIFF_BYTES:
        return {"diff": f"(not shown: the file has {len(before):,} bytes before and {len(after):,} after)"}
    old, new = _text(before), _text(after)
    if old is None:
        return {"replaces": f"a binary file of {len(before):,} bytes", **shown_text(after)}
    if new is None:
        return {"diff": f"(not shown: the file is binary afterwards, {len(after):,} bytes)"}
    lines = difflib.unified_diff(_lines(old), _lines(new), "before", "after", n=3)
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ no line end here\n" for line in lines)
    return {"diff": bounded(diff.rstrip("\n"), after) if diff else "(no line differs)"}


def shown_text(data: bytes) -> Mapping[str, object]:
    """What is written where nothing was, or at the end of what is there."""
    text = _text(data)
    return {"content": "(binary)" if text is None else bounded(text, data) or "(empty)"}


def bounded(text: str, data: bytes) -> str:
    """The beginning of a text that is longer than a person is shown; it says what is missing."""
    if len(text) <= SHOWN_CHARS:
        return text
    kept = text[:SHOWN_CHARS]
    digest = hashlib.sha256(data).hexdigest()
    left = text.count("\n", len(kept)) + 1
    return f"{kept}\n... {left:,} more lines are not shown; the file will have {len(data):,} bytes, sha256 {digest}"


def counted(data: bytes) -> str:
    """How much a text is: lines and bytes."""
    lines = data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)
    return f"{many(lines, 'line')}, {many(len(data), 'byte')}"


def many(count: int, what: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    # Not `splitlines`, which also cuts at characters that are no line ends to anybody else.
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
