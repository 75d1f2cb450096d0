"""Answers the queries of programs to their terminal; a person's terminal is never asked.

Answered are CSI c, CSI > c, CSI 5 n and CSI 6 n, each once even if supervisors die: the keeper writes the answers, and
remembers the offset up to which it has. Limits: a terminal in canonical mode gets no answer, so that showing a file
types nothing, unless it leaves the mode within `PATIENCE_S`; of more output than `REACH` at once, only the last part
counts, for queries and cursor; output that the disk did not take is not seen; at most `MOST` answers wait.
"""

from __future__ import annotations

import contextlib
import os
import re
import termios
import unicodedata
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import Loop, now
from shellback.exec.supervisor.process.inputs import Input
from shellback.exec.supervisor.process.link import Line
from shellback.exec.supervisor.process.streams import Screen
from shellback.exec.wire import crashpoints

REACH: Final = 1 << 16
MOST: Final = 64
PATIENCE_S: Final = 1.0
_AGAIN_S: Final = 0.02
_ASKED: Final = re.compile(rb"\x1b\[(?:0?(c)|>0?(c)|0?([56])n)")
_LONGEST: Final = 5
_ANSWERS: Final = {1: "\x1b[?62;22c", 2: "\x1b[>1;0;0c", 3: "\x1b[0n"}
"""A VT220 with colours; no particular version; no malfunction."""

Answers = list[tuple[int, str]]
"""Each with the offset after its query."""


class Queries:
    """The queries in the output of one session's terminal."""

    def __init__(self, loop: Loop, keeper: Line, session_id: str, screen: Screen, typed: Input) -> None:
        self._loop = loop
        self._keeper = keeper
        self._session_id = session_id
        self._screen = screen
        self._log = screen.log
        self._input = typed
        # Queries that the last supervisor did not answer are seen again; the keeper skips the answered ones.
        self._seen = max(0, self._log.size - REACH)
        self._asked: Answers = []
        self._waits = False
        self._until = 0.0
        self._cursor = Cursor(1, 1)
        self._drawn = 0

    def attend(self) -> None:
        """Answer the queries in existing and coming output."""
        grew = self._screen.grew

        def look() -> None:
            grew()
            self._look()

        self._screen.grew = look
        self._loop.after(0.0, self._look)

    def _look(self) -> None:
        if not self._screen.open:
            return
        since, self._seen = max(self._seen, self._log.size - REACH), self._log.size
        first = max(0, since - _LONGEST)
        for found in _ASKED.finditer(self._log.read(first, self._seen)):
            if (upto := first + found.end()) > since and len(self._asked) < MOST:
                self._asked.append((upto, self._answer(upto, found)))
        if self._asked and not self._waits:
            self._until = now() + PATIENCE_S
            self._try()

    def _answer(self, upto: int, found: re.Match[bytes]) -> str:
        if found[3] != b"6":
            return _ANSWERS[found.lastindex or 1]
        size = (1, 1)
        with contextlib.suppress(OSError, termios.error):
            size = termios.tcgetwinsize(self._screen.fd)
        rows, cols = size[0] or 24, size[1] or 80
        if (self._cursor.rows, self._cursor.cols) != (rows, cols) or upto - self._drawn > REACH:
            self._cursor, self._drawn = Cursor(rows, cols), max(0, upto - REACH)
        self._cursor.feed(self._log.read(self._drawn, upto))
        self._drawn = upto
        row, column = self._cursor.place()
        return f"\x1b[{row};{column}R"

    def _try(self) -> None:
        if not self._screen.open:
            return
        late, by_line = now() >= self._until, self._read_by_line()
        self._waits = by_line and not late
        if self._waits:
            self._loop.after(_AGAIN_S, self._try)
            return
        crashpoints.reach("supervisor.asked")
        # Dropped queries are sent too, with no text, so that the next supervisor does not answer them.
        answers, self._asked = [(upto, "" if by_line else text) for upto, text in self._asked], []
        self._input.between(lambda done: self._give(answers, done))

    def _give(self, answers: Answers, done: Callable[[], None]) -> None:
        if self._keeper.pid is None and self._screen.open:
            given(self._screen.fd, answers, 0)
        self._keeper.send_soon({"op": "answer", "session": self._session_id, "answers": answers})
        crashpoints.reach("supervisor.answered")
        self._keeper.when_told(done)

    def _read_by_line(self) -> bool:
        with contextlib.suppress(OSError, termios.error):
            return bool(termios.tcgetattr(self._screen.fd)[3] & termios.ICANON)
        return True


def given(terminal: int, answers: Answers, upto: int) -> int:
    """Write the answers to queries after `upto`, as far as the terminal takes them; the offset of the last one."""
    text = "".join(text for place, text in answers if place > upto)
    with contextlib.suppress(OSError):
        os.write(terminal, text.encode())
    return max([upto, *(place for place, _ in answers)])


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
    """The cursor of a terminal of `rows` by `cols`, at first at the upper left.

    Limits: default tab stops, no side margins, the width of each character alone, and the present size for all output.
    """

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
        """Row and column, from 1; in origin mode the row counts from the top margin."""
        return self.y - (self._top if self._origin else 0) + 1, min(self.x, self.cols - 1) + 1

    def feed(self, data: bytes) -> None:
        """Follow output that neither begins nor ends within a sequence."""
        for token in _TOKEN.finditer(data.decode("utf-8", "replace")):
            if token.lastgroup == "text":
                self._text(token[0])
            elif token.lastgroup == "final":
                self._sequence(token["inside"], token["final"])
            elif token.lastgroup == "escape":
                self._escape(token["escape"])
            elif token.lastgroup == "control":
                self._control(token[0])

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
        # After the last column it stays there until the next character.
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
        if control == "\b":
            self.x = max(min(self.x, self.cols - 1) - 1, 0)
        elif control == "\t":
            self._tab(1)
        elif control in "\n\x0b\x0c":
            self._down(1)
        elif control == "\r":
            self.x = 0

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
        if number == 6:
            self._origin = on
            self._go(1, 1)
        elif number == 7:
            self._wraps = on
        elif number == 1048:
            self._escape("7" if on else "8")
        elif number == 1049 and on and self._behind is None:
            self._behind = self.y, self.x
        elif number == 1049 and not on and self._behind is not None:
            (self.y, self.x), self._behind = self._behind, None
