"""Bash's own quoting: what we write for it, and what its `printf %q` prints."""

from __future__ import annotations

import re
from typing import Final

_BYTE: Final = {0x27: b"\\'", 0x5C: b"\\\\", 0x0A: b"\\n"}
_SPECIAL: Final = re.compile(rb"[\x00-\x1f\x7f'\\]")
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
_NAMED: Final = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"v": b"\v",
    b"f": b"\f",
    b"E": b"\x1b",
}


def quoted(data: bytes) -> bytes:
    """One word with exactly these bytes, on one line and without control characters: a terminal may carry it."""
    return b"$'%b'" % _SPECIAL.sub(_escaped, data)


def _escaped(found: re.Match[bytes]) -> bytes:
    byte = found[0][0]
    return _BYTE.get(byte) or b"\\%03o" % byte


def unquoted(data: bytes) -> bytes:
    """What was quoted with `%q`."""
    if data.startswith(b"$'"):
        return _ESCAPE.sub(_unescaped, data[2:-1])
    return b"" if data == b"''" else re.sub(rb"\\(.)", rb"\1", data, flags=re.DOTALL)


def _unescaped(found: re.Match[bytes]) -> bytes:
    what = found[1]
    if what[:1] in b"01234567":
        return bytes([int(what, 8) & 0xFF])
    return _NAMED.get(what, what)
