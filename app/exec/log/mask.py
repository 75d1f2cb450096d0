"""Replaces secrets in output that is shown. The log keeps the raw bytes, and all offsets are of these.

A value is found as it is, with escapes of any kind (`escapes`), and in base64, also where that is broken into lines.
Control sequences within a value are seen through. It is no wall: who can run commands can print a value in other forms.
"""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

from shellback.exec.log import escapes
from shellback.exec.log.placed import Places, before, replaced
from shellback.exec.log.plain_text import SEQUENCES, masked
from shellback.exec.log.shapes import BEGUN, LEFT, LONGEST, SHAPES

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
_INSTEAD: Final = ((b" ", b"+"), (b"'", b"''"), (b"'", b"'''"), (b"'", b"'\"'\"'"), (b'"', b'""'))
"""A blank in a form; a quote in SQL and YAML, in a shell (of `'\\''`, whose escape is seen through), and by Python."""
_NEVER_ESCAPED: Final = re.compile(r"[A-Za-z0-9_-]*")
_NESTED: Final = 2
"""Escapes are seen through in so many layers, as in JSON within JSON."""
_EDGE: Final = 4
"""So many bytes of a value are needed to see it where output ends or was dropped, and half of them. With less, a
command that prints guesses would be told, one character after the other, a value that it cannot read."""
FRESH_S: Final = 5.0
"""The values are asked for again at most once in this time."""
_MEMORY: Final = 256 << 20
_B64: Final = rb"[A-Za-z0-9+/_-]"
# From the begin of a line on: with what may begin anywhere, the automaton has so many states that it is slow.
_WRAPPED: Final = rb"(?m:^)(?:" + _B64 + rb"{60,76}\r?\n)+" + _B64
_LINE: Final = 78
"""A line of base64 with its end has so many bytes at most."""
_LAST: Final = re.compile(_B64 + rb"{1,76}")
_LINE_ENDS: Final = re.compile(rb"\r?\n")
_RETURNS: Final = re.compile(rb"(?<!\r)\r++(?=\n)")  # otherwise quadratic for many without a newline
_RETURNS_ARE_LINES: Final = bytes.maketrans(b"\r", b"\n")
_REMOVED: Final = bytes([*range(9), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F])
# In text, U+009C ends a sequence; as a byte it is also part of other characters. The bound counts characters, and
# "\r\n" as one, as where the text is made harmless.
_CHARACTER: Final = (
    r"(?:\r\n|[\x00-\x06\x08-\x1a\x1c-\x7f]|[\xc3-\xdf][\x80-\xbf]|\xc2(?!\x9c)[\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]?"
    r"|[\xe1-\xec\xee\xef][\x80-\xbf]{1,2}|\xed[\x80-\x9f][\x80-\xbf]?|\xf0[\x90-\xbf][\x80-\xbf]{0,2}"
    r"|[\xf1-\xf3][\x80-\xbf]{1,3}|\xf4[\x80-\x8f][\x80-\xbf]{0,2}|(?!\xc2\x9c)[\x80-\xff])"
)
_OF_BYTES: Final = SEQUENCES.replace(r"[^\x07\x1b\x9c]", _CHARACTER)
_SEQUENCES: Final = re.compile(_OF_BYTES.replace(r"|\x9c)?", r"|\xc2\x9c)?").encode())
_LONG: Final = rb"\xc2[\x80-\x9f]|\xe2(?:\x80[\xa8-\xae]|\x81[\xa6-\xa9])"
_LONGS: Final = re.compile(b"(?:" + _LONG + b")+")
_CONTROL: Final = rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_CONTROLS: Final = re.compile(_CONTROL + b"+")
_SELDOM_FIRST: Final = b"JZXVWKYUQHRNO)(qLIBGz#jT%PA',vDwCExF][SM=kgy:up\"87-9m.3l4156f0/hb2r_noidcstae "
_USUAL: Final = bytes(_SELDOM_FIRST.find(byte) + 1 for byte in range(256))
"""How usual each byte is in logs of builds; those that are not among them are 0."""
_WINDOW: Final = 16 * 1024
"""A token is seen as a whole up to this length, wherever output is read in one piece."""
_NEAR: Final = _WINDOW // 4
"""Hints are close with less than this between them."""
_INNER: Final = 64
"""Hints within a token that are looked at; then only values are, or a token that repeats itself would take long."""
_SHORTEST_TOKENS: Final = 256
"""In so many bytes a token may begin that goes on behind the one that it is in."""
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


def _within(one: Span, other: Span) -> bool:
    """Whether a span adds nothing to another, also no name."""
    return (other.start, other.name in SHAPES) <= (one.start, False) and one.end <= other.end


