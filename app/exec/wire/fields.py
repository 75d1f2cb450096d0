"""Checks single fields of a message: the peer may be another program, or another version."""

from __future__ import annotations

import base64
import os
import re
from typing import Any, Final, TypeVar, cast

SESSION_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}\Z")

Message = dict[str, Any]
_T = TypeVar("_T")


class Refused(Exception):
    """Raised for a request that has no effect and is answered with an error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def field_of(message: Message, name: str, kind: type[_T]) -> _T:
    value = message.get(name)
    if not isinstance(value, kind):
        raise Refused("bad_request", f"{name} is missing or not a {kind.__name__}")
    return value


def session_id(message: Message) -> str:
    value = message.get("session_id")
    if not isinstance(value, str) or not SESSION_ID.match(value):
        raise Refused("bad_request", "session_id is missing or not a plain name")
    return value


def number_of(message: Message, name: str, default: float) -> float:
    value = message.get(name, default)
    if not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise Refused("bad_request", f"{name} is not a number from 0")
    return value


def optional_id(message: Message, name: str) -> int | None:
    return None if message.get(name) is None else id_of(message[name])


def id_of(value: object) -> int:
    # To the kernel, 2^32 - 1 means "unchanged", and larger numbers wrap around to root.
    if not isinstance(value, int) or not 0 <= value < (1 << 32) - 1:
        raise Refused("bad_request", "not the id of a user or group")
    return value


def place_of(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    words = cast("list[object]", value) if isinstance(value, list) else []
    match words:
        case [int(device), int(inode)]:
            return device, inode
        case _:
            raise Refused("bad_request", "not the device and inode of a directory")


def encodes(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def size_of(value: object) -> tuple[int, int]:
    if isinstance(value, dict):
        size = cast("dict[str, object]", value)
        rows, cols = size.get("rows"), size.get("cols")
        if isinstance(rows, int) and isinstance(cols, int) and 1 <= rows <= 9999 and 1 <= cols <= 9999:
            return rows, cols
    raise Refused("bad_request", "rows and cols are not numbers from 1 to 9999")


def bytes_of(value: object) -> bytes:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        raise Refused("bad_request", "not base64") from None


def words_of(message: Message, name: str) -> tuple[str, ...]:
    words = cast("list[str]", field_of(message, name, list))
    try:
        # All at once: a sandbox has hundreds of options.
        whole = os.fsencode("\0".join(words))
    except (TypeError, UnicodeEncodeError):
        whole = None
    if whole is None or (words and whole.count(0) != len(words) - 1):
        raise Refused("bad_request", f"{name} is not a list of strings that the kernel could be given")
    return tuple(words)
