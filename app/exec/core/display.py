r"""Renders a call for a person: whole, and without characters that a terminal or a reader could misinterpret.

Every surface uses it: terminal, notices, and the `shown` of every JSON. Such characters appear as `\x1b` (below U+0080)
or `\u{200B}`. In a call, a literal backslash that would read like one of these becomes `\x5c`, so the text decodes to
exactly what runs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

_MARGIN: Final = "    "
FOLDED: Final = "↳ "
"""Begins each further row of a folded line, behind blanks."""
_FIRST: Final = ("command", "segments", "tier", "reason", "touches")
_HASHES: Final = frozenset({"sha256", "view"})
SECRETS: Final = "secret_paths"
"""What of a display says which secrets a call names: a list, or None if that is not known."""
CONNECT: Final = "connect"
"""What of a display names the host and port about which a command asks; also stands in place of a tool's name."""
_SHORT: Final = frozenset({"backend", "profile", "lifetime", "network", "shell"})
_PROGRAMS: Final = frozenset({"executables", "scripts"})
_NAMED: Final = frozenset({"name", "path", "named"})

# Letters of widely read scripts that do not look like ASCII; all others are escaped.
_LETTERS: Final = (
    (0xC0, 0x17F), (0x218, 0x21B), (0x1E00, 0x1EFF), (0x386, 0x3CE), (0x400, 0x45F), (0x490, 0x491),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x3041, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0x1F300, 0x1FAFF), (0x20000, 0x323AF),
)  # fmt: skip
_WITH_MARKS: Final = ((0x900, 0x97F), (0xE00, 0xE7F))
# Letters that look like ASCII: shown only in a word with other letters of their script and no ASCII letter.
_ALIKE: Final = frozenset("АВЕЅІЈКМНОРСТУХабгеорсухѕіјкпѵΑΒΕΖΗΙΚΜΝΟΡΤΥΧαγικνορτυχω一丨丶丿ノニーハロエトー")
_BLANK_LETTERS: Final = frozenset({0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xFFFC, 0x1D159})
_MORE_BLANKS: Final = (
    (0x180B, 0x180F), (0xFE00, 0xFE0F), (0x13441, 0x13442), (0x16FE4, 0x16FE4), (0xE0000, 0xE0FFF),
)  # fmt: skip
_NEVER: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_AMBIGUOUS: Final = re.compile(r"\\(?=x[0-9A-Fa-f]{2}|u\{)")
_BLANKS: Final = re.compile(r" +(?=\n|\Z)| {16,}")
_WORD: Final = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff]+")
_REMEMBERED: Final = 4096
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u\{([0-9A-F]{2,6})\})")


class _Table(dict[int, str]):
    """A table for `str.translate` that caches the first characters it meets."""

    def __init__(self, fine: Callable[[int], bool]) -> None:
        self._fine = fine

    def __missing__(self, code: int) -> str:
        found = chr(code) if self._fine(code) else escaped(code)
        if len(self) < _REMEMBERED:
            self[code] = found
        return found


def visible(text: str) -> str:
    """Prose with control characters and invisible characters escaped; newline and tab stay."""
    return text if text.isascii() and text.isprintable() else text.translate(_PROSE)


def visible_line(text: str) -> str:
    """The same on one line: newlines are escaped too."""
    return visible(text).replace("\n", "\\x0a")


def shown(text: str) -> str:
    """A part of a call, escaped for a person; newlines stay. `original` is the inverse."""
    text = _AMBIGUOUS.sub("\\\\x5c", text)
    text = _BLANKS.sub(lambda found: "\\x20" * len(found[0]), text)
    if not text.isascii():
        text = _WORD.sub(_word, text)
    return text.translate(_CALL)


def shown_line(text: str) -> str:
    """The same on one line."""
    return shown(text).replace("\n", "\\x0a")


def original(seen: str) -> str:
    """The inverse of `shown` and `shown_line`."""
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), seen)


