"""Text of which parts were replaced or removed, and where each of its bytes was before."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

Places = list[tuple[int, int]]
"""Pairs of offsets: in the new text, and before that. Ordered; the first is (0, 0) or later."""


def replaced(data: bytes, changes: Iterable[tuple[int, int, bytes]]) -> tuple[bytes, Places]:
    """The data with what is between each two offsets replaced. Of changes that overlap, the first one counts."""
    parts: list[bytes] = []
    places: Places = [(0, 0)]
    position = length = 0
    for start, end, new in changes:
        if start < position:
            continue
        parts += [data[position:start], new]
        length += start - position + len(new)
        position = end
        places.append((length, position))
    return b"".join([*parts, data[position:]]), places


def before(places: Places, offset: int) -> int:
    """Where the byte at this offset was; behind what was removed or replaced there."""
    at, was = places[bisect.bisect_right(places, (offset, 1 << 62)) - 1]
    return was + offset - at