def _add(found: list[Span], one: Span) -> None:
    """Append a span; one that overlaps the last one is joined with it, so that there are not more than bytes."""
    if found and one.start < found[-1].end and found[-1].start < one.end:
        # By the name of what begins first; a value that is known has its own, also if it has the shape of a token.
        first, last = sorted((found[-1], one), key=lambda each: (each.start, each.name in SHAPES))
        found[-1] = first._replace(end=max(first.end, last.end))
    else:
        found.append(one)


def forms(value: str) -> set[bytes]:
    """How a value may be written, besides escapes: as it is, with doubled quotes, in base64 at each alignment."""
    try:
        raw = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # an unpaired surrogate, as JSON may have
        raw = value.encode("utf-8", "replace")
    # The last piece overlaps the one before: a short one would stand in other text too, or be too short to look for.
    found = {raw[at : at + VALUE_BYTES] for at in range(0, max(1, len(raw) - VALUE_BYTES), VALUE_BYTES)}
    found.add(raw[-VALUE_BYTES:])
    for piece in tuple(found):
        text = piece
        for _ in range(1 + _NESTED):
            found |= {text, *(text.replace(one, instead) for one, instead in _INSTEAD)}
            # A value with escapes of its own is read as it is meant, where it is written with others.
            text, _ = escapes.meant(text, len(text)) or (text, [])
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
_LEFT: Final = _compiled(LEFT.encode())
_WRAPPED_END: Final = _compiled(rb"(?m:^)(?:" + _B64 + rb"{60,76}\r?\n)+" + _B64 + rb"{0,76}\z")


