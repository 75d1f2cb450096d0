"""Which files a git repository has in its index, told from the bytes of that: gitformat-index(5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_FIXED: Final = 62
"""Bytes of an entry before its name: times, device, inode, mode, user, group, size, 20 of the object's name, flags."""
_EXTENDED: Final = 0x4000
_LENGTH: Final = 0xFFF
_CHECKSUM: Final = 20
_ELSEWHERE: Final = (b"link", b"sdir")
"""Extensions by which entries are in another file, or stand for directories."""


class Unread(Exception):
    """Raised for an index that is not understood, so that what is in it is not known."""


def entries(data: bytes) -> Iterator[str]:
    """The path of each entry, relative to the top of the working tree; bytes that are no UTF-8 are replaced.

    Raises:
        Unread: It is cut off, split, sparse, of objects with other names, or of a version that is not known.
    """
    try:
        yield from _entries(data, len(data) - _CHECKSUM)
    except (struct.error, IndexError):
        raise Unread from None


def _entries(data: bytes, end: int) -> Iterator[str]:
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise Unread
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", data, at + _FIXED - 2)
        at += _FIXED + (2 if flags & _EXTENDED else 0)
        kept = 0
        if version == 4:
            dropped, at = _number(data, at)
            kept = len(name) - dropped
        stop = data.find(b"\0", at, end)
        if stop < 0 or kept < 0:
            raise Unread
        name = name[:kept] + data[at:stop]
        if min(len(name), _LENGTH) != flags & _LENGTH:
            raise Unread
        at = stop + 1 if version == 4 else start + ((stop - start) // 8 + 1) * 8
        yield name.decode("utf-8", "replace")
    while at < end:
        kind, size = struct.unpack_from(">4sI", data, at)
        if kind in _ELSEWHERE:
            raise Unread
        at += 8 + size
    if at != end:
        raise Unread


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the highest first, as offsets of packs have it; and where it ends."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