def request_lines(display: Mapping[str, object]) -> list[str]:
    """One whole call as lines: its fields, and indented parts."""
    lines: list[str] = []
    short: list[str] = []
    for key, value in _ordered(display):
        if isinstance(value, bool | int | float) or key in _SHORT:
            short += _fact(key, value)
        elif key == "tier" and display.get("reason"):
            first, *more = shown(str(display["reason"])).split("\n")
            lines += _field(key, [f"{shown_line(str(value))}, because {first}", *more])
        elif key == "reason" and display.get("tier"):
            continue
        elif value:
            parts = _parts(value, str(display.get("command", ""))) if key == "segments" else _value(key, value)
            lines += _field("runs" if key == "segments" else key, parts)
    return [*lines, *(_field("with", [", ".join(short)]) if short else [])]


def subject(display: Mapping[str, object]) -> str | None:
    """What a display is about: the command as it runs, or the host and port of a connection."""
    found = display.get("command", display.get(CONNECT))
    return found if isinstance(found, str) else None


def folded(lines: Iterable[str], width: int | None, *, hang: int = 0) -> list[str]:
    """Lines of at most `width` columns; a folded line continues below its own beginning, or `hang`, and behind `↳`.

    So no text of a call starts a line of the screen, as it could if the terminal folded the line.
    """
    return [part for line in lines for part in _folded(line, width, hang)]


