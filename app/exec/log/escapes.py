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

LONGEST: Final = 12
"""So many bytes an escape has at most: two of JSON for one character."""
_KINDS: Final = {
    b"%": re.compile(rb"%[0-9A-Fa-f]{2}"),
    b"\\": re.compile(
        rb"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"
        rb"|\\x[0-9A-Fa-f]{2}|\\[0-7]{3}|\\[^A-Za-z0-9\n]|\\[nrtbfave]"
    ),
    b"&": re.compile(rb"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"),
}
_APART: Final = b"\xff\n\xff"
_CUT: Final = re.compile(
    rb"(?:%[0-9A-Fa-f]?|\\(?:u[0-9A-Fa-f]{0,3}|U[0-9A-Fa-f]{0,7}|x[0-9A-Fa-f]?|[0-7]{0,2})|&#?\w{0,7})\Z"
)
_LEFT: Final = re.compile(rb"[uU]?[0-9A-Fa-f]{1,7}|x[0-9A-Fa-f]{1,2}|[^A-Za-z0-9\n]|[nrtbfave]|#?\w{0,5};")
_LETTERS: Final = dict(
    zip(
        (b"\\" + bytes([each]) for each in b"nrtbfave"),
        (b"\n\r\t\b\f\a\v\x1b"[at : at + 1] for at in range(8)),
        strict=True,
    )
)


def meant(data: bytes, around: int) -> tuple[bytes, Places] | None:
    """What a text with escapes means: of it the escapes and so many bytes around each; None if there are none.

    Bytes that no text has stand for what is left out.
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
        yield behind, length, _APART


def uncut(data: bytes) -> bytes:
    """The data without an escape at its end that is not all there."""
    match = _CUT.search(data, max(0, len(data) - 2 * LONGEST))
    return data if match is None else data[: match.start()]


def ends_one(data: bytes) -> bool:
    """Whether this may be the end of an escape that begins before it."""
    return _LEFT.fullmatch(data) is not None


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
    if escape.startswith(b"\\U"):
        escape = b"&#x%s;" % escape[2:]
    if escape.startswith(b"&"):
        return html.unescape(escape.decode()).encode("utf-8", "replace")
    if escape.startswith(b"\\u"):
        return str(json.loads(b'"%s"' % escape)).encode("utf-8", "replace")
    if escape.startswith((b"%", b"\\x")):
        return bytes.fromhex(escape[-2:].decode())
    return bytes([int(escape[1:], 8) & 0xFF]) if len(escape) > 2 else escape[1:]
