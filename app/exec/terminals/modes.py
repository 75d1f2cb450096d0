"""What a program has switched its terminal to, read off its output: it decides what keys send."""

from __future__ import annotations

import re
from typing import Final

APPLICATION_CURSOR: Final = "application_cursor"
"""Arrows, Home and End send ESC O instead of ESC [."""
ALTERNATE_SCREEN: Final = "alternate_screen"
"""A full-screen program shows its own screen; what was there before comes back when it leaves."""
BRACKETED_PASTE: Final = "bracketed_paste"
"""The program wants to be told where pasted text begins and ends."""
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
    """The modes after all output that was fed. Costs next to nothing for output that switches none."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take in the next piece of output; a sequence may be split between two."""
        data = self._rest + data
        seen = 0
        for found in _SWITCH.finditer(data):
            seen = found.end()
            self._switch(found)
        self._rest = data[max(seen, len(data) - _LONGEST) :]

    def _switch(self, found: re.Match[bytes]) -> None:
        numbers, how = found.groups()
        if numbers is None:
            # A soft reset does not leave the screen that is shown.
            self.names &= {ALTERNATE_SCREEN} if found[0].endswith(b"p") else frozenset()
            return
        named = {_NAMES[int(number)] for number in numbers.split(b";") if number and int(number) in _NAMES}
        on = {name for name in named if (name == CURSOR_HIDDEN) != (how == b"h")}
        self.names = self.names - named | on
