"""The server's name in the first message of a TLS client; source: RFC 8446, 4.1.2, and RFC 6066, 3."""

from __future__ import annotations

from typing import Final

RECORD: Final = 0x16
MOST_BYTES: Final = 1 << 14
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_ENCRYPTED: Final = 0xFE0D
"""Encrypted Client Hello, RFC 9849: the name that counts cannot be read."""


class Unreadable(Exception):
    """Raised for a message that no server could follow, or whose name cannot be read."""


class _Short(Exception):
    """Raised where more bytes are due."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise _Short
        self._at += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> _Bytes:
        """The bytes that a length of `size` bytes precedes."""
        return _Bytes(self.take(self.number(size)))


def server_name(data: bytes) -> str | None:
    """The name that the client asks for, "" for none; None as long as the message is not complete.

    Raises:
        Unreadable: It is no such message, or its name is hidden or given twice.
    """
    try:
        message = _Bytes(_message(_Bytes(data)))
    except _Short:
        if len(data) >= MOST_BYTES:
            raise Unreadable("the first TLS message is too long") from None
        return None
    try:
        return _named(message)
    except (_Short, UnicodeDecodeError):
        raise Unreadable("the first TLS message is damaged") from None


def _message(records: _Bytes) -> bytes:
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[1:4]):
        if records.number(1) != RECORD:
            raise Unreadable("the first TLS message is damaged")
        records.take(2)
        size = records.number(2)
        if not size:
            raise Unreadable("the first TLS message is damaged")
        found += records.take(size)
        if found[:1] != bytes([_CLIENT_HELLO]):
            raise Unreadable("the first TLS message is not a client's")
    return found[4 : 4 + int.from_bytes(found[1:4])]


def _named(message: _Bytes) -> str:
    message.take(2 + 32)
    message.vector(1)
    message.vector(2)
    message.vector(1)
    found: list[str] = []
    extensions = message.vector(2) if message else _Bytes(b"")
    while extensions:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == _ENCRYPTED:
            raise Unreadable("the name in TLS is encrypted (ECH)")
        if kind == _SERVER_NAME:
            names = body.vector(2)
            while names:
                host, text = names.number(1), names.vector(2)
                found.append(text.rest().decode("ascii") if host == 0 else "")
    if len(found) > 1:
        raise Unreadable("TLS names two servers")
    return found[0] if found else ""
