"""A terminal emulator: processes output, and returns as plain text the screen that a person would see.

The grid is pyte's. Pyte's parser is not used: it prints the contents of unknown sequences (device control strings,
intermediates, colons) and raises an error for some. Here unknown sequences have no effect. Methods of pyte's grid
that differ from xterm are overridden; their docstrings give the reason.
"""

from __future__ import annotations

import bisect
import codecs
import copy
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from pyte import modes as pyte_modes
from pyte.charsets import LAT1_MAP, VT100_MAP
from pyte.screens import Char, Cursor, Screen, StaticDefaultDict, wcwidth

_BLANK: Final = Char(" ")
_MARKS: Final = 2
"""Maximum number of combining characters in one cell."""
_SELECTORS: Final = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Variation selectors: they choose a form of a character, and make it wider in some fonts."""
_TITLE_CHARS: Final = 200
_LONGEST: Final = 8192
"""Maximum length of a sequence: an unfinished one must not swallow the text after it."""
_TOKEN: Final = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|\x1b\[(?P<inside>[\x00-\x17\x19\x1c-?\x7f]{0,200})(?P<final>[@-~])"
    r"|\x1b\[[\x00-\x17\x19\x1c-?\x7f]{0,200}(?=[\x18\x1a\x1b]|\Z)"
    r"|\x1b\](?P<title>[^\x07\x1b\x9c]*)(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[PX^_][^\x1b\x9c]*(?:\x1b\\|\x9c)"
    r"|\x1b(?P<charset>[()])(?P<code>[0-~])"
    r"|\x1b(?P<escape>[ -/]{0,4}[0-~])"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
)
_WITHIN: Final = re.compile(r"[\x00-\x1f\x7f]")
"""Control characters within a sequence: they take effect, and the sequence continues."""
_PARTS: Final = re.compile(r"([<-?]?)([0-9;]*)([ -/]*)\Z")
_STOPS: Final = range(8, 1000, 8)
_UNFINISHED: Final = re.compile(
    r"\x1b(?:\[[\x00-\x17\x19\x1c-?\x7f]{0,200}|[\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]{0,4})\Z"
)


def cells(text: str) -> int:
    """How many cells a text takes."""
    if text.isascii():
        return len(text)
    return sum(max(0, wcwidth(character)) for character in text)


_Rows = dict[int, StaticDefaultDict[int, Char]]


class Emulator(Screen):
    """One terminal, whose memory is bounded by its size. It never raises, and answers no queries."""

    def __init__(self, rows: int, cols: int) -> None:
        self.alternate = False
        self._behind: tuple[_Rows, Cursor] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._last = ""
        self._stops: list[int] = []
        super().__init__(cols, rows)
        self._controls: Final[dict[str, Callable[[], object]]] = {
            "\b": self.backspace,
            "\t": self.tab,
            "\n": self.linefeed,
            "\x0b": self.linefeed,
            "\x0c": self.linefeed,
            "\r": self.carriage_return,
            "\x0e": self.shift_out,
            "\x0f": self.shift_in,
        }
        self._escapes: Final[dict[str, Callable[[], object]]] = {
            "7": self.save_cursor,
            "8": self.restore_cursor,
            "D": self.index,
            "E": lambda: (self.carriage_return(), self.linefeed()),
            "H": self.set_tab_stop,
            "M": self.reverse_index,
            "c": self.reset,
        }
        self._counted: Final[dict[str, Callable[[int], object]]] = {
            "@": self.insert_characters,
            "A": self.cursor_up,
            "B": self.cursor_down,
            "C": self.cursor_forward,
            "D": self.cursor_back,
            "E": self.cursor_down1,
            "F": self.cursor_up1,
            "G": self.cursor_to_column,
            "I": lambda count: [self.tab() for _ in range(min(count or 1, self.columns))],
            "J": self._erase_display,
            "K": lambda how: self.erase_in_line(how) if how <= 2 else None,
            "L": self.insert_lines,
            "M": self.delete_lines,
            "P": self.delete_characters,
            "S": lambda count: self._scroll(self.delete_lines, count),
            "T": lambda count: self._scroll(self.insert_lines, count),
            "X": self.erase_characters,
            "Z": self._tab_back,
            "`": self.cursor_to_column,
            "a": self.cursor_forward,
            "b": lambda count: self.draw(self._last * min(count or 1, self.columns)),
            "d": self.cursor_to_line,
            "e": self.cursor_down,
            "g": self.clear_tab_stop,
            "s": lambda _: self.save_cursor(),
            "u": lambda _: self.restore_cursor(),
        }

    def feed(self, data: bytes) -> None:
        """Process the next piece of output; characters and sequences may be split between two pieces."""
        text = self._rest + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _LONGEST))
        self._rest = "" if unfinished is None else unfinished[0]
        for token in _TOKEN.finditer(text, 0, len(text) - len(self._rest)):
            self._take(token)

    def lines_of_text(self) -> list[str]:
        """The text of the rows, without trailing blanks."""
        return [self._row(self.buffer[y]).rstrip() if y in self.buffer else "" for y in range(self.lines)]

    def _take(self, token: re.Match[str]) -> None:
        kind = token.lastgroup
        if kind == "text":
            self.draw(token[0])
        elif kind == "control":
            self._controls.get(token[0], _nothing)()
        elif kind == "final":
            self._sequence(token)
        elif kind == "escape":
            self._escapes.get(token["escape"], _nothing)()
        elif kind == "code":
            self.define_charset(token["code"], token["charset"])
        elif kind == "title":
            number, _, title = token["title"].partition(";")
            if number in {"0", "2"}:
                self.title = title[:_TITLE_CHARS]

    def _sequence(self, token: re.Match[str]) -> None:
        final = token["final"]
        for control in _WITHIN.findall(token["inside"]):
            self._controls.get(control, _nothing)()
        parts = _PARTS.match(_WITHIN.sub("", token["inside"]))
        private, digits, between = parts.groups() if parts is not None else ("", "", "?")
        if between:
            if between + final == "!p":
                self._soften()
            return
        numbers = [min(int(number or 0), 9999) for number in digits.split(";")]
        if final in "hl" and private in {"", "?"}:
            for number in numbers:
                self._switch(number, private=bool(private), on=final == "h")
        elif private:
            return
        elif final in "Hf":
            self.cursor_position(*numbers[:2])
        elif final == "r":
            first, last = (*numbers, 0)[:2]
            self.set_margins(first or None, last or None)
            self.cursor_position()
        elif final in self._counted:
            self._counted[final](numbers[0])

    def _switch(self, number: int, *, private: bool, on: bool) -> None:
        kept = {(False, 4): pyte_modes.IRM, (True, 7): pyte_modes.DECAWM}.get((private, number))
        if kept is not None:
            (self.mode.add if on else self.mode.discard)(kept)
        elif private and number == 6:
            (self.mode.add if on else self.mode.discard)(pyte_modes.DECOM)
            self.cursor_position()
        elif private and number == 1048:
            (self.save_cursor if on else self.restore_cursor)()
        elif private and number == 25:
            self.cursor.hidden = not on
        elif private and number in {47, 1047, 1049} and on != self.alternate:
            self._flip(restore=number == 1049)

    def _flip(self, *, restore: bool) -> None:
        """Switch between the main and the alternate screen, which starts empty; pyte has only one screen."""
        if self._behind is None:
            self._behind = (self.buffer, copy.copy(self.cursor))
            self.buffer = _empty()
        else:
            hidden = self.cursor.hidden
            self.buffer, before = self._behind
            self._behind = None
            if restore:
                self.cursor = before
                self.cursor.hidden = hidden
        self.alternate = self._behind is not None

    def fit(self, rows: int, cols: int) -> None:
        """Resize as xterm does: cut rows at the bottom, and at the top only if the cursor would be lost."""
        above = max(0, self.cursor.y - rows + 1)
        for shift, buffer in [(above, self.buffer), *([(0, self._behind[0])] if self._behind else [])]:
            kept = {y - shift: row for y, row in buffer.items() if shift <= y < shift + rows}
            buffer.clear()
            buffer.update(kept)
            for row in kept.values():
                for x in [x for x in row if x >= cols]:
                    del row[x]
        self.lines, self.columns = rows, cols
        self.margins = None
        self.cursor.y -= above
        self.cursor.x = min(self.cursor.x, cols - 1)

    def reset(self) -> None:
        self._behind, self.alternate = None, False
        self.savepoints.clear()
        super().reset()
        self._stops = list(_STOPS)

    def _soften(self) -> None:
        """Soft reset: reset the modes; keep text, screen and cursor."""
        self.mode.difference_update({pyte_modes.IRM, pyte_modes.DECOM})
        self.mode.add(pyte_modes.DECAWM)
        self.margins = None
        self.savepoints.clear()
        self.charset, self.g0_charset, self.g1_charset = 0, LAT1_MAP, VT100_MAP
        self.cursor.hidden = False

    def cursor_position(self, line: int | None = None, column: int | None = None) -> None:
        """In origin mode, stop at the margins; pyte does not move the cursor there."""
        self.cursor.x = min((column or 1) - 1, self.columns - 1)
        self.cursor_to_line(line)

    def cursor_to_line(self, line: int | None = None) -> None:
        """In origin mode, count from the top margin; pyte fails if no margins are set."""
        inside = pyte_modes.DECOM in self.mode and self.margins is not None
        top, bottom = (self.margins.top, self.margins.bottom) if inside and self.margins else (0, self.lines - 1)
        self.cursor.y = min(top + (line or 1) - 1, bottom)

    def draw(self, data: str) -> None:
        """Draw text; pyte loses the text after a character without width, and is slow."""
        charset = self.g1_charset if self.charset else self.g0_charset
        if charset is not LAT1_MAP:
            data = data.translate(charset)
        self._last = data[-1:] or self._last
        if data.isascii() and pyte_modes.IRM not in self.mode:
            self._draw_plain(data)
        else:
            for character in data:
                self._draw_one(character)

    def _draw_plain(self, data: str) -> None:
        while data:
            self._make_room(1)
            x = self.cursor.x
            piece, data = data[: self.columns - x], data[self.columns - x :]
            self.buffer[self.cursor.y].update(zip(range(x, self.columns), map(_PLAIN.__getitem__, piece), strict=False))
            self.cursor.x = x + len(piece)

    def _draw_one(self, character: str) -> None:
        width = wcwidth(character)
        if width < 1:
            self._mark(character)
            return
        self._make_room(width)
        if pyte_modes.IRM in self.mode:
            self.insert_characters(width)
        row = self.buffer[self.cursor.y]
        row[self.cursor.x] = Char(character)
        if width == 2 and self.cursor.x + 1 < self.columns:
            row[self.cursor.x + 1] = Char("")
        self.cursor.x = min(self.cursor.x + width, self.columns)

    def _make_room(self, width: int) -> None:
        """If the character does not fit in the row, wrap; if wrapping is off, move the cursor back."""
        if self.cursor.x + width <= self.columns:
            return
        if pyte_modes.DECAWM in self.mode:
            self.carriage_return()
            self.linefeed()
        else:
            self.cursor.x = max(0, self.columns - width)

    def _mark(self, character: str) -> None:
        """Add a combining character to the cell before the cursor; ignore other characters without width."""
        if character in _SELECTORS or not unicodedata.category(character).startswith("M"):
            return
        row = self.buffer[self.cursor.y]
        for column in (self.cursor.x - 1, self.cursor.x - 2):
            if column >= 0 and row[column].data:
                if len(row[column].data) <= _MARKS:
                    row[column] = Char(row[column].data + character)
                return

    def _row(self, row: StaticDefaultDict[int, Char]) -> str:
        shown: list[str] = []
        cells = [row[column].data for column in range(self.columns)]
        half = False
        for column, cell in enumerate(cells):
            if half:
                half = False
            elif cell and wcwidth(cell[0]) == 2:
                # A wide character is shown as a blank if its second half was overwritten.
                half = cells[column + 1 : column + 2] == [""]
                shown.append(cell if half else " ")
            else:
                shown.append(cell or " ")
        return unicodedata.normalize("NFC", "".join(shown))

    def save_cursor(self) -> None:
        """Save one position, as terminals do; pyte keeps an unbounded stack."""
        self.savepoints.clear()
        super().save_cursor()

    def restore_cursor(self) -> None:
        """Restore the saved position, any number of times, and regardless of margins."""
        kept = [point._replace(cursor=copy.copy(point.cursor)) for point in self.savepoints]
        self.mode.discard(pyte_modes.DECOM)
        super().restore_cursor()
        self.savepoints = kept
        if kept:
            self.cursor.y = min(kept[0].cursor.y, self.lines - 1)

    def cursor_up(self, count: int | None = None) -> None:
        """Stop at the top margin only if the cursor is below it; pyte also moves the cursor there from above."""
        top = self.margins.top if self.margins is not None and self.cursor.y >= self.margins.top else 0
        self.cursor.y = max(self.cursor.y - (count or 1), top)

    def cursor_down(self, count: int | None = None) -> None:
        """Stop at the bottom margin only if the cursor is above it."""
        inside = self.margins is not None and self.cursor.y <= self.margins.bottom
        bottom = self.margins.bottom if self.margins is not None and inside else self.lines - 1
        self.cursor.y = min(self.cursor.y + (count or 1), bottom)

    def delete_lines(self, count: int | None = None) -> None:
        """Delete rows; if a row that was never written moves, pyte leaves old text at its new position."""
        for y in range(self.lines):
            self.buffer[y]
        super().delete_lines(count)

    def _scroll(self, move: Callable[[int], None], count: int) -> None:
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins is not None else 0
        move(count)
        self.cursor.x, self.cursor.y = x, y

    def _erase_display(self, how: int) -> None:
        """Erase rows; pyte fills each erased cell, which takes memory."""
        gone = {0: range(self.cursor.y + 1, self.lines), 1: range(self.cursor.y), 2: range(self.lines)}.get(how, ())
        for y in gone:
            self.buffer.pop(y, None)
        if how < 2:
            self.erase_in_line(how)

    def set_tab_stop(self) -> None:
        """Set a tab stop at the cursor; pyte keeps the stops of the initial size."""
        if (x := min(self.cursor.x, self.columns - 1)) not in self._stops:
            bisect.insort(self._stops, x)

    def clear_tab_stop(self, how: int = 0) -> None:
        """Clear the tab stop at the cursor, or all tab stops."""
        gone = {0: [min(self.cursor.x, self.columns - 1)], 3: self._stops}.get(how, [])
        self._stops = [stop for stop in self._stops if stop not in gone]

    def tab(self) -> None:
        """Go to the next stop, or to the last column."""
        after = self._stops[bisect.bisect_right(self._stops, self.cursor.x) :][:1]
        self.cursor.x = min([*after, self.columns - 1])

    def _tab_back(self, count: int) -> None:
        at = bisect.bisect_left(self._stops, self.cursor.x) - (count or 1)
        self.cursor.x = self._stops[at] if at >= 0 else 0


_PLAIN: Final = {chr(code): Char(chr(code)) for code in range(0x20, 0x7F)}


def _empty() -> _Rows:
    return defaultdict(lambda: StaticDefaultDict(_BLANK))


def _nothing() -> None:
    pass
