"""Refuses text that a person cannot be shown unambiguously, before it is parsed.

The rule is closed: assigned letters, numbers, marks, punctuation and symbols of Unicode pass, with blank, tab and line
feed; every other character is refused.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from typing import Final

from shellback.exec.policy.classify.syntax import Unparsable

BYTES: Final = 8 * 1024
BLANKS: Final = 200
"""The most blanks in a row; more would push the rest out of view."""
MARKS: Final = 4
"""The most combining marks on one character; more would cover the text around it."""

_PLAIN: Final = re.compile(r"[\t\n -~]*\Z")
_PADDING: Final = re.compile(rf"(?:[ \t\n]|\\\n){{{BLANKS + 1}}}")
_OTHER: Final = re.compile(r"[^\t\n -~]")

# Default_Ignorable_Code_Point among letters, marks and symbols; other categories are refused as a whole.
# Source: DerivedCoreProperties.txt of the Unicode Character Database, version 16.
_IGNORABLE: Final = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
    | set(range(0xE0100, 0xE01F0))
)
_BLANK_NAME: Final = re.compile(r"\b(?:BLANK|FILLER|NULL|INVISIBLE|JOINER|REPLACEMENT CHARACTER)\b")
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL"})
_ACTIVE: Final = frozenset("|&;<>(){}[]$`\"'\\#*?~!=\n")

_WHAT: Final = {
    "Cc": "a control character",
    "Cf": "a character that is not seen",
    "Cn": "a character that Unicode has not assigned",
    "Co": "a character for private use",
    "Cs": "half of a character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
    "Zs": "a blank that is none to bash",
}


def unshowable(command: str) -> Unparsable | None:
    """The reason why a text cannot be shown to a person; None if it can. Takes a few milliseconds at most."""
    if len(command) > BYTES:
        return Unparsable(reason=f"it is longer than {BYTES} bytes", at=BYTES)
    if not _PLAIN.match(command):
        if (found := _strange(command)) is not None:
            return found
        if len(command.encode()) > BYTES:
            return Unparsable(
                reason=f"it is longer than {BYTES} bytes", at=len(command.encode()[:BYTES].decode(errors="ignore"))
            )
    if (padding := _PADDING.search(command)) is not None:
        return Unparsable(
            reason=f"more than {BLANKS} blanks in a row push what follows out of view", at=padding.start()
        )
    return None


def named(character: str) -> str:
    """A character by code and name, as in `U+200B ZERO WIDTH SPACE`."""
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip()


def _strange(command: str) -> Unparsable | None:
    known: dict[str, str | None] = {}
    written: list[int] = []
    for found in _OTHER.finditer(command):
        character, at = found[0], found.start()
        if character not in known:
            known[character] = _reason(character)
        if (reason := known[character]) is not None:
            return Unparsable(reason=f"{reason}: {named(character)}", at=at)
        if unicodedata.category(character)[0] == "M" and not _carried(command, at):
            return Unparsable(reason=f"a mark that changes what is before it: {named(character)}", at=at)
        if unicodedata.bidirectional(character) in _RIGHT_TO_LEFT:
            written.append(at)
    return _reordered(command, written)


def _reason(character: str) -> str | None:
    category = unicodedata.category(character)
    if category in _WHAT:
        return _WHAT[category]
    if ord(character) in _IGNORABLE:
        return _WHAT["Cf"]
    if _BLANK_NAME.search(unicodedata.name(character, "BLANK")):
        return "a character that looks like a blank"
    return None


def _carried(command: str, at: int) -> bool:
    """Whether a mark belongs to a letter or number, with few other marks between them."""
    for before in range(at - 1, max(at - 1 - MARKS, -1), -1):
        category = unicodedata.category(command[before])
        if category[0] != "M":
            return category[0] in "LN"
    return False


def _reordered(command: str, written: list[int]) -> Unparsable | None:
    """Refuse text between two pieces of right-to-left text: it is displayed in another order than it is read."""
    for left, right in itertools.pairwise(written):
        between = command[left + 1 : right]
        if not _ACTIVE.isdisjoint(between) and not any(
            unicodedata.bidirectional(character) == "L" for character in between
        ):
            return Unparsable(reason="between right-to-left letters it would be shown in another order", at=left + 1)
    return None