def _folded(line: str, width: int | None, hang: int) -> Iterator[str]:
    if width is None or (line.isascii() and len(line) <= width):
        yield line
        return
    begin = taken = 0
    margin, deep = "", max(len(_MARGIN), hang, len(line) - len(line.lstrip(" ")))
    deep = min(deep, max(width, 8) // 2)
    for index, char in enumerate(line):
        columns = _columns(char)
        if taken + columns > max(width, 8):
            # At a blank if one is near: it begins the next row, where it is seen. Else within a word.
            blank = line.rfind(" ", (begin + index) // 2 + 1, index)
            moved = sum(map(_columns, line[blank : index + 1]))
            end = index if blank < 0 or deep + len(FOLDED) + moved > max(width, 8) else blank
            yield margin + line[begin:end]
            begin, margin = end, f"{' ' * deep}{FOLDED}"
            taken = len(margin) + sum(map(_columns, line[begin:index]))
        taken += columns
    yield margin + line[begin:]


def _columns(char: str) -> int:
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1


def _ordered(display: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    yield from ((key, display[key]) for key in _FIRST if key in display)
    yield from ((key, value) for key, value in display.items() if key not in _FIRST)


def _fact(key: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"{shown_line(key)} {'on' if value else 'off'}"] if value or key == "network" else []
    if isinstance(value, list | tuple):
        value = " ".join(map(str, cast("Sequence[object]", value)))
    return [f"{shown_line(key)} {_scalar(key, value)}"] if value else []


def _scalar(key: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return shown_line(str(value)[:12] if key in _HASHES else str(value))


def _value(key: str, value: object) -> list[str]:
    """The escaped lines of a value."""
    match value:
        case Mapping():
            known = cast("Mapping[str, object]", value)
            if key == "env":
                return [f"{shown_line(name)}={shown_line(str(given))}" for name, given in known.items()]
            return ["; ".join(f"{shown_line(name)} {_listed(name, given)}" for name, given in known.items() if given)]
        case list() | tuple():
            parts = cast("Sequence[object]", value)
            if key in _PROGRAMS:
                return [_program(part) for part in parts]
            items = [_item(part) for part in parts]
            return items if any(" " in item for item in items) else [" ".join(items)]
        case _:
            return shown(str(value)).split("\n")


def _item(value: object) -> str:
    if not isinstance(value, Mapping):
        return _scalar("", value)
    row = cast("Mapping[str, object]", value)
    return ", ".join(f"{shown_line(name)} {_scalar(name, given)}" for name, given in row.items() if given is not None)


def _listed(name: str, given: object) -> str:
    if isinstance(given, list | tuple):
        return " ".join(_scalar(name, one) for one in cast("Sequence[object]", given))
    return _scalar(name, given)


def _program(value: object) -> str:
    """A program or script of a call: its name in the line, its file, and what the approval binds."""
    row = dict(cast("Mapping[str, object]", value))
    where = "not found" if row.get("path") is None else shown_line(str(row["path"]))
    facts = [
        f"{shown_line(name)} {_scalar(name, given)}" for name, given in row.items() if given and name not in _NAMED
    ]
    return f"{shown_line(str(row.get('name')))} = {where}" + (f" ({', '.join(facts)})" if facts else "")


def _parts(segments: object, command: str) -> list[str]:
    """The commands of a line that was printed above: the beginning of each; none for a single command."""
    parts = cast("Sequence[Mapping[str, object]]", segments)
    if len(parts) == 1 and parts[0].get("text") == command:
        return _part("as it stands", parts[0], "")
    return [
        line
        for number, part in enumerate(parts, 1)
        for line in _part(f"{number}. {shown_line(label(str(part.get('text', ''))))}", part, " " * len(f"{number}. "))
    ]


def _part(first: str, part: Mapping[str, object], margin: str) -> list[str]:
    why = ": ".join(shown_line(str(part[key])) for key in ("tier", "reason") if part.get(key))
    paths = f"names {'; '.join(_value('', part['paths']))}" if part.get("paths") else ""
    return [first, *(f"{margin}  ({line})" for line in (why, paths) if line)]


def _field(label: str, lines: list[str]) -> list[str]:
    head = f"{_MARGIN}{shown_line(label)}: "
    first, *more = lines
    return [head + first, *(" " * len(head) + line for line in more)]


def escaped(code: int) -> str:
    """The escape of a character."""
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{{{code:X}}}"


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _in_prose(code: int) -> bool:
    char = chr(code)
    if char in " \n\t":
        return True
    return not (unicodedata.category(char) in _NEVER or code in _BLANK_LETTERS or _within(code, _MORE_BLANKS))


def _in_a_call(code: int) -> bool:
    if code < 0x80:
        return 0x20 <= code < 0x7F or code == 0x0A
    char = chr(code)
    kind = unicodedata.category(char)
    letter = kind in {"Lu", "Ll", "Lo"} or (kind == "So" and code >= 0x1F300) or char == "ー"
    mark = kind in {"Mn", "Mc"} and _within(code, _WITH_MARKS)
    alike = code in {0x131, 0x138} or any(part.isascii() for part in unicodedata.normalize("NFKC", char))
    return (letter or mark) and _within(code, _LETTERS) and not alike and _in_prose(code)


def _word(found: re.Match[str]) -> str:
    """A word with non-ASCII characters; letters that look like ASCII, and stray marks, are escaped."""
    word = found[0]
    if word.isascii():
        return word
    telling = [char for char in word if not char.isascii() and char not in _ALIKE and _in_a_call(ord(char))]
    mixed = not telling or any(char.isascii() and char.isalpha() for char in word)
    parts: list[str] = []
    before = ""
    for char in word:
        alone = unicodedata.category(char)[0] == "M" and (not before or before.isascii() or not _in_a_call(ord(before)))
        parts.append(escaped(ord(char)) if alone or (mixed and char in _ALIKE) else char)
        before = char
    return "".join(parts)


_PROSE: Final = _Table(_in_prose)
_CALL: Final = _Table(_in_a_call)


_MOST: Final = 80


def label(text: str) -> str:
    """The first line of a text, at most 80 characters."""
    first = text.split("\n", 1)[0][:_MOST]
    return first if first == text else f"{first} ..."


def age(seconds: float) -> str:
    """A duration for people; a negative one, after the clock was set back, is 0s."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f}s"
    if seconds < 3600:
        return f"{seconds / 60:.0f}m"
    if seconds < 86400:
        return f"{seconds / 3600:.1f}h"
    return f"{seconds / 86400:.1f}d"
