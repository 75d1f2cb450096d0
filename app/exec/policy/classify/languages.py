"""Accepts programs of jq, sed and awk that only turn text into text."""

from __future__ import annotations

import re
from typing import Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import words

_READS_MORE: Final = re.compile(
    r"\$\s*(?:ENV|__prog|#)|(?<!\w)(?<!(?<!\.)\.)(?:env|import|include|modulemeta|input_filename|get_search_list)(?!\w)"
)


def jq(source: str) -> None:
    """Accept a filter that reads only its input; Asks if it reads the environment or other files."""
    found = _READS_MORE.search(source)
    if found:
        raise Asks(f"jq's {found[0]} reads what is not its input")


_BRACKET: Final = re.compile(r"\[\^?+\]?+(?:\[:\w+:\]|\\[^\]]|[^\]\\\[])*+\]")
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)


def _all_closed(pattern: str) -> bool:
    """Whether all brackets of a pattern close before its first delimiter: programs differ in whether they shield it."""
    return "[" not in _ESCAPED.sub("", _BRACKET.sub("", pattern))


_SED_PLAIN: Final = "pPdDnNgGhHxzF="
_SED_NUMBERED: Final = "lqQ"
_SED_TEXT: Final = "aic"
_SED_JUMPS: Final = ":btT"
_SUBSTITUTE_FLAGS: Final = re.compile(r"[gpiImM0-9]*")
_LABEL: Final = re.compile(r"[ \t]*([A-Za-z0-9_]*)[ \t]*")
_DIGITS: Final = re.compile(r"[ \t]*[0-9]*")
_BLANKS: Final = re.compile(r"[ \t]*")
_BETWEEN: Final = re.compile(r"[ \t\n;]*")
_STEP: Final = re.compile(r"[0-9]+([ \t]*~[ \t]*[0-9]+)?|[+~][0-9]+|\$")


def sed(script: str) -> None:
    """Accept a script that only turns input into output.

    Raises:
        Asks: It writes, runs or reads something else, or has unknown syntax.
    """
    _Sed(script).commands()


class _Sed:
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
        if name in _SED_TEXT:
            if any(sign in self.text[self.at :] for sign in "\n\\"):
                raise Asks(f"sed's {name} goes over more than one line")
            self.at = len(self.text)
            return
        if name == "s":
            self._delimited(2, pattern=True)
            self._skip(_SUBSTITUTE_FLAGS)
        elif name == "y":
            self._delimited(2)
        elif name in _SED_JUMPS:
            self._skip(_LABEL)
        elif name in _SED_NUMBERED:
            self._skip(_DIGITS)
        elif name not in _SED_PLAIN and name != "}":
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
        """Skip `/one/two/`."""
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
            if pattern and part == 0 and not _all_closed(self.text[start : self.at - 1]):
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


_AWK_CONDITIONS: Final = frozenset({"if", "while", "for"})
_AWK_PRINTS: Final = frozenset({"print", "printf"})
_AWK_WORDS: Final = (
    _AWK_CONDITIONS | _AWK_PRINTS | words("BEGIN END else do in break continue next nextfile exit delete")
)
_AWK_FUNCTIONS: Final = words("""
    length substr index split sub gsub match sprintf tolower toupper int sqrt exp log sin cos atan2 rand srand strftime
    systime mktime gensub asort asorti strtonum
    """)
_AWK_BANNED: Final = words("""
    system getline close fflush ENVIRON ARGV ARGC PROCINFO SYMTAB FUNCTAB function func return getenv extension switch
    case default
    """)
_AWK_TOKEN: Final = re.compile(
    r'(?P<blank>[ \t]+)|(?P<line>\n)|(?P<string>"(?:[^"\\\n]|\\[^\n])*")'
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?![A-Za-z_])|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\|\||&&|==|!=|<=|>=|!~|\+\+|--|\+=|-=|\*=|%=|\^=|[-{}()\[\];,<>~!+*%^?:$=/])"
)
_AWK_REGEX: Final = re.compile(r"/(?:[^/\\\n]|\\[^\n])*/")
_OPERAND_FOLLOWS: Final = frozenset({"", "\n", "{", "}", ";", "(", ",", "!", "~", "!~", "&&", "||"})


def awk(source: str) -> None:
    """Accept a program that only turns input into output.

    Raises:
        Asks: It writes, runs or reads something else, or has unknown syntax.
    """
    scan = _Awk(source)
    while scan.at < len(source):
        scan.token()


class _Awk:
    """Scans a program; it tells a `/` that begins a pattern and a `>` that writes a file from operators."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self._before = ""
        self._divisible = False
        self._printing = False
        self._conditions: list[bool] = []

    def token(self) -> None:
        """Skip one token; Asks if it is not known to be harmless here."""
        if self.source[self.at] == "/" and self._before in _OPERAND_FOLLOWS:
            self.at = _awk_regex(self.source, self.at)
            self._before, self._divisible = "/re/", False
            return
        found = _AWK_TOKEN.match(self.source, self.at)
        if found is None:
            raise Asks(f"awk's {self.source[self.at]!r} is not known to only read")
        self.at = found.end()
        if found.lastgroup == "blank":
            return
        text = found[0]
        if found.lastgroup == "name":
            _awk_name(text, self.source, self.at)
            self._printing |= text in _AWK_PRINTS
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
            self._conditions.append(self._before in _AWK_CONDITIONS)
        elif text == ")":
            ended = self._conditions.pop() if self._conditions else True
        variable = kind == "name" and text not in _AWK_WORDS and text not in _AWK_FUNCTIONS
        self._divisible = variable or kind == "number" or text == "]" or (text == ")" and not ended)
        self._before = text


def _awk_name(text: str, source: str, at: int) -> None:
    if text in _AWK_BANNED:
        raise Asks(f"awk's {text} may run a program, or read what is not its input")
    if text not in _AWK_FUNCTIONS and text not in _AWK_WORDS and source[at : at + 1] == "(":
        raise Asks(f"awk's function {text} is not known")


def _awk_regex(source: str, at: int) -> int:
    found = _AWK_REGEX.match(source, at)
    if found is None:
        raise Asks("awk's pattern does not end")
    if not _all_closed(found[0]):
        raise Asks("awk's pattern may end elsewhere")
    return found.end()
