"""Where the cursor of a terminal is, read off its output: as much of a terminal as moves it, and no cell of it.

Limits: tab stops are the usual ones, there are no margins at the sides, a character is as wide as Unicode says of it
alone, and output is taken as if the terminal had always had its present size.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_TOKEN: Final = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<inside>[\x00-\x17\x19\x1c-?]*)(?P<final>[@-~])"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b)|\Z)"
    r"|\x1b(?P<escape>[ -/]*[0-Z\\-~])"
    r"|(?P<control>[\x00-\x1f])"
)
_STRICT: Final = re.compile(r"([?]?)([0-9;]{0,64})(!?)\Z")
_CONTROLS: Final = re.compile(r"[\x00-\x1f]")


class Cursor:
    """A cursor on a terminal of `rows` by `cols`, at the upper left."""

    def __init__(self, rows: int, cols: int) -> None:
        self.rows, self.cols = rows, cols
        self._reset()

    def _reset(self) -> None:
        self.y = self.x = 0
        self._behind: tuple[int, int] | None = None
        self._soften()

    def _soften(self) -> None:
        self._top, self._bottom = 0, self.rows - 1
        self._wraps, self._origin = True, False
        self._saved = (0, 0, False)

    def place(self) -> tuple[int, int]:
        """Row and column from 1, as a terminal tells them; the row from the top margin in origin mode."""
        return self.y - (self._top if self._origin else 0) + 1, min(self.x, self.cols - 1) + 1

    def feed(self, data: bytes) -> None:
        """Take in output that neither begins nor ends within a sequence."""
        for token in _TOKEN.finditer(data.decode("utf-8", "replace")):
            match token.lastgroup:
                case "text":
                    self._text(token[0])
                case "final":
                    self._sequence(token["inside"], token["final"])
                case "escape":
                    self._escape(token["escape"])
                case "control":
                    self._control(token[0])
                case _:
                    pass

    def _text(self, text: str) -> None:
        if text.isascii():
            self._advance(len(text))
            return
        for character in text:
            if not unicodedata.combining(character) and unicodedata.category(character) not in {"Cf", "Me", "Mn"}:
                width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
                if self._wraps and self.x < self.cols < self.x + width:
                    self.x = self.cols
                self._advance(width)

    def _advance(self, width: int) -> None:
        # Behind the last column it waits there until there is something to put into the next row.
        beyond = max(0, self.x + width - 1) // self.cols if self._wraps else 0
        self._down(beyond, scrolls=True)
        self.x = min(self.x + width - beyond * self.cols, self.cols)

    def _down(self, count: int, *, scrolls: bool = False) -> None:
        last = self._bottom if self.y <= self._bottom else self.rows - 1
        self.y = min(self.y + (min(count, self.rows) if scrolls else count), last)

    def _up(self, count: int) -> None:
        self.y = max(self.y - count, self._top if self.y >= self._top else 0)

    def _go(self, row: int, column: int) -> None:
        top, last = (self._top, self._bottom) if self._origin else (0, self.rows - 1)
        self.y = min(top + max(row, 1) - 1, last)
        self.x = min(max(column, 1), self.cols) - 1

    def _control(self, control: str) -> None:
        match control:
            case "\b":
                self.x = max(min(self.x, self.cols - 1) - 1, 0)
            case "\t":
                self._tab(1)
            case "\n" | "\x0b" | "\x0c":
                self._down(1)
            case "\r":
                self.x = 0
            case _:
                pass

    def _escape(self, escape: str) -> None:
        match escape:
            case "7":
                self._saved = (self.y, self.x, self._origin)
            case "8":
                self.y, self.x, self._origin = self._saved
            case "D":
                self._down(1)
            case "E":
                self._down(1)
                self.x = 0
            case "M":
                self._up(1)
            case "c":
                self._reset()
            case "#8":
                self.y = self.x = 0
            case _:
                pass

    def _sequence(self, inside: str, final: str) -> None:
        for control in _CONTROLS.findall(inside):
            self._control(control)
        strict = _STRICT.match(_CONTROLS.sub("", inside))
        if strict is None:
            return
        private, digits, between = strict.groups()
        numbers = [min(int(number or 0), 9999) for number in digits.split(";")]
        if between:
            if final == "p":
                self._soften()
        elif private:
            for number in numbers if final in "hl" else ():
                self._switch(number, on=final == "h")
        elif final in "su":
            self._escape("7" if final == "s" else "8")
        else:
            self._move(final, numbers)

    def _tab(self, count: int) -> None:
        before = self.x // 8 if count > 0 else (self.x + 7) // 8
        self.x = min(max(before + count, 0) * 8, self.cols - 1)

    def _move(self, final: str, numbers: list[int]) -> None:
        count, x = max(numbers[0], 1), min(self.x, self.cols - 1)
        match final:
            case "A" | "F":
                self._up(count)
                self.x = 0 if final == "F" else self.x
            case "B" | "E" | "e":
                self._down(count)
                self.x = 0 if final == "E" else self.x
            case "C" | "a":
                self.x = min(x + count, self.cols - 1)
            case "D":
                self.x = max(x - count, 0)
            case "G" | "`":
                self.x = min(count, self.cols) - 1
            case "H" | "f":
                self._go(*(*numbers, 0)[:2])
            case "I" | "Z":
                self._tab(count if final == "I" else -count)
            case "d":
                self._go(count, x + 1)
            case "r":
                self._margins(*(*numbers, 0)[:2])
            case _:
                pass

    def _margins(self, first: int, last: int) -> None:
        top, bottom = max(first, 1) - 1, min(last or self.rows, self.rows) - 1
        if top < bottom:
            self._top, self._bottom = top, bottom
            self._go(1, 1)

    def _switch(self, number: int, *, on: bool) -> None:
        match number:
            case 6:
                self._origin = on
                self._go(1, 1)
            case 7:
                self._wraps = on
            case 1048:
                self._escape("7" if on else "8")
            case 1049:
                if on and self._behind is None:
                    self._behind = self.y, self.x
                elif not on and self._behind is not None:
                    (self.y, self.x), self._behind = self._behind, None
            case _:
                pass
