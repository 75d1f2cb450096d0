"""The requests that servers find in the same bytes: strict ones, and those that read what they should refuse."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_LINES: Final = (rb"\r\n", rb"\r?\n", rb"(?:\r\n|\r(?!\n)|(?<!\r)\n)")


class Way(NamedTuple):
    """How a server reads: the end of a line, whether chunks count before a length, and the last of two fields.

    And whether lines are folded, and whether a proxy before it leaves out the length when it is told to.
    """

    line: bytes
    chunks: bool
    last: bool
    folds: bool
    leaves_out: bool


WAYS: Final = tuple(itertools.starmap(Way, itertools.product(_LINES, *[(False, True)] * 4)))


def requests(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Host and bytes of each request that any of these servers finds."""
    for way in WAYS:
        yield from _read(data, way)


def _read(data: bytes, way: Way) -> Iterator[tuple[str, bytes]]:
    blank = re.compile(rb"(?:%b){2}" % way.line)
    while ended := blank.search(data := data.lstrip()):
        head, rest = data[: ended.start()], data[ended.end() :]
        first, *lines = re.split(way.line, head)
        words = first.split()
        if len(words) < 2:
            data = rest
            continue
        fields = list(_fields(lines, folds=way.folds))
        body, after = _body(rest, fields, way)
        hosts = [value for key, value in fields if key == b"host"]
        host = hosts[-way.last] if hosts else b""
        if b"://" in words[1]:
            host = re.split(rb"[/?#]", words[1].partition(b"://")[2])[0]
        elif words[0].upper() == b"CONNECT":
            host = words[1]
        yield _name(host), head + body
        data = after


def _fields(lines: list[bytes], *, folds: bool) -> Iterator[tuple[bytes, bytes]]:
    found: list[bytes] = []
    for line in lines:
        if folds and found and line[:1] in {b" ", b"\t"}:
            found[-1] += b" " + line.strip()
        else:
            found.append(line)
    for line in found:
        key, _, value = line.partition(b":")
        yield key.strip(b" \t\r\n\v\f\0").lower(), value.strip(b" \t\r\n\v\f")


def _body(rest: bytes, fields: list[tuple[bytes, bytes]], way: Way) -> tuple[bytes, bytes]:
    lengths = [one for key, value in fields if key == b"content-length" for one in value.split(b",")]
    if way.leaves_out and any(key == b"connection" and b"content-length" in value.lower() for key, value in fields):
        lengths = []
    chunked = any(
        key.replace(b"_", b"-") == b"transfer-encoding" and b"chunked" in value.lower() for key, value in fields
    )
    try:
        if chunked and (way.chunks or not lengths):
            return _chunks(rest)
        size = int(lengths[-way.last]) if lengths else 0
    except ValueError:
        return rest, b""
    return rest[:size], rest[max(size, 0) :]


def _chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while rest:
        line, _, rest = rest.partition(b"\n")
        size = int(line.split(b";")[0].strip() or b"0", 16)
        if not size:
            trailer, *after = re.split(rb"\r?\n\r?\n", b"\n" + rest, maxsplit=1)
            return body + trailer, b"".join(after)
        body, rest = body + rest[:size], rest[size:].removeprefix(b"\r").removeprefix(b"\n")
    return body, b""


def _name(host: bytes) -> str:
    text = host.split(b"\0")[0].decode("latin-1").rpartition("@")[2].lower().strip()
    return re.sub(r":\d*$", "", text).removesuffix(".")