@dataclass(frozen=True)
class _Scan:
    """What finds the known values and all shapes. `names` has the name of each form of a value."""

    names: dict[bytes, str] = field(default_factory=dict[bytes, str])
    escapable: bool = False
    """Whether a value has a character that is often written as an escape."""

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.names), default=0)

    @cached_property
    def _parts(self) -> dict[bytes, tuple[int, list[tuple[int, int, bytes]]]]:
        """The part of each form by which it is looked for, which other text has least.

        With how far the form goes on from the begin of the part, the farthest first, and where the part is in it; and
        before them the farthest such place.
        """
        found: dict[bytes, list[tuple[int, int, bytes]]] = {}
        for one in self.names:
            parts = [(at, one[at : at + _SHORTEST_FORM]) for at in range(len(one) - _SHORTEST_FORM + 1)]
            at, part = min(parts, key=lambda each: (len(found.get(each[1], ())) >= _SHARED, each[1].translate(_USUAL)))
            found.setdefault(part, []).append((len(one) - at, at, one))
        return {
            part: (max(before for _, before, _ in forms), sorted(forms, reverse=True)) for part, forms in found.items()
        }

    def compile(self) -> None:
        """Make the automata."""
        _ = self._hints, self._inner, self._part

    @cached_property
    def _hints(self) -> Any:
        """Finds lines of base64, shapes, what `_plain` removes, and `_parts`: it has few states, so it is fast."""
        kinds = [*([_WRAPPED] if self.names else []), _ANY_SHAPE, _CONTROL, _LONG, *map(re2.escape, self._parts)]
        return _compiled(b"|".join(kinds))

    @cached_property
    def _inner(self) -> Any:
        """The same within lines of base64."""
        return _compiled(b"|".join([_ANY_SHAPE, *map(re2.escape, self._parts)]))

    @cached_property
    def _part(self) -> Any:
        return _compiled(b"|".join(map(re2.escape, self._parts)))

    @cached_property
    def _edges(self) -> tuple[dict[bytes, list[bytes]], dict[bytes, list[bytes]]]:
        heads: dict[bytes, list[bytes]] = {}
        tails: dict[bytes, list[bytes]] = {}
        for one in self.names:
            heads.setdefault(one[:_EDGE], []).append(one)
            tails.setdefault(one[-_EDGE:], []).append(one)
        return heads, tails

    def spans(self, data: bytes, *, bare: bool = False) -> list[Span] | None:
        """All that is found, in any order; None if `_plain` removes anything of the data, unless it has (`bare`)."""
        found: list[Span] = []
        at, near, inner = 0, False, 0
        while at < len(data):
            # A token that may go on keeps a search from its end: where hints are close, none looks far behind a token.
            until = min(len(data), at + 2 * _WINDOW) if near else len(data)
            hint = self._hints.search(data, at, until)
            if hint is None and until == len(data):
                break
            near = hint is not None and hint.start() < at + _NEAR
            if hint is None or (until < len(data) and hint.start() >= at + _WINDOW):
                at += _WINDOW
                continue
            start, end = hint.span()
            if end - start < _SHORTEST_FORM:
                if not bare:
                    return None
                at = start + 1
            elif found and _within(Span(start, end, ""), found[-1]):
                inner += 1
                at = self._inside(data, (start, end), found, few=inner < _INNER)
            elif end - start == _SHORTEST_FORM or self._shape(hint[0]) is not None:
                if end == until < len(data):
                    hint = self._hints.search(data, start)
                inner = 0
                self._note(hint, data, found)
                at = start + 1
            else:
                if until < len(data) and end + _LINE >= until:
                    end = self._hints.search(data, start).end()
                # The line after those of base64 may be any text, so the search goes on at its begin.
                at = end - 1
                self._in_lines(data, start, at, found)
        return found

    def _inside(self, data: bytes, place: tuple[int, int], found: list[Span], *, few: bool) -> int:
        """Note the values at a hint within a token; where the search goes on."""
        start, end = place
        if few or end - start <= _SHORTEST_TOKENS:
            self._values_at(data, start, found)
            return start + 1
        self._values_in(data, start, end, found)
        return end - _SHORTEST_TOKENS

    def _note(self, hint: Any, data: bytes, found: list[Span]) -> None:
        """Note the values that have their part at a hint, and a token there."""
        start, end = hint.span()
        self._values_at(data, start, found)
        name = None if end - start == _SHORTEST_FORM else self._shape(hint[0])
        if name is not None:
            _add(found, Span(start, end, name))

    def _values_at(self, data: bytes, start: int, found: list[Span]) -> None:
        most, forms = self._parts.get(data[start : start + _SHORTEST_FORM], (0, ()))
        for after, place, one in forms:
            if found and _within(Span(start - most, start + after, ""), found[-1]):
                break  # and so are all that follow
            if place <= start and data.startswith(one, start - place):
                _add(found, Span(start - place, start + after, self.names[one]))

    def _values_in(self, data: bytes, at: int, end: int, found: list[Span]) -> None:
        """Note the values whose parts begin from `at` to before `end`."""
        until = min(len(data), end + _SHORTEST_FORM - 1)
        while self.names and (part := self._part.search(data, at, until)) is not None:
            self._values_at(data, part.start(), found)
            at = part.start() + 1

    def _in_lines(self, data: bytes, start: int, end: int, found: list[Span]) -> None:
        """Note what is in lines of base64, and values that go on in the next line."""
        at, until = start, min(len(data), end + _SHORTEST_FORM - 1)
        while at < end:
            hint = self._inner.search(data, at, min(until, at + 2 * _WINDOW))
            if hint is None or hint.start() >= at + _WINDOW:
                at += _WINDOW
                continue
            self._note(hint, data, found)
            at = hint.start() + 1
        last = _LAST.match(data, end)
        lines = data[start : last.end() if last else end]
        joined, places = _removed(_LINE_ENDS, lines)
        within: list[Span] = []
        self._values_in(joined, 0, len(joined), within)
        for one in within:
            first, behind = _kept(places, one)
            found.append(Span(start + first, start + behind, one.name))

    def _shape(self, text: bytes) -> str | None:
        return next((name for name, shape in _SHAPES.items() if shape.fullmatch(text) is not None), None)

    def escaped(self, data: bytes, layers: int = _NESTED) -> list[Span]:
        """The values where text has escapes."""
        if not self.escapable or (meant := escapes.meant(data, self.longest)) is None:
            return []
        text, places = meant
        found: list[Span] = []
        self._values_in(text, 0, len(text), found)
        if (plain := _plain(text)) != text:
            within: list[Span] = []
            self._values_in(plain, 0, len(plain), within)
            found += _before_plain(text, plain, within)
        found += self.escaped(text, layers - 1) if layers > 1 else []
        return [_back(places, one) for one in found]

    def begun(self, data: bytes, after: int) -> list[Span]:
        """A value of which the end of `data` has the beginning, however written, and a token behind `after`."""
        found = [self._begun_value(data), self._begun_lines(data), self._begun_escaped(data)]
        offset = max(after, len(data) - LONGEST)
        if (match := _BEGUN.search(data[offset:])) is not None:
            found.append(Span(offset + match.start(), len(data), "token"))
        return [one for one in found if one is not None]

    def _begun_lines(self, data: bytes) -> Span | None:
        start = max(0, len(data) - LONGEST)
        lines = _WRAPPED_END.search(data[start:])
        if lines is None:
            return None
        start += lines.start()
        joined, places = _removed(_LINE_ENDS, data[start:])
        one = self._begun_value(joined)
        return None if one is None else Span(start + before(places, one.start), len(data), one.name)

    def _begun_escaped(self, data: bytes, layers: int = _NESTED) -> Span | None:
        start = max(0, len(data) - escapes.LONGEST * self.longest)
        whole = escapes.uncut(data[start:])
        if not self.escapable or (meant := escapes.meant(whole, len(whole))) is None:
            return None
        text, places = meant
        one = self._begun_value(text) or (self._begun_escaped(text, layers - 1) if layers > 1 else None)
        return None if one is None else Span(start + before(places, one.start), len(data), one.name)

    def _begun_value(self, data: bytes) -> Span | None:
        heads = self._edges[0]
        for at in range(max(0, len(data) - self.longest + 1), len(data) - _EDGE + 1):
            for one in heads.get(data[at : at + _EDGE], ()):
                if one.startswith(data[at:]) and 2 * (len(data) - at) >= len(one):
                    return Span(at, len(data), self.names[one])
        return None

    def left(self, data: bytes) -> list[Span]:
        """A value of which the beginning of `data` has the end, and a private key."""
        key = _LEFT.match(data[:LONGEST])
        found = [self._left_value(data), self._left_escaped(data), key and Span(0, key.end(), "private-key")]
        return [one for one in found if one is not None]

    def _left_value(self, data: bytes) -> Span | None:
        tails = self._edges[1]
        for end in range(min(len(data), self.longest - 1), _EDGE - 1, -1):
            for one in tails.get(data[end - _EDGE : end], ()):
                if one.endswith(data[:end]) and 2 * end >= len(one):
                    return Span(0, end, self.names[one])
        return None

    def _left_escaped(self, data: bytes) -> Span | None:
        head = data[: escapes.LONGEST * self.longest]
        # It may begin within an escape.
        for skipped in range(escapes.LONGEST if self.escapable else 0):
            if skipped and not escapes.ends_one(head[:skipped]):
                continue
            text, places = escapes.meant(head[skipped:], len(head)) or (b"", [])
            if (one := self._left_value(text)) is not None and text[: one.end] not in self.names:
                return Span(0, skipped + before(places, one.end), one.name)
        return None


