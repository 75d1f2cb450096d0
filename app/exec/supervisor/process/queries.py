"""What programs ask their terminal, answered by us, attended or not: a person's terminal is never asked.

Answered are CSI c, CSI > c, CSI 5 n and CSI 6 n, each once, also where supervisors die around it: the keeper writes
the answer, and knows up to where in the output it has. Limits: a terminal that is read by the line gets none, for
what shows a file must type nothing, unless it stops being read so within `PATIENCE_S`; where more output than `REACH`
comes at once, only what is asked in the last of it counts, and only that is looked at for the cursor; output that the
disk had no room for is not seen; at most `MOST` answers wait.
"""

from __future__ import annotations

import contextlib
import os
import re
import termios
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import Loop, now
from shellback.exec.supervisor.process.cursor import Cursor
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
"""A VT220 with colours; of no particular version; all is well."""

Answers = list[tuple[int, str]]
"""Each with the place in the output behind its question."""


class Queries:
    """The questions in the output of one session's terminal."""

    def __init__(self, loop: Loop, keeper: Line, session_id: str, screen: Screen, typed: Input) -> None:
        self._loop = loop
        self._keeper = keeper
        self._session_id = session_id
        self._screen = screen
        self._log = screen.log
        self._input = typed
        # What the last supervisor did not come to is there once more; what it answered is not answered again.
        self._seen = max(0, self._log.size - REACH)
        self._asked: Answers = []
        self._waits = False
        self._until = 0.0
        self._cursor = Cursor(1, 1)
        self._drawn = 0

    def attend(self) -> None:
        """Answer what is asked in what there is and in what comes."""
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
        # Those that are given up are told too: the next supervisor must not take them for new.
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
    """Write the answers to what was asked behind `upto`, as far as the terminal takes them; where the last one was."""
    text = "".join(text for place, text in answers if place > upto)
    with contextlib.suppress(OSError):
        os.write(terminal, text.encode())
    return max([upto, *(place for place, _ in answers)])
