"""Escapes: characters as addresses, JSON, shells, programming languages and HTML write them."""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterator
from re import Match
from typing import Final

from shellback.exec.log.placed import Places, replaced

LONGEST: Final = 6
"""So many bytes stand for one at most, as in JSON."""
_KINDS: Final = {
    b"%": re.compile(rb"%[0-9A-Fa-f]{2}"),
    b"\\": re.compile(rb"(?:\\u[0-9A-Fa-f]{4})+|\\x[0-9A-Fa-f]{2}|\\[0-7]{3}|\\[^A-Za-z0-9\n]|\\[nrtbf]"),
    b"&": re.compile(rb"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"),
}
_APART: Final = b"\xff"
_CUT: Final = re.compile(rb"(?:%[0-9A-Fa-f]?|\\(?:u[0-9A-Fa-f]{0,3}|x[0-9A-Fa-f]?|[0-7]{0,2})|&#?\w{0,7})\Z")
_LETTERS: Final = {b"\\n": b"\n", b"\\t": b"\t", b"\\r": b"\r", b"\\b": b"\b", b"\\f": b"\f"}


def meant(data: bytes, around: int) -> tuple[bytes, Places] | None:
    """What a text with escapes means: of it the escapes and so many bytes around each; None if there are none.

    A byte that no text has stands for what is left out between them.
    """
    escapes = _in(data)
    return replaced(data, _changes(escapes, around, len(data))) if escapes else None


def _changes(escapes: list[Match[bytes]], around: int, length: int) -> Iterator[tuple[int, int, bytes]]:
    behind = 0
    for one in escapes:
        start, end = one.span()
        if start - behind > around:
            yield behind, start - around, _APART
        if start >= behind - around:
            yield start, end, _character(one[0])
        behind = end + around
    if behind < length:
        yield behind, length, b""


def uncut(data: bytes) -> bytes:
    """The data without an escape at its end that is not all there."""
    match = _CUT.search(data, max(0, len(data) - 2 * LONGEST))
    return data if match is None else data[: match.start()]


def _in(data: bytes) -> list[Match[bytes]]:
    found: list[Match[bytes]] = []
    for first, kind in _KINDS.items():
        # `find` is many times as fast as a search for the pattern.
        at = data.find(first)
        while at >= 0:
            match = kind.match(data, at)
            if match is not None:
                found.append(match)
            at = data.find(first, at + 1 if match is None else match.end())
    found.sort(key=lambda match: match.start())
    return found


@functools.lru_cache(4096)
def _character(escape: bytes) -> bytes:
    if escape in _LETTERS:
        return _LETTERS[escape]
    if escape.startswith(b"&"):
        return html.unescape(escape.decode()).encode("utf-8", "replace")
    if escape.startswith(b"\\u"):
        return str(json.loads(b'"%s"' % escape)).encode("utf-8", "replace")
    if escape.startswith((b"%", b"\\x")):
        return bytes.fromhex(escape[-2:].decode())
    return bytes([int(escape[1:], 8) & 0xFF]) if len(escape) > 2 else escape[1:]
