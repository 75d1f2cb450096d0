"""The entries of a git index: see gitformat-index(5)."""

from __future__ import annotations

import struct
from typing import Final

GITLINK: Final = 0o160000
"""The mode of an entry that is a nested repository."""
_FIXED: Final = 40
"""Bytes of an entry before its object id: times, device, inode, mode, user, group, size."""
_EXTENDED: Final = 0x4000
_LENGTH: Final = 0xFFF


def read(data: bytes, *, id_bytes: int = 20) -> tuple[list[tuple[int, bytes]], int]:
    """The mode and path of each entry, and the offset of the extensions; object ids have `id_bytes`.

    Raises:
        ValueError: The index is damaged, cut off, or has an unknown version.
    """
    found: list[tuple[int, bytes]] = []
    try:
        signature, version, count = struct.unpack_from(">4sII", data)
        if signature != b"DIRC" or version not in {2, 3, 4}:
            raise ValueError("not an index of version 2, 3 or 4")
        at, name = 12, b""
        for _ in range(count):
            start = at
            (mode,) = struct.unpack_from(">I", data, at + 24)
            at += _FIXED + id_bytes
            (flags,) = struct.unpack_from(">H", data, at)
            at += 4 if flags & _EXTENDED else 2
            dropped, at = _number(data, at) if version == 4 else (len(name), at)
            stop = data.index(b"\0", at, len(data) - id_bytes)
            kept = len(name) - dropped
            name = name[: max(kept, 0)] + data[at:stop]
            if kept < 0 or min(len(name), _LENGTH) != flags & _LENGTH:
                raise ValueError("a path has another length than its entry says")
            at = stop + 1 if version == 4 else start + ((stop - start) // 8 + 1) * 8
            found.append((mode, name))
    except (struct.error, IndexError):
        raise ValueError("the index is cut off") from None
    return found, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the highest first, as pack files have it; and the offset behind it."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
