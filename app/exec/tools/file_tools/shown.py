"""What a person is shown of a change before it is made: all that is written, and what is taken away for it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

DIFF_CHARS: Final = 50_000
"""A longer diff is none that anybody reads; then what is written is shown by itself, and that always whole."""
DIFF_BYTES: Final = 1 << 20


def shown_change(before: bytes, after: bytes, *, instead: Mapping[str, object]) -> Mapping[str, object]:
    """A change of a file as a person reads it: the lines that differ, or why not and what is shown `instead`."""
    if max(len(before), len(after)) > DIFF_BYTES:
        return {"diff": f"(not shown: the file has {len(before):,} bytes before and {len(after):,} after)", **instead}
    old, new = _text(before), _text(after)
    if old is None or new is None:
        when = "before" if old is None else "afterwards"
        return {"diff": f"(not shown: the file is binary {when}, {len(before):,} bytes then {len(after):,})", **instead}
    lines = difflib.unified_diff(_lines(old), _lines(new), "before", "after", n=3)
    diff = "".join(line if line.endswith("\n") else f"{line}\n\\ no line end here\n" for line in lines)
    if len(diff) > DIFF_CHARS:
        return {"diff": f"(not shown: it has {len(diff):,} characters)", **instead}
    return {"diff": diff.rstrip("\n") or "(no line differs)"}


def shown_text(text: str) -> Mapping[str, object]:
    """What is written where nothing was, or at the end of what is there: all of it."""
    return {"content": text or "(empty)"}


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
