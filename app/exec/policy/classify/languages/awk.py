"""awk, without what runs, writes or reads anything but its operands: a closed set of words and signs."""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify.languages.brackets import all_closed
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import words

_CONDITIONS: Final = frozenset({"if", "while", "for"})
_PRINTS: Final = frozenset({"print", "printf"})
_WORDS: Final = _CONDITIONS | _PRINTS | words("BEGIN END else do in break continue next nextfile exit delete")
_FUNCTIONS: Final = words(
    "length substr index split sub gsub match sprintf tolower toupper int sqrt exp log sin cos atan2 rand srand"
    " strftime"
    " systime mktime gensub asort asorti strtonum"
)
_BANNED: Final = words(
    "system getline close fflush ENVIRON ARGV ARGC PROCINFO SYMTAB FUNCTAB function func return getenv extension"
    " switch case default"
)
_TOKEN: Final = re.compile(
    r'(?P<blank>[ \t]+)|(?P<line>\n)|(?P<string>"(?:[^"\\\n]|\\[^\n])*")'
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?![A-Za-z_])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\|\||&&|==|!=|<=|>=|!~|\+\+|--|\+=|-=|\*=|%=|\^=|[-{}()\[\];,<>~!+*%^?:$=/])"
)
_REGEX: Final = re.compile(r"/(?:[^/\\\n]|\\[^\n])*/")
_OPERAND_FOLLOWS: Final = frozenset({"", "\n", "{", "}", ";", "(", ",", "!", "~", "!~", "&&", "||"})


def only_filters(source: str) -> None:
    """Accept a program that only turns its input into output.

    Raises:
        Asks: It runs, writes or reads something else, or is written in a way that is not known here.
    """
    scan = _Scan(source)
    while scan.at < len(source):
        scan.token()


class _Scan:
    """Goes over a program; what it must know is where a `/` begins a pattern, and where a `>` writes a file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self._before = ""
        self._divisible = False
        self._printing = False
        self._conditions: list[bool] = []
        self._condition_ended = False

    def token(self) -> None:
        """Go over one token.

        Raises:
            Asks: It is not known to be harmless where it stands.
        """
        if self.source[self.at] == "/" and self._before in _OPERAND_FOLLOWS:
            self.at = _regex(self.source, self.at)
            self._before, self._divisible = "/re/", False
            return
        found = _TOKEN.match(self.source, self.at)
        if found is None:
            raise Asks(f"awk's {self.source[self.at]!r} is not known to only read")
        self.at = found.end()
        if found.lastgroup == "blank":
            return
        text = found[0]
        if found.lastgroup == "name":
            _name(text, self.source, self.at)
            self._printing |= text in _PRINTS
        elif text == "/" and not self._divisible:
            raise Asks("awk's / may be a division or a pattern")
        elif text == ">" and self._printing:
            raise Asks("awk would write a file")
        elif text in {";", "}"}:
            self._printing = False
        self._remember(text, found.lastgroup)

    def _remember(self, text: str, kind: str | None) -> None:
        ended = False
        if text == "(":
            self._conditions.append(self._before in _CONDITIONS)
        elif text == ")":
            ended = self._conditions.pop() if self._conditions else True
        variable = kind == "name" and text not in _WORDS and text not in _FUNCTIONS
        self._divisible = variable or kind == "number" or text == "]" or (text == ")" and not ended)
        self._before = text


def _name(text: str, source: str, at: int) -> None:
    if text in _BANNED:
        raise Asks(f"awk's {text} may run a program, or read what is not its input")
    if text not in _FUNCTIONS and text not in _WORDS and source[at : at + 1] == "(":
        raise Asks(f"awk's function {text} is not known")


def _regex(source: str, at: int) -> int:
    found = _REGEX.match(source, at)
    if found is None:
        raise Asks("awk's pattern does not end")
    if not all_closed(found[0]):
        raise Asks("awk's pattern may end elsewhere")
    return found.end()
