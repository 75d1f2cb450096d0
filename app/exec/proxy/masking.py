"""Finds a value in an answer that comes in pieces, and puts its placeholder in its place.

The value is found as it is, percent-encoded, in JSON, and in base64, alone or within a longer text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

_BITS: Final = 6


class Mask:
    """Replaces one value; the answer keeps its length."""

    def __init__(self, value: str, placeholder: str) -> None:
        pairs = dict(zip(_forms(value), _forms(placeholder), strict=True))
        self._pairs = sorted(pairs.items(), key=lambda pair: -len(pair[0]))
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """A text that is there as a whole."""
        for form, instead in self._pairs:
            data = data.replace(form, instead)
        return data

    def in_small(self, data: bytes) -> bool:
        """Whether it is in a text in small letters, such as names of headers."""
        return any(form.lower() in data for form, _ in self._pairs)

    def piece(self, data: bytes) -> bytes:
        """What can be passed on after this piece; what may be the beginning of the value is held back."""
        data = self.whole(self._held + data)
        at = self._begins(data)
        self._held = data[at:]
        return data[:at]

    def rest(self) -> bytes:
        """What is held back, at the end of the answer."""
        held, self._held = self._held, b""
        return held

    def _begins(self, data: bytes) -> int:
        """Where the first form begins that the data may end within; the end of the data if none does."""
        first = len(data)
        for form, _ in self._pairs:
            at = max(0, len(data) - len(form) + 1) - 1
            while (at := data.find(form[:1], at + 1, first)) >= 0:
                if form.startswith(data[at:]):
                    first = at
                    break
        return first


def _forms(value: str) -> Iterator[bytes]:
    yield value.encode()
    for text in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield text.encode()
        yield _small(text).encode()
    inner = json.dumps(value)[1:-1]
    yield inner.encode()
    yield inner.replace("/", "\\/").encode()
    for coded in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # The first and the last digit may depend on what stands beside the value.
            start, end = -(-before * 8 // _BITS), (before + len(value)) * 8 // _BITS
            yield coded(b"\0" * before + value.encode())[start:end]


def _small(text: str) -> str:
    head, *others = text.split("%")
    return "%".join([head, *(one[:2].lower() + one[2:] for one in others)])
