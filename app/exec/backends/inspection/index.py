"""The nested repositories that an index of git names: its entries of mode 160000. Format: gitformat-index(5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

MOST_BYTES: Final = 16 * 1024 * 1024
_GITLINK: Final = 0o160000
_LINK: Final = _GITLINK.to_bytes(4, "big")
_FIXED: Final = 40
"""Bytes of an entry before its object id."""
_EXTENDED: Final = 0x4000


def gitlinks(data: bytes, *, id_bytes: int = 20) -> frozenset[bytes]:
    """The paths of nested repositories in an index; object ids have `id_bytes`.

    Raises:
        ValueError: It is too long, or no index that we can read.
    """
    if len(data) > MOST_BYTES:
        raise ValueError
    if _LINK not in data:
        return frozenset()
    try:
        return frozenset(path for mode, path in _entries(data, id_bytes) if mode == _GITLINK)
    except (struct.error, IndexError):
        raise ValueError from None


def shared(data: bytes, *, id_bytes: int = 20) -> str | None:
    """The id in the name of the index that this one only adds to, if it is split: `sharedindex.<id>`."""
    at = data.rfind(b"link")
    named = data[at + 8 : at + 8 + id_bytes].hex() if at >= 0 else ""
    return named if len(named) == 2 * id_bytes and named.strip("0") else None


def _entries(data: bytes, id_bytes: int) -> Iterator[tuple[int, bytes]]:
    magic, version, count = struct.unpack_from(">4sII", data)
    if magic != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError
    at, path = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", data, at + 24)
        (flags,) = struct.unpack_from(">H", data, at + _FIXED + id_bytes)
        name = at + _FIXED + id_bytes + (4 if flags & _EXTENDED else 2)
        dropped = 0
        if version == 4:
            dropped, name = _offset(data, name)
        end = data.index(b"\0", name)
        path = path[: len(path) - dropped] + data[name:end] if version == 4 else data[name:end]
        yield mode, path
        at = end + 1 if version == 4 else at + ((end - at) // 8 + 1) * 8


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, as in pack files, and where it ends."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1
