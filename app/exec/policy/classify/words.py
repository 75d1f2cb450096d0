"""Reads words as bash does: quotes, backslashes and expansions."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.policy.classify.characters import named
from shellback.exec.policy.classify.syntax import KNOWN, STATUS, Output, Outside, Simple, Values, Word


class _Placed(Exception):
    """The reason why a text is not accepted, and its offset."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Refused(_Placed):
    """Bash would refuse this text."""


class Misread(_Placed):
    """A person would misread this text."""


class Unread(Exception):
    """The rest of the text is not understood, so a person is asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Pieces:
    """A word that is being read. `literal` is its unquoted text, `kept` its quoted text, both without expansions."""

    text: list[str] = field(default_factory=list[str])
    literal: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    variables: list[str] = field(default_factory=list[str])
    splits: bool = False
    quoted: bool = False
    unknown: bool = False

    def plain(self, text: str) -> None:
        """Add unquoted text."""
        self.text.append(text)
        self.literal.append(text)

    def quote(self, text: str) -> None:
        """Add quoted text."""
        self.quoted = True
        self.text.append(text)
        self.kept.append(text)

    def expansion(self, text: str) -> None:
        """Add the source of an expansion whose value only bash knows."""
        self.unknown = True
        self.text.append(text)

    def variable(self, name: str, *, quoted: bool) -> None:
        """Add a variable with known values."""
        self.text.append(f"${{{name}}}")
        self.variables.append(name)
        self.splits |= not quoted


DEPTH: Final = 20
"""Maximum nesting depth of commands and substitutions."""

LEVELS: Final = 500
"""Maximum number of levels entered in total; text that looks like arithmetic may be read twice."""

_EASY: Final = re.compile(r"[A-Za-z0-9_./,@%+^-][A-Za-z0-9_./:,@%+^-]*(?=[ \t\n;|&)]|\Z)")
_PLAIN: Final = re.compile(r"[^ \t\n|&;()<>'\"\\$`]+")
_IN_DOUBLE: Final = re.compile(r'[^"\\$`]+')
_IN_HEREDOC: Final = re.compile(r"[^\\$`]+")
_BLANKS: Final = re.compile(r"[ \t]*")
_CONTINUED: Final = re.compile(r"(?:\\\n)+")
_GLOB: Final = re.compile(r"[*?\[]")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED_NAME: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNED_TILDE: Final = re.compile(r"[=:]~")
_ARRAY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=\Z")
_OPENING: Final = {"(": ")", "{": "}", "[": "]"}
_SUBSTITUTED: Final = "a command's output becomes part of the command line"
_VALUE: Final = "a variable has a value that is known only when it runs"
_ARITHMETIC: Final = "arithmetic can run commands"


class Words(ABC):
    """A reader of the words of `source` from offset `at`; it records the parts that are outside our grammar."""

    def __init__(self, source: str, at: int = 0) -> None:
        self.source = source
        self.at = at
        self.end = len(source)
        self.outside: list[Outside] = []
        self.commands: list[Simple] = []
        self.spans: list[tuple[int, int]] = []
        self.loops: dict[str, Values] = {}
        self.printer: int | None = None
        self.depth = 0
        self.levels = 0

    @abstractmethod
    def nested(self, opened: int) -> None:
        """Read commands up to and including their `)`; set `printer` to the offset of the one that prints."""

    @abstractmethod
    def part(self, upto: int, at: int) -> Words:
        """A reader for the text from `at` to `upto`; both readers add to the same lists of results."""

    @abstractmethod
    def listed(self) -> None:
        """Read commands up to the end of the text."""

    def leave(self, reason: str, start: int, end: int | None = None) -> None:
        """Record a part that is outside our grammar."""
        end = self.at if end is None else end
        self.outside.append(Outside(reason=reason, text=self.source[start:end], start=start, end=end))

    def here(self, ahead: int = 0) -> str:
        """The character at this position, or "" after the end."""
        at = self.at + ahead
        return self.source[at] if at < self.end else ""

    def skip(self) -> None:
        """Skip blanks, line continuations and a comment."""
        source = self.source
        if self.at < self.end and source[self.at] not in " \t\\#":
            return
        while self.at < self.end:
            if (matched := _BLANKS.match(source, self.at)) is not None:
                self.at = matched.end()
            if (continued := _CONTINUED.match(source, self.at)) is not None:
                before, after = source[self.at - 1 : self.at], source[continued.end() : continued.end() + 1]
                if before and before in "|&;<>()" and after and after in "|&;<>()-":
                    raise Unread("an operator goes on in the next line")
                self.at = continued.end()
                continue
            if self.here() == "#":
                ends = source.find("\n", self.at)
                self.at = self.end if ends < 0 else ends
            return

    def word(self) -> Word:
        """The word that begins here."""
        source, start = self.source, self.at
        if (easy := _EASY.match(source, start)) is not None:
            self.at = end = easy.end()
            self.spans.append((start, end))
            return Word(easy[0], easy[0], start, end)
        pieces = Pieces()
        while self.at < self.end and self._piece(pieces, start):
            pass
        return self._made(pieces, start)

    def _piece(self, pieces: Pieces, start: int) -> bool:
        source, at = self.source, self.at
        if (plain := _PLAIN.match(source, at)) is not None:
            self.at = plain.end()
            pieces.plain(plain[0])
            return True
        match source[at]:
            case "'":
                self.at = self.closed("'", at) + 1
                pieces.quote(source[at + 1 : self.at - 1])
            case '"':
                self._double(pieces)
            case "\\":
                self._escaped(pieces)
            case "$":
                self._dollar(pieces, quoted=False)
            case "`":
                self._backquoted(pieces, quoted=False)
            case "<" | ">" if self.here(1) == "(":
                self.at += 2
                self.nested(at)
                self.leave("a command runs in place of a file", at)
                pieces.expansion(source[at : self.at])
            case "(" if at > start and pieces.literal and self._opens_in_word(pieces, at):
                self.matched("(", at)
                pieces.expansion(source[at : self.at])
            case _:
                return False
        return True

    def _opens_in_word(self, pieces: Pieces, at: int) -> bool:
        before = self.source[at - 1]
        if before in "?*+@!" and pieces.text[-1] is pieces.literal[-1]:
            self.leave("an extended pattern is not read", at - 1, at + 1)
            return True
        if not pieces.quoted and _ARRAY.match(pieces.literal[0]) and len(pieces.text) == 1:
            self.leave("an array is not read", at - len(pieces.literal[0]), at + 1)
            return True
        return False

    def _made(self, pieces: Pieces, start: int) -> Word:
        raw, text, literal = self.source[start : self.at], "".join(pieces.text), "".join(pieces.literal)
        if (character := misleading(literal)) is not None:
            at = self.source.index(character, start)
            raise Misread(at, f"it looks like what it is not, and is not quoted: {named(character)}")
        globs = _GLOB.search(literal) is not None and text not in {"[", "[["}
        first = pieces.text[0] if pieces.text else ""
        tilde = first.startswith("~") and bool(pieces.literal) and pieces.literal[0] is first
        if tilde and not (raw == "~" or raw.startswith("~/")):
            self.leave("a home directory other than one's own is not known", start)
        elif "~" in literal and _ASSIGNED_TILDE.search(raw):
            self.leave("a home directory within a word is not read", start)
        if "{" in literal and ("," in (opened := raw[raw.index("{") :]) or ".." in opened):
            self.leave("braces become several words", start)
        if globs and pieces.kept:
            kept = "".join(pieces.kept)
            if _GLOB.search(kept) or "\\" in kept or "[" in literal:
                self.leave("a pattern that is quoted in part is not read", start)
        if raw.startswith("!!"):
            self.leave("a command of the history is not known", start)
        if pieces.variables and any("$" in piece for piece in (*pieces.literal, *pieces.kept)):
            self.leave("a $ beside a loop variable is not read", start)
        self.spans.append((start, self.at))
        return Word(
            text=text,
            raw=raw,
            start=start,
            end=self.at,
            quoted=pieces.quoted,
            globs=globs,
            variables=tuple(pieces.variables),
            tilde=tilde,
            splits=pieces.splits,
            unknown=pieces.unknown,
        )

    def closed(self, mark: str, opened: int) -> int:
        found = self.source.find(mark, opened + 1)
        if found < 0:
            raise Refused(opened, f"the {mark} is not closed")
        return found

    def _escaped(self, pieces: Pieces) -> None:
        at, following = self.at, self.here(1)
        self.at = min(at + 2, self.end)
        if following == "\n":
            self.leave("a word goes on in the next line", at)
        elif following:
            pieces.quote(following)
        else:
            pieces.quote("\\")
            self.leave("it ends with a backslash", at)

    def _double(self, pieces: Pieces) -> None:
        opened = self.at
        self.at += 1
        pieces.quote("")
        while (character := self.here()) != '"':
            if not character:
                raise Refused(opened, 'the " is not closed')
            self._in_text(pieces, _IN_DOUBLE, '$`"\\')
        self.at += 1

    def _in_text(self, pieces: Pieces, plain: re.Pattern[str], escapable: str) -> None:
        source, at = self.source, self.at
        if (matched := plain.match(source, at)) is not None:
            self.at = matched.end()
            pieces.quote(matched[0])
        elif source[at] == "$":
            self._dollar(pieces, quoted=True)
        elif source[at] == "`":
            self._backquoted(pieces, quoted=True)
        else:
            following = self.here(1)
            self.at = min(at + 2, self.end)
            if following == "\n":
                self.leave("quoted text goes on in the next line", at)
            else:
                pieces.quote(following if following and following in escapable else f"\\{following}")

    def _dollar(self, pieces: Pieces, *, quoted: bool) -> None:
        source, at = self.source, self.at
        name = _NAME.match(source, at + 1)
        braced = _BRACED_NAME.match(source, at + 1)
        known = braced[1] if braced else name[0] if name else STATUS if self.here(1) == "?" else ""
        if known in KNOWN:
            self.loops = {**self.loops, known: KNOWN[known]}
        if known and known in self.loops:
            self.at = braced.end() if braced else at + 1 + len(name[0] if name else "?")
            pieces.variable(known, quoted=quoted)
        elif self.here(1) == "(":
            self._parenthesis_after_dollar(pieces, at, quoted=quoted)
        elif self._expansion(at, name, quoted=quoted):
            pieces.expansion(source[at : self.at])
        else:
            self.at += 1
            (pieces.quote if quoted else pieces.plain)("$")
            if self.source.startswith("\\\n", self.at):
                raise Unread("what a $ begins goes on in the next line")

    def _expansion(self, at: int, name: re.Match[str] | None, *, quoted: bool) -> bool:
        """Skip the expansion that the $ at this position begins; False if it begins none."""
        following = self.here(1)
        if name:
            self.at = name.end()
            self.leave(_VALUE, at)
        elif following and following in "{[":
            self.at += 1
            self.matched(following, at, quoted=quoted)
            self.leave(_VALUE if following == "{" else _ARITHMETIC, at)
        elif following and following in "0123456789@*#?-$!":
            self.at += 2
            self.leave(_VALUE, at)
        elif following and following in "'\"" and not quoted:
            self.at += 1
            if following == "'":
                self.matched("'", at)
            else:
                self._double(Pieces())
            self.leave("quotes with a $ before them are not read", at)
        else:
            return False
        return True

    def _parenthesis_after_dollar(self, pieces: Pieces, at: int, *, quoted: bool) -> None:
        if self.here(2) == "(" and self.arithmetic(at + 1):
            self.leave(_ARITHMETIC, at)
            pieces.expansion(self.source[at : self.at])
            return
        self.at = at + 2
        self.nested(at)
        self._substituted(pieces, at, quoted=quoted)

    def _substituted(self, pieces: Pieces, at: int, *, quoted: bool) -> None:
        """Record a substitution as a variable whose name is the offset of the substitution."""
        self.loops = {**self.loops, str(at): Output(self.printer)}
        pieces.variable(str(at), quoted=quoted)

    def arithmetic(self, opened: int, *, command: bool = False) -> bool:
        """Read the `((...))` that begins at `opened`; if it is not arithmetic, read nothing and return False.

        With `command`, an unclosed quote does not refuse the text: the quote may be in a comment or heredoc.
        """
        self.at = opened
        known, depth = (len(self.outside), len(self.commands)), self.depth
        try:
            self.matched("(", opened)
        except Refused:
            if not command:
                raise
            self.depth = depth
        else:
            if self.source[self.at - 2] == ")" and self._pair(opened + 1) == self.at - 1:
                return True
        del self.outside[known[0] :], self.commands[known[1] :]
        self.at = opened
        return False

    def _pair(self, opened: int) -> int:
        """Estimate the offset after the bracket that closes the one at `opened`, without parsing again; -1 if none."""
        level, at = 0, opened
        while at < self.at:
            match self.source[at]:
                case "(":
                    level += 1
                case ")":
                    level -= 1
                    if level == 0:
                        return at + 1
                case "\\":
                    at += 1
                case _:
                    pass
            at += 1
        return -1

    def _backquoted(self, pieces: Pieces, *, quoted: bool) -> None:
        opened = at = self.at
        while (at := at + 1) < self.end and self.source[at] != "`":
            at += self.source[at] == "\\"
        if at >= self.end:
            raise Refused(opened, "the ` is not closed")
        self.at = at + 1
        if "\\" not in self.source[opened:at] and self._apart(opened + 1, at):
            self._substituted(pieces, opened, quoted=quoted)
        else:
            pieces.expansion(self.source[opened : self.at])
            self.leave(_SUBSTITUTED, opened)

    def _apart(self, start: int, end: int) -> bool:
        """Read commands that bash parses only when it executes them; a syntax error in them is no error of the line."""
        inner = self.part(end, start)
        try:
            inner.listed()
        except Refused:
            return False
        self.printer = inner.printer
        return True

    def expanding(self, start: int, end: int) -> None:
        """Read the text of a heredoc, which bash expands like quoted text, and only on execution."""
        inner = self.part(end, start)
        pieces = Pieces()
        with contextlib.suppress(Refused):
            while inner.at < inner.end:
                inner._in_text(pieces, _IN_HEREDOC, "$`\\")  # noqa: SLF001 - same class

    def matched(self, mark: str, opened: int, *, quoted: bool = False) -> None:
        """Skip past the bracket or quote that closes the `mark` at this position."""
        closing = _OPENING.get(mark, mark)
        self.deeper()
        self.at += 1
        ignored = Pieces()
        while (character := self.here()) != closing:
            if not character:
                raise Refused(opened, f"the {mark} is not closed")
            if character == "\\":
                self.at = min(self.at + 2, self.end)
            elif mark == "'":
                self.at += 1
            elif character == mark and mark != "{":
                self.matched(mark, self.at, quoted=quoted)
            elif character == "'" and not quoted:
                self.at = self.closed("'", self.at) + 1
            elif character == '"':
                self._double(ignored)
            elif character == "$":
                self._dollar(ignored, quoted=quoted)
            elif character == "`":
                self._backquoted(ignored, quoted=quoted)
            else:
                self.at += 1
        self.at += 1
        self.depth -= 1

    def deeper(self) -> None:
        """Count a level; raise Unread above DEPTH nested levels, or LEVELS in total."""
        self.depth += 1
        self.levels += 1
        if self.depth > DEPTH or self.levels > LEVELS:
            raise Unread("commands stand too deep in one another to be followed")


_OPERATORS: Final = frozenset("|&;<>$`\"'\\#")
_NAMED: Final = re.compile(
    r"\b(?:QUOTATION MARK|APOSTROPHE|PRIME|GRAVE ACCENT|ACUTE ACCENT|GERESH|GERSHAYIM|SEMICOLON|AMPERSAND"
    r"|REVERSE SOLIDUS|GREATER-THAN|LESS-THAN|ARROWHEAD|DIVIDES|PARALLEL TO|BROKEN BAR|NUMBER SIGN|MUSIC SHARP SIGN"
    r"|VERTICAL (?:LINE|BAR)|(?:LIGHT|HEAVY|DASH|DOUBLE) VERTICAL)(?! AND\b)"
)
_DASH: Final = re.compile(r"\b(?:DASH|HYPHEN|MINUS)\b")

# Letters, numbers and full stops that look like a bar or an angle; alone in a word they look like an operator.
# Source: the entries of confusables.txt (Unicode Technical Standard 39) with skeleton | < or >, and the danda.
_STROKES: Final = frozenset(
    "\u01c0\u01c1\u05c0\u0964\u0965\u1433\u1438\u2016\u23d0\u27e8\u27e9\u2d4f\u3008\u3009\u3021\u4e28"
)


def misleading(literal: str) -> str | None:
    """The first unquoted character that is a letter to bash, but looks like an operator, a quote or an option."""
    if literal.isascii():
        return None
    for character in literal:
        if not character.isascii() and _operator(character):
            return character
    if _STROKES.issuperset(literal):
        return literal[0]
    first = literal[0]
    if len(literal) > 1 and not first.isascii() and _DASH.search(unicodedata.name(first, "")):
        return first
    return None


def _operator(character: str) -> bool:
    if not _OPERATORS.isdisjoint(unicodedata.normalize("NFKC", character)):
        return True
    category = unicodedata.category(character)
    return (category[0] in "SP" or category == "Lm") and _NAMED.search(unicodedata.name(character, "")) is not None
