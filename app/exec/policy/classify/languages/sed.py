"""sed, without what writes, reads other files, or runs: a closed grammar of addresses and commands."""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify.languages.brackets import all_closed
from shellback.exec.policy.classify.model import Asks

_PLAIN: Final = "pPdDnNgGhHxzF="
_NUMBERED: Final = "lqQ"
_TEXT: Final = "aic"
_JUMPS: Final = ":btT"
_SUBSTITUTE_FLAGS: Final = re.compile(r"[gpiImM0-9]*")
_LABEL: Final = re.compile(r"[ \t]*([A-Za-z0-9_]*)[ \t]*")
_DIGITS: Final = re.compile(r"[ \t]*[0-9]*")
_BLANKS: Final = re.compile(r"[ \t]*")
_BETWEEN: Final = re.compile(r"[ \t\n;]*")
_STEP: Final = re.compile(r"[0-9]+([ \t]*~[ \t]*[0-9]+)?|[+~][0-9]+|\$")


def only_filters(script: str) -> None:
    """Accept a script that only turns its input into output.

    Raises:
        Asks: It writes, runs or reads other files, or is written in a way that is not known here.
    """
    _Script(script).commands()


class _Script:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def commands(self) -> None:
        while True:
            self._skip(_BETWEEN)
            if self.at >= len(self.text):
                return
            self._addresses()
            self._command()

    def _command(self) -> None:
        name = self._take()
        if name == "{":
            return
        if name in _TEXT:
            if any(sign in self.text[self.at :] for sign in "\n\\"):
                raise Asks(f"sed's {name} goes over more than one line")
            self.at = len(self.text)
            return
        if name == "s":
            self._delimited(2, pattern=True)
            self._skip(_SUBSTITUTE_FLAGS)
        elif name == "y":
            self._delimited(2)
        elif name in _JUMPS:
            self._skip(_LABEL)
        elif name in _NUMBERED:
            self._skip(_DIGITS)
        elif name not in _PLAIN and name != "}":
            raise Asks(f"sed's {name!r} may write, run a program or read another file")
        self._skip(_BLANKS)
        if self.at < len(self.text) and self.text[self.at] not in ";\n}":
            raise Asks(f"sed's {name} is followed by {self.text[self.at]!r}")

    def _addresses(self) -> None:
        if self._address():
            self._skip(_BLANKS)
            if self._peek() == ",":
                self.at += 1
                self._skip(_BLANKS)
                if not self._address():
                    raise Asks("sed's second address is not known")
        self._skip(_BLANKS)
        while self._peek() == "!":
            self.at += 1
            self._skip(_BLANKS)

    def _address(self) -> bool:
        sign = self._peek()
        if sign in {"/", "\\"}:
            if sign == "\\":
                self.at += 1
            self._delimited(1, pattern=True)
            while self._peek() in {"I", "M"}:
                self.at += 1
            return True
        found = _STEP.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found is not None

    def _delimited(self, parts: int, *, pattern: bool = False) -> None:
        """Pass over `/one/two/`."""
        delimiter = self._take()
        if not delimiter.isascii() or not delimiter.isprintable() or delimiter.isalnum() or delimiter in "\\ ;{}":
            raise Asks(f"sed's delimiter {delimiter!r} is not usual")
        for part in range(parts):
            start = self.at
            while (sign := self._take()) != delimiter:
                if sign == "\n":
                    raise Asks("a part of sed's script goes over more than one line")
                if sign == "\\" and self._take() == "\n":
                    raise Asks("a part of sed's script goes over more than one line")
            if pattern and part == 0 and not all_closed(self.text[start : self.at - 1]):
                raise Asks("sed's pattern may end elsewhere")

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self) -> str:
        if self.at >= len(self.text):
            raise Asks("sed's script is not complete")
        self.at += 1
        return self.text[self.at - 1]
