"""Replaces secrets in output that is shown. The log keeps the raw bytes, and all offsets are of these.

A value is found as it is, percent-encoded, as in JSON, and in base64, also where that is broken into lines. Control
sequences within a value are seen through. It is no wall: who can run commands can print a value in other forms.
"""

from __future__ import annotations

import base64
import bisect
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

from shellback.exec.log.plain_text import SEQUENCES, masked
from shellback.exec.log.shapes import BEGUN, LONGEST, SHAPES

re2: Final[Any] = _re2  # the module has no types
Mode = Literal["mask", "warn", "off"]
Values = Callable[[], Iterable[tuple[str, str]]]
"""Yields the name and the value of each secret that is known now."""

VALUES: Final = 1000
"""How many values are known at most; the first ones."""
VALUE_BYTES: Final = 1024
"""A longer value is masked in pieces of this length."""
FORM_BYTES: Final = 320 * 1024
"""Bytes of all forms of the known values at most. With many more, no automaton is made, or within seconds only."""
_SHORTEST_FORM: Final = 8
_EDGE: Final = 4
"""So many bytes of a value are needed to see it where output ends or was dropped, and half of them. With less, a
command that prints guesses would be told, one character after the other, a value that it cannot read."""
FRESH_S: Final = 5.0
"""The values are asked for again at most once in this time."""
_MEMORY: Final = 256 << 20
_B64: Final = rb"[A-Za-z0-9+/_-]"
# From the begin of a line on: with what may begin anywhere, the automaton has so many states that it is slow.
_WRAPPED: Final = rb"(?m:^)(?:" + _B64 + rb"{60,76}\r?\n)+" + _B64
_LAST: Final = re.compile(_B64 + rb"{1,76}")
_LINE_ENDS: Final = re.compile(rb"\r?\n")
_REMOVED: Final = bytes([*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
# In text, U+009C ends a sequence; as a byte it is also part of other characters.
_OF_BYTES: Final = SEQUENCES.replace(r"[^\x07\x1b\x9c]", r"(?:[^\x07\x1b\xc2]|\xc2(?!\x9c))")
_SEQUENCES: Final = re.compile(_OF_BYTES.replace(r"|\x9c)?", r"|\xc2\x9c)?").encode())
_LONG: Final = rb"\xc2[\x80-\x9f]|\xe2(?:\x80[\xa8-\xae]|\x81[\xa6-\xa9])"
_LONGS: Final = re.compile(b"(?:" + _LONG + b")+")
_CONTROL: Final = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_CONTROLS: Final = re.compile(_CONTROL + b"+")
_SELDOM_FIRST: Final = b"JZXVWKYUQHRNO)(qLIBGz#jT%PA',vDwCExF][SM=kgy:up\"87-9m.3l4156f0/hb2r_noidcstae "
_USUAL: Final = bytes(_SELDOM_FIRST.find(byte) + 1 for byte in range(256))
"""How usual each byte is in logs of builds; those that are not among them are 0."""
_SHARED: Final = 8
"""So many forms have the same part, unless one has no other: any of them may be there where the part is."""


class Hidden(NamedTuple):
    """Bytes to show, and how many secrets were found in them."""

    data: bytes
    found: int


class Span(NamedTuple):
    """Where a secret is."""

    start: int
    end: int
    name: str


def forms(value: str) -> set[bytes]:
    """How a value may be written: as it is, percent-encoded, as in JSON, in base64 at each alignment."""
    try:
        raw = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # an unpaired surrogate, as JSON may have
        raw = value.encode("utf-8", "replace")
    found = {raw[at : at + VALUE_BYTES] for at in range(0, len(raw), VALUE_BYTES)}
    for piece in tuple(found):
        found |= {quote(piece, safe="").encode(), json.dumps(piece.decode("utf-8", "replace"))[1:-1].encode()}
        for shift in range(3):
            # Only whole groups of the value: the characters at its ends depend on what stands beside it.
            groups = base64.b64encode(bytes(shift) + piece)
            first, rest = -(-shift * 4 // 3), (shift + len(piece)) % 3
            inner = groups[first : len(groups) - (4 - rest if rest else 0)]
            found |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return {one for one in map(_plain, found) if len(one) >= _SHORTEST_FORM}


def _compiled(pattern: bytes) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False  # they have the beginning of the pattern
    options.max_mem = _MEMORY
    return re2.compile(pattern, options)


_SHAPES: Final = {name: _compiled(shape.encode()) for name, shape in SHAPES.items()}
_ANY_SHAPE: Final = b"|".join(b"(?:%s)" % shape.encode() for shape in SHAPES.values())
_REMOVED_LONG: Final = _compiled(_LONG)
"""Whether there are `_LONGS`, which it says faster; for each that it finds it takes much longer."""
_BEGUN: Final = _compiled(BEGUN.encode())


@dataclass(frozen=True)
class _Scan:
    """What finds the known values and all shapes. `names` has the name of each form of a value."""

    names: dict[bytes, str] = field(default_factory=dict[bytes, str])

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.names), default=0)

    @cached_property
    def _known(self) -> bytes:
        return b"|".join(re2.escape(one) for one in sorted(self.names, key=len, reverse=True))

    @cached_property
    def _values(self) -> Any:
        return _compiled(self._known)

    @cached_property
    def _once(self) -> Any:
        return _compiled(b"|".join([self._known, _ANY_SHAPE]))

    @cached_property
    def _all(self) -> Any:
        """The same and lines of base64, in one pass: with these, more has to be done."""
        return _compiled(b"|".join([self._known, _ANY_SHAPE, _WRAPPED])) if self.names else _compiled(_ANY_SHAPE)

    @cached_property
    def _parts(self) -> dict[bytes, list[tuple[int, bytes]]]:
        """The part of each form by which it is looked for, which other text has least; where it is in which forms."""
        found: dict[bytes, list[tuple[int, bytes]]] = {}
        for one in self.names:
            parts = [(at, one[at : at + _SHORTEST_FORM]) for at in range(len(one) - _SHORTEST_FORM + 1)]
            at, part = min(parts, key=lambda each: (len(found.get(each[1], ())) >= _SHARED, each[1].translate(_USUAL)))
            found.setdefault(part, []).append((at, one))
        return found

    @cached_property
    def _hints(self) -> Any:
        """Finds shapes, lines of base64, what `_plain` removes, and `_parts`: it has few states, so it is fast."""
        kinds = [_ANY_SHAPE, *([_WRAPPED] if self.names else []), _CONTROL, _LONG, *map(re2.escape, self._parts)]
        return _compiled(b"|".join(kinds))

    @cached_property
    def _edges(self) -> tuple[dict[bytes, list[bytes]], dict[bytes, list[bytes]]]:
        heads: dict[bytes, list[bytes]] = {}
        tails: dict[bytes, list[bytes]] = {}
        for one in self.names:
            heads.setdefault(one[:_EDGE], []).append(one)
            tails.setdefault(one[-_EDGE:], []).append(one)
        return heads, tails

    def spans(self, data: bytes) -> list[Span]:
        found: list[Span] = []
        position = 0
        while (match := self._all.search(data, position)) is not None:
            position = self._note(match, data, found)
        return found

    def spans_if_plain(self, data: bytes) -> list[Span] | None:
        """The same, faster; None if `_plain` removes anything of the data."""
        found: list[Span] = []
        at = noted = 0
        while (hint := self._hints.search(data, at)) is not None:
            start, end = hint.span()
            at = start + 1
            if end - start < _SHORTEST_FORM:
                return None
            if (forms := self._parts.get(hint[0])) is not None:
                for before, one in forms:
                    if before <= start and data.startswith(one, start - before):
                        found.append(Span(start - before, start - before + len(one), self.names[one]))
                continue
            # A value may begin before the token, or be its beginning: which of them is there, `_all` says.
            noted = max(noted, start - self.longest)
            while noted <= start:
                noted = self._note(self._all.search(data, noted), data, found)
            at = noted
        return found

    def _note(self, match: Any, data: bytes, found: list[Span]) -> int:
        """Note what was found; where to search on."""
        start, end = match.span()
        name = self._name(match[0])
        if name is not None:
            found.append(Span(start, end, name))
            return end
        # Lines of base64: what is in one of them, and values that go on in the next. The line after them may be any
        # text, so the search goes on at its begin.
        end -= 1
        found += self._within(self._once, data[start:end], start)
        last = _LAST.match(data, end)
        found += self._in_lines(data[start : last.end() if last else end], start)
        return end

    def _within(self, regex: Any, data: bytes, at: int = 0) -> Iterator[Span]:
        for match in regex.finditer(data):
            yield Span(at + match.start(), at + match.end(), self._name(match[0]) or "value")

    def _in_lines(self, lines: bytes, at: int) -> Iterator[Span]:
        joined, places = _without(_LINE_ENDS, lines)
        for one in self._within(self._values, joined):
            start, end = _places(places, one)
            yield Span(at + start, at + end, one.name)

    def _name(self, text: bytes) -> str | None:
        if (known := self.names.get(text)) is not None:
            return known
        return next((name for name, shape in _SHAPES.items() if shape.fullmatch(text) is not None), None)

    def begun(self, data: bytes, after: int) -> Span | None:
        """A value or token of which the end of `data` has the beginning, somewhere behind `after`."""
        heads = self._edges[0]
        for at in range(max(after, len(data) - self.longest + 1), len(data) - _EDGE + 1):
            for one in heads.get(data[at : at + _EDGE], ()):
                if one.startswith(data[at:]) and 2 * (len(data) - at) >= len(one):
                    return Span(at, len(data), self.names[one])
        offset = max(after, len(data) - LONGEST)
        match = _BEGUN.search(data[offset:])
        return None if match is None else Span(offset + match.start(), len(data), "token")

    def left(self, data: bytes) -> Span | None:
        """A value of which the beginning of `data` has the end."""
        tails = self._edges[1]
        for end in range(min(len(data), self.longest - 1), _EDGE - 1, -1):
            for one in tails.get(data[end - _EDGE : end], ()):
                if one.endswith(data[:end]) and 2 * end >= len(one):
                    return Span(0, end, self.names[one])
        return None


class Mask:
    """Finds secrets in output, and replaces each by `[secret NAME]` unless `mode` is `warn`; `off` does neither.

    Any thread may use it. `values` is asked by `refresh` only. `noted` is told how many were
    found in which session's output, "" if that is not known.
    """

    def __init__(self, mode: Mode = "off", values: Values = tuple) -> None:
        self.mode: Final = mode
        self._source = values
        self._values: dict[str, str] = {}
        self._scan = _Scan()
        self._asked_at = -FRESH_S
        self._one = threading.Lock()
        self.noted: Callable[[int, str], None] = lambda _number, _of: None

    @property
    def reach(self) -> int:
        """How many bytes before and after a range have to be known to find secrets that its ends cut."""
        return 0 if self.mode == "off" else max(LONGEST, 2 * self._scan.longest)

    @property
    def known(self) -> int:
        """How many values are known."""
        return len(self._values)

    @property
    def due(self) -> bool:
        """Whether the values may have changed since they were asked for."""
        return self.mode != "off" and time.monotonic() - self._asked_at >= FRESH_S

    def refresh(self) -> None:
        """Ask for the values again, if that is due. Blocks: their files are read."""
        with self._one:
            if self.due:
                self._asked_at = time.monotonic()
                self._learn()

    def _learn(self) -> None:
        found: dict[str, str] = {}
        for name, value in self._source():
            found.setdefault(value, _shown_name(name))
            if len(found) >= VALUES:
                break
        if found != self._values:
            names: dict[bytes, str] = {}
            left = FORM_BYTES
            for value, name in found.items():
                new = forms(value) - names.keys() if len(value) <= left else set[bytes]()
                if (size := sum(map(len, new))) <= left:
                    left -= size
                    names |= dict.fromkeys(new, name)
            scan = _Scan(names)
            scan.spans_if_plain(b"")  # compiled here, not by the first reader
            scan.spans(b"")
            self._scan, self._values = scan, found

    def hide(
        self,
        data: bytes,
        first: int = 0,
        last: int | None = None,
        *,
        torn: bool = False,
        ends: bool = True,
        of: str = "",
    ) -> Hidden:
        """The bytes `first` to `last` of `data` as they are shown; the rest of `data` is what stands around them.

        Args:
            data: At most `reach` bytes more than are wanted, on both sides.
            first: Where the wanted bytes begin.
            last: Where they end; None: with `data`.
            torn: What stood before `data` was dropped, so it may begin with the end of a value.
            ends: Nothing stands after `data` yet, so it may end with the beginning of a value.
            of: The session that printed it.
        """
        last = len(data) if last is None else min(last, len(data))
        if self.mode == "off" or first >= last:
            return Hidden(data[first:last], 0)
        parts: list[bytes] = []
        position, found = first, 0
        for one in self.spans(data, torn=torn, ends=ends):
            if one.end <= position or one.start >= last:
                continue
            found += 1
            parts += [data[position : max(position, one.start)], b"[secret %s]" % one.name.encode()]
            position = min(one.end, last)
        if found:
            self.noted(found, of)
        if not found or self.mode == "warn":
            return Hidden(data[first:last], found)
        return Hidden(b"".join([*parts, data[position:last]]), found)

    def hide_text(self, text: str) -> str:
        """A text that was put together from output, as it is shown."""
        if self.mode != "mask":
            return text
        return self.hide(text.encode("utf-8", "replace"), ends=False).data.decode("utf-8", "replace")

    def shown(self, text: str) -> str:
        """A text as whoever may not know secrets sees it: also without passwords in addresses, whatever `mode` is."""
        return masked(self.hide_text(text))

    def spans(self, data: bytes, *, torn: bool = False, ends: bool = True) -> list[Span]:
        """The secrets in `data` in their order, none within another."""
        scan = self._scan
        plain, found = data, scan.spans_if_plain(data)
        if found is None:
            plain = _plain(data)
            found = scan.spans(plain)
        last = max((one.end for one in found), default=0)
        edges = (scan.left(plain) if torn else None, scan.begun(plain, last) if ends else None)
        found += [one for one in edges if one is not None]
        if found and len(plain) < len(data):
            for places in reversed(_steps(data)):
                found = [Span(*_places(places, one), one.name) for one in found]
        if b"\x1b" in data:
            # Some readers get sequences as well, and a page may begin within one.
            found += scan.spans(data)
        found.sort()
        apart: list[Span] = []
        for one in found:
            if apart and one.start < apart[-1].end:
                before = apart[-1]
                apart[-1] = before._replace(end=max(before.end, one.end))
            else:
                apart.append(one)
        return apart


UNMASKED: Final = Mask()
"""For output that nobody has to hide anything in: of a library without settings, and for a person at a terminal."""


Places = list[tuple[int, int]]
"""Pairs of offsets: in the text without what was removed, and before that. Ordered; the first is (0, 0) or later."""


def _plain(data: bytes) -> bytes:
    """The data without what `harmless` removes, in steps that are faster than one."""
    plain = _SEQUENCES.sub(b"", data) if b"\x1b" in data else data
    plain = plain.translate(None, _REMOVED)
    if not plain.isascii() and _REMOVED_LONG.search(plain) is not None:
        plain = _LONGS.sub(b"", plain)
    return plain


def _steps(data: bytes) -> list[Places]:
    """What each step of `_plain` removes. In one step it would be less: a step may join what a later one removes."""
    found: list[Places] = []
    for noise in (_SEQUENCES, _CONTROLS, _LONGS):
        data, places = _without(noise, data)
        found.append(places)
    return found


def _without(noise: Any, data: bytes) -> tuple[bytes, Places]:
    parts: list[bytes] = []
    places: Places = [(0, 0)]
    position = length = 0
    for match in noise.finditer(data):
        parts.append(data[position : match.start()])
        length += match.start() - position
        position = match.end()
        places.append((length, position))
    return b"".join([*parts, data[position:]]), places


def _places(places: Places, one: Span) -> tuple[int, int]:
    def before(offset: int) -> int:
        at, was = places[bisect.bisect_right(places, (offset, 1 << 62)) - 1]
        return was + offset - at

    return before(one.start), before(one.end - 1) + 1


def _shown_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:40] or "value"
