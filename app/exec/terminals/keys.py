"""Key names as in tmux, and the sequences that xterm sends for them, depending on its modes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import InvalidCommand

_PLAIN: Final = {"Enter": b"\r", "Tab": b"\t", "Escape": b"\x1b", "Space": b" ", "BSpace": b"\x7f"}
_CURSOR: Final = {"Up": "A", "Down": "B", "Right": "C", "Left": "D", "End": "F", "Home": "H"}
"""These keys send ESC O instead of ESC [ with application cursor keys."""
_FUNCTION: Final = {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBERED: Final = {"IC": 2, "DC": 3, "PPage": 5, "NPage": 6} | {
    f"F{key}": number for key, number in enumerate((15, 17, 18, 19, 20, 21, 23, 24), 5)
}
_ALSO: Final = {
    "Return": "Enter",
    "Esc": "Escape",
    "Backspace": "BSpace",
    "Insert": "IC",
    "Delete": "DC",
    "PageUp": "PPage",
    "PgUp": "PPage",
    "PageDown": "NPage",
    "PgDn": "NPage",
    "BTab": "S-Tab",
}
NAMES: Final = (*_PLAIN, *_CURSOR, *_FUNCTION, *_NUMBERED, *_ALSO)
"""All key names; C- (Ctrl), M- (Alt) and S- (Shift) may precede a name or a character."""

_SHOWN: Final = "Enter, Tab, Escape, Space, BSpace, Up, Down, Left, Right, Home, End, PageUp, PageDown, F1, C-c, M-x"
_MODIFIED: Final = re.compile(r"(?:[CMS]-)+(?=.)|\^(?=.\Z)")
_BITS: Final = {"S": 1, "M": 2, "C": 4}
_SPOKEN: Final = re.compile(r"<?(?:(ctrl|control|alt|meta|shift)[-+]|([cms])-)(.+?)>?", re.IGNORECASE)
_SAID: Final = {"ctrl": "C", "control": "C", "c": "C", "alt": "M", "meta": "M", "m": "M", "shift": "S", "s": "S"}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PASTED: Final = (b"\x1b[200~", b"\x1b[201~")


def key_bytes(keys: Sequence[str], *, application: bool = False) -> bytes:
    """The bytes that pressing `keys` sends: key names as keys, other text literally.

    `application`: the program uses application cursor keys. Raises InvalidCommand without keys, or for a key that looks
    like a name and is none; the message has the nearest name.
    """
    if not any(keys):
        raise InvalidCommand(f"there is nothing to type; give literal, paste, hex or keys: {_SHOWN} ...")
    return b"".join(_pressed(key, application=application) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Typing:
    """Input to type: literal text, a paste, bytes in hexadecimal and keys; sent in this order."""

    keys: Sequence[str] | None = None
    literal: str | None = None
    hex: str | None = None
    paste: str | None = None

    @property
    def depends_on_modes(self) -> bool:
        """Whether the bytes depend on the modes of the terminal."""
        return bool(self.paste) or any(key in _CURSOR for key in self.keys or [])

    def sent(self, modes: frozenset[str] = frozenset()) -> bytes:
        """The bytes that a terminal in these modes sends; raises InvalidCommand for empty or invalid input."""
        parts = [
            _literal(self.literal) if self.literal else b"",
            _paste(self.paste, bracketed=BRACKETED_PASTE in modes) if self.paste else b"",
            _hexadecimal(self.hex) if self.hex else b"",
        ]
        if self.keys or not any(parts):
            parts.append(key_bytes(self.keys or [], application=APPLICATION_CURSOR in modes))
        return b"".join(parts)


def _literal(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _paste(text: str, *, bracketed: bool) -> bytes:
    if _CONTROL.search(text):
        raise InvalidCommand("paste has control characters, which could end the paste early; send them with literal")
    data = text.replace("\r\n", "\r").replace("\n", "\r").encode("utf-8", "replace")
    return b"".join((_PASTED[0], data, _PASTED[1])) if bracketed else data


def _hexadecimal(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidCommand(f"hex is {digits[:40]!r}; it must be pairs of digits 0-9 a-f, as in '1b 5b 41'") from None


def _pressed(key: str, *, application: bool) -> bytes:
    if len(key) < 2 or any(character.isspace() for character in key):
        return _literal(key)
    sent = _named(key, application=application)
    if sent is not None:
        return sent
    nearest = _nearest(key)
    if nearest is None and not _MODIFIED.match(key):
        return _literal(key)
    meant = f"the nearest is {nearest}" if nearest is not None else f"keys are {_SHOWN} ..."
    raise InvalidCommand(f"there is no key {key!r}; {meant}. To type it as text, give it as literal")


def _named(key: str, *, application: bool = False) -> bytes | None:
    """The bytes of the key with this name; None for a name or combination that no terminal has."""
    if len(key) == 2 and key[0] == "^":
        return _control(key[1])
    found = _MODIFIED.match(key)
    given, name = (found[0], key[found.end() :]) if found else ("", key)
    modifiers = frozenset(given.replace("-", ""))
    name = _ALSO.get(name, name)
    if name == "S-Tab":
        modifiers, name = modifiers | {"S"}, "Tab"
    if len(name) == 1 and not modifiers:
        return None
    number = 1 + sum(_BITS[one] for one in modifiers)
    if letter := _CURSOR.get(name) or _FUNCTION.get(name):
        start = "\x1bO" if application or name in _FUNCTION else "\x1b["
        return (f"{start}{letter}" if number == 1 else f"\x1b[1;{number}{letter}").encode("ascii")
    if name in _NUMBERED:
        return (f"\x1b[{_NUMBERED[name]}~" if number == 1 else f"\x1b[{_NUMBERED[name]};{number}~").encode("ascii")
    alt = b"\x1b" if "M" in modifiers else b""
    base = _base(modifiers - {"M"}, name)
    return None if base is None else alt + base


def _base(modifiers: frozenset[str], name: str) -> bytes | None:
    """The bytes of a key that sends one character, with Ctrl and Shift."""
    if name in _PLAIN:
        with_one = {("C", "Space"): b"\x00", ("C", "BSpace"): b"\x08", ("S", "Tab"): b"\x1b[Z", ("S", "Space"): b" "}
        return with_one.get(("".join(sorted(modifiers)), name)) if modifiers else _PLAIN[name]
    if len(name) != 1:
        return None
    if modifiers == frozenset("S"):
        return _literal(name.upper()) if name.upper() != name or name.isupper() else None
    if "C" not in modifiers:
        return _literal(name)
    return _control(name) if "S" not in modifiers else None


def _control(character: str) -> bytes | None:
    if character == "?":
        return b"\x7f"
    if character == "/":
        return b"\x1f"
    # Not for other characters: their upper case may be two letters, or one of these.
    code = ord(character.upper()) if character.isascii() else 0
    return bytes([code & 0x1F]) if 0x40 <= code <= 0x5F else None


def _nearest(key: str) -> str | None:
    """The key name that was probably meant, or None."""
    spoken = _SPOKEN.fullmatch(key)
    if spoken is not None:
        modifier = _SAID[(spoken[1] or spoken[2]).lower()]
        rest = spoken[3] if len(spoken[3]) == 1 else _nearest(spoken[3])
        if rest is None:
            return None
        whole = f"{modifier}-{rest.lower() if modifier != 'S' else rest}" if len(rest) == 1 else f"{modifier}-{rest}"
        return whole if _named(whole) is not None else rest
    bare = key.strip("<>")
    same = [name for name in NAMES if name.casefold() == bare.casefold()]
    if same:
        return same[0]
    if re.fullmatch(r"[Ff][1-9]\d", bare):
        return "F12"
    near = difflib.get_close_matches(bare, NAMES, 1, 0.8) if re.fullmatch(r"[A-Z][A-Za-z]{2,}", bare) else []
    return next(iter(near), None)


APPLICATION_CURSOR: Final = "application_cursor"
"""Arrows, Home and End send ESC O instead of ESC [."""
ALTERNATE_SCREEN: Final = "alternate_screen"
"""A full-screen program shows its own screen; afterwards the text before it comes back."""
BRACKETED_PASTE: Final = "bracketed_paste"
"""The program wants marks at the begin and end of pasted text."""
MOUSE: Final = "mouse"
CURSOR_HIDDEN: Final = "cursor_hidden"

_NAMES: Final = {
    1: APPLICATION_CURSOR,
    25: CURSOR_HIDDEN,
    47: ALTERNATE_SCREEN,
    1000: MOUSE,
    1002: MOUSE,
    1003: MOUSE,
    1047: ALTERNATE_SCREEN,
    1049: ALTERNATE_SCREEN,
    2004: BRACKETED_PASTE,
}
_LONGEST: Final = 64
_SWITCH: Final = re.compile(rb"\x1b(?:\[\?([0-9;]{1,60})([hl])|\[!p|c)")


class Modes:
    """The modes after all output that was fed; very fast for output that switches none."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Process the next piece of output; a sequence may be split between two."""
        data = self._rest + data
        seen = 0
        for found in _SWITCH.finditer(data):
            seen = found.end()
            self._switch(found)
        self._rest = data[max(seen, len(data) - _LONGEST) :]

    def _switch(self, found: re.Match[bytes]) -> None:
        numbers, how = found.groups()
        if numbers is None:
            # A soft reset does not change the screen.
            self.names &= {ALTERNATE_SCREEN} if found[0].endswith(b"p") else frozenset()
            return
        named = {_NAMES[int(number)] for number in numbers.split(b";") if number and int(number) in _NAMES}
        on = {name for name in named if (name == CURSOR_HIDDEN) != (how == b"h")}
        self.names = self.names - named | on