def _back(places: Places, one: Span) -> Span:
    """A span of what a text means, in the text: with the whole escape that it ends with."""
    return Span(before(places, one.start), before(places, one.end), one.name)


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
            scan = _Scan(names, not all(map(_NEVER_ESCAPED.fullmatch, found)))
            scan.compile()  # not by the first reader
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
        # A CR begins a line, for base64 and for values of several lines.
        plain, found = data, None if scan.names and b"\r" in data else scan.spans(data)
        if found is None:
            plain = _plain(data)
            found = scan.spans(plain, bare=True) or []
        # A value may begin within what was found, and go on behind it.
        found += scan.escaped(plain)
        end, start = max(((one.end, one.start) for one in found), default=(0, -1))
        last = start + 1 if end < len(plain) else end
        found += scan.left(plain) if torn else []
        found += scan.begun(plain, last) if ends else []
        found = _before_plain(data, plain, found)
        if b"\x1b" in data:
            # Some readers get sequences as well, and a page may begin within one.
            found += scan.spans(data, bare=True) or []
        return united(found)


def united(found: Iterable[Span]) -> list[Span]:
    """The spans in their order; those that overlap are one."""
    apart: list[Span] = []
    for one in sorted(found):
        _add(apart, one)
    return apart


UNMASKED: Final = Mask()
"""For output that nobody has to hide anything in: of a library without settings, and for a person at a terminal."""


def _plain(data: bytes) -> bytes:
    """The data without what `harmless` removes, in steps that are faster than one."""
    plain = _RETURNS.sub(b"", data) if b"\r\r\n" in data else data.replace(b"\r\n", b"\n")
    plain = _SEQUENCES.sub(b"", plain) if b"\x1b" in plain else plain
    plain = plain.translate(_RETURNS_ARE_LINES, _REMOVED)
    if not plain.isascii() and _REMOVED_LONG.search(plain) is not None:
        plain = _LONGS.sub(b"", plain)
    return plain


def _steps(data: bytes) -> list[Places]:
    """What each step of `_plain` removes. In one step it would be less: a step may join what a later one removes."""
    found: list[Places] = []
    for noise in (_RETURNS, _SEQUENCES, _CONTROLS, _LONGS):
        data, places = _removed(noise, data)
        found.append(places)
    return found


def _removed(noise: Any, data: bytes) -> tuple[bytes, Places]:
    return replaced(data, ((match.start(), match.end(), b"") for match in noise.finditer(data)))


def _before_plain(data: bytes, plain: bytes, found: list[Span]) -> list[Span]:
    """Where spans of the plain data were in the data."""
    for places in reversed(_steps(data)) if found and len(plain) < len(data) else ():
        found = [Span(*_kept(places, one), one.name) for one in found]
    return found


def _kept(places: Places, one: Span) -> tuple[int, int]:
    """Where a span of a text was from which something was removed: without what was removed right behind it."""
    return before(places, one.start), before(places, one.end - 1) + 1


def _shown_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[:40] or "value"
