"""The line editor of a chat: bytes of the terminal become lines, with the question that each can answer.

A line can be an answer only if each of its characters was typed after the question was drawn. A paste never ends a line
and never answers. It is recognised by its brackets (`?2004`) or, without them, by text after a line end in one read.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.core.display import visible

LONGEST: Final = 100_001
"""The most characters of a line: one more than of a message, so that a long message is refused instead of cut."""
_REMEMBERED: Final = 200
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_KEY: Final = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]|\x1bO.|\x1b\[?|[^\x1b]", re.DOTALL)
_CUT: Final = re.compile(r"(?:\r|\x1b(?:\[(?:2(?:0(?:1)?)?)?)?)?\Z")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}|O)?\Z")
_NAMES: Final = {
    "\x01": "home", "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x05": "end", "\x1b[F": "end",
    "\x1bOF": "end", "\x1b[4~": "end", "\x02": "left", "\x1b[D": "left", "\x1bOD": "left", "\x06": "right",
    "\x1b[C": "right", "\x1bOC": "right", "\x10": "up", "\x1b[A": "up", "\x1bOA": "up", "\x0e": "down",
    "\x1b[B": "down", "\x1bOB": "down", "\x7f": "back", "\x08": "back", "\x1b[3~": "delete", "\x15": "cut before",
    "\x0b": "cut behind", "\x17": "cut word", "\x04": "end of input", "\r": "enter", "\n": "enter", "\t": "text",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A finished line; `question` is the number of the question that it can answer, or None.

    One into which text was `pasted` is no command either.
    """

    text: str
    question: int | None
    pasted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Key:
    text: str
    pasted: bool = False


_ALT: Final = _Key("\x1b")


class LineEditor:
    """Holds the text being typed. It draws nothing; `row` returns the text for one row of the terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unread = ""
        self._pasting = False
        self._text = ""
        self._at = 0
        self._by_keys = True
        self._question = 0
        self._lines: list[str] = []
        self._back = 0

    def asked(self) -> int:
        """Note that a question was drawn, and return its number; only text typed from now on can answer it."""
        self._question += 1
        self._by_keys = not self._text
        return self._question

    def clear(self) -> bool:
        """Drop the text being typed; True if there was any."""
        was = bool(self._text or self._pasting)
        self._unread, self._pasting = "", False
        self._set("")
        return was

    def prefill(self, text: str) -> None:
        """Put text there to be edited; it answers no question."""
        self._set(text)
        self._by_keys = False

    def feed(self, data: bytes) -> list[Line | None]:
        """The lines that these bytes of the terminal finish; None stands for the end of input."""
        self._unread += self._decoder.decode(data)
        ended: list[Line | None] = []
        keys = self._keys()
        last = max((at for at, key in enumerate(keys) if key.pasted or _is_text(key.text)), default=-1)
        for at, key in enumerate(keys):
            is_enter = not key.pasted and key.text in {"\r", "\n"}
            if key.pasted:
                self._insert(key.text.replace("\r\n", "\n").replace("\r", "\n"), typed=False)
            elif is_enter and (at < last or (at and keys[at - 1] == _ALT)):
                self._insert("\n", typed=False)
            else:
                ended += self._press(key.text)
        return ended

    def row(self, columns: int) -> tuple[str, int]:
        """The part of the line that fits into `columns`, and how many of its columns are behind the cursor."""
        before, behind = _seen(self._text[: self._at]), _seen(self._text[self._at :])
        room = max(columns, 8)
        while _width(before) > room - 2:
            before = "…" + before[max(2, len(before) // 8) :]
        while before and _width(before + behind) > room:
            behind = behind[:-1]
        return before + behind, _width(behind)

    def _keys(self) -> list[_Key]:
        """The complete keys, and parts of pastes, among the bytes read."""
        keys: list[_Key] = []
        while self._unread:
            if self._pasting:
                text, end, rest = self._unread.partition(_PASTED)
                # A bracket or line end that is cut here is completed by the next read.
                cut = None if end else _CUT.search(text)
                held = len(cut[0]) if cut else 0
                keys.append(_Key(text[: len(text) - held], pasted=True))
                self._unread, self._pasting = text[len(text) - held :] + rest, not end
                if not end:
                    break
            elif self._unread.startswith(_PASTE):
                self._unread, self._pasting = self._unread[len(_PASTE) :], True
            elif _UNFINISHED.match(self._unread):
                break
            else:
                key = _KEY.match(self._unread)
                assert key is not None
                keys.append(_Key(key[0]))
                self._unread = self._unread[key.end() :]
        return keys

    def _press(self, key: str) -> list[Line | None]:
        match _NAMES.get(key, "text" if _is_text(key) else ""):
            case "enter":
                line = Line(self._text, self._question if self._by_keys else None, not self._by_keys)
                self._lines = [*self._lines[-_REMEMBERED:], self._text] if self._text.strip() else self._lines
                self._set("")
                return [line]
            case "end of input" if not self._text:
                return [None]
            case "text":
                self._insert(key, typed=True)
            case name:
                self._edit(name)
        return []

    def _edit(self, name: str) -> None:
        before, behind = self._text[: self._at], self._text[self._at :]
        moved = {"home": 0, "end": len(self._text), "left": max(0, self._at - 1), "right": self._at + 1}
        changed = {
            "back": (before[:-1], behind),
            "delete": (before, behind[1:]),
            "end of input": (before, behind[1:]),
            "cut before": ("", behind),
            "cut behind": (before, ""),
            "cut word": (re.sub(r"\S*\s*\Z", "", before), behind),
        }
        if name in moved:
            self._at = min(moved[name], len(self._text))
        elif name in changed:
            self._change(*changed[name])
        elif name in {"up", "down"}:
            self._recall(1 if name == "up" else -1)

    def _recall(self, step: int) -> None:
        self._back = min(max(0, self._back + step), len(self._lines))
        self._change(self._lines[-self._back] if self._back else "", "")
        self._by_keys = not self._text

    def _insert(self, text: str, *, typed: bool) -> None:
        text = text[: max(0, LONGEST - len(self._text))]
        self._by_keys = self._by_keys and typed
        self._text = self._text[: self._at] + text + self._text[self._at :]
        self._at += len(text)

    def _change(self, before: str, behind: str) -> None:
        self._text, self._at = before + behind, len(before)
        self._by_keys = self._by_keys or not self._text

    def _set(self, text: str) -> None:
        self._text, self._at, self._by_keys, self._back = text, len(text), True, 0


def _is_text(key: str) -> bool:
    return key == "\t" or (len(key) == 1 and key >= " " and key != "\x7f")


def _seen(text: str) -> str:
    return visible(text).replace("\n", "⏎").replace("\t", " ")


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
