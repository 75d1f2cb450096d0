"""How bash reads a simple command: words, assignments before them, redirections, heredocs."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from shellback.exec.policy.classify.characters import named
from shellback.exec.policy.classify.pieces import Misread, Refused, Unread
from shellback.exec.policy.classify.syntax import Redirect, Simple, Word
from shellback.exec.policy.classify.words import Words

MOST: Final = 1_000
"""Commands that are listed of one text; what has more is not read to its end, and asks."""
HEREDOCS: Final = 16
"""Bash takes no more on one line."""

_REDIRECT: Final = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|<(?!\()|>>|>&|>\||>(?!\())|&>>|&>")
_NO_WORD: Final = re.compile(r"[0-9]*[<>](?!\()")
_NAMED_REDIRECT: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}[<>]")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_DELIMITER: Final = re.compile(r"(?:'([^'\n]+)'|\"([^\"\\$`\n]+)\"|\\?([A-Za-z0-9_.+-]+))(?=[ \t\n;|&()<>]|\Z)")
_EASY: Final = re.compile(
    r"""[ \t]+([A-Za-z0-9_./,@%+^-][A-Za-z0-9_./:,=@%+^-]*|'[^']*'|"[^"\\$`]*")(?=[ \t\n;|&)]|\Z)"""
)
_EXPANDS: Final = re.compile(r"[$`\\]")
_TOKEN: Final = re.compile(r"[^ \t\n;|&()<>]+|;;&|;;|;&|&&|\|\||\|&|.", re.DOTALL)
_ENDS_WORD: Final = frozenset(" \t\n|&;()<>")
_DECLARING: Final = frozenset({"declare", "typeset", "export", "readonly", "local", "unset", "unsetenv"})
_FD_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Heredoc:
    """One whose text is still to come."""

    op: str
    delimiter: str
    literal: bool
    at: int


class Simples(Words):
    """Reads simple commands, and what is redirected of others."""

    def __init__(self, source: str, at: int = 0) -> None:
        super().__init__(source, at)
        self.bodies: dict[int, str] = {}
        self.pending: list[Heredoc] = []
        self.piped = False

    @abstractmethod
    def function_body(self, start: int) -> None:
        """Read what a function consists of."""

    def simple(self) -> None:
        """Read a simple command, or the function that turns out to be defined."""
        start = last = self.at
        words: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        redirects: list[Redirect] = []
        source = self.source
        while True:
            if words:
                last = self._easy_words(words) or last
            self.skip()
            if self.at >= self.end or (character := source[self.at]) in "\n;|)":
                break
            if character in "<>&0123456789{" and self.redirect(redirects):
                pass
            elif character == "&":
                break
            elif character == "(":
                self._name_of_function(words, assignments or redirects)
                self.function_body(start)
                return
            elif not words and (assigned := _ASSIGNMENT.match(source, self.at)) is not None:
                assignments.append(self._assignment(assigned))
            else:
                words.append(self.word())
            last = self.at
        if last == start:
            raise Refused(start, f"{self.shown()} is not expected here")
        self.add(words, assignments, redirects, start, last)
        if words and words[0].text in _DECLARING:
            self.leave("it changes variables", start, last)

    def _name_of_function(self, words: Sequence[Word], others: Sequence[object]) -> None:
        if len(words) != 1 or others:
            raise Refused(self.at, "the ( is not expected here")
        self.empty_parenthesis()

    def _easy_words(self, words: list[Word]) -> int:
        """Read arguments that are plain, or quoted from end to end, as most are; behind the last, or 0 without one."""
        source, at, spans = self.source, self.at, self.spans
        while (easy := _EASY.match(source, at)) is not None:
            raw = easy[1]
            start, at = easy.span(1)
            spans.append((start, at))
            quoted = raw[0] in "'\""
            words.append(Word(raw[1:-1] if quoted else raw, raw, start, at, quoted))
        if at == self.at:
            return 0
        self.at = at
        return at

    def add(
        self,
        words: Sequence[Word],
        assignments: Sequence[tuple[str, Word]],
        redirects: Sequence[Redirect],
        start: int,
        end: int,
    ) -> None:
        """Note a command.

        Raises:
            Misread: The name of its program is not ASCII.
            Unread: There are too many.
        """
        if len(self.commands) == MOST:
            raise Unread(f"it has more than {MOST} commands")
        if words and not words[0].text.isascii():
            name = words[0]
            character = next(character for character in name.text if not character.isascii())
            at = self.source.index(character, name.start)
            raise Misread(at, f"the name of the program is not ASCII: {named(character)}")
        self.commands.append(
            Simple(
                self.source[start:end],
                start,
                end,
                tuple(words),
                tuple(assignments),
                tuple(redirects),
                self.piped,
                tuple(self.loops.items()) if self.loops else (),
            )
        )

    def _assignment(self, assigned: re.Match[str]) -> tuple[str, Word]:
        start, (named_from, named_to) = self.at, assigned.span(1)
        if assigned[2] == "[":
            self.at = assigned.end() - 1
            self.matched("[", self.at)
            value = self.word() if self._goes_on() else Word("", "", self.at, self.at)
        else:
            self.at = assigned.end()
            self.spans.append((named_from, named_to))
            value = self.word() if self._goes_on() else Word("", "", self.at, self.at)
        if assigned[2] != "=":
            self.leave("it changes a variable", start)
        return assigned[1], value

    def _goes_on(self) -> bool:
        if self.here() == "(":
            self.matched("(", self.at)
            self.leave("an array is not read", self.at)
            return False
        return self.at < self.end and self.here() not in _ENDS_WORD

    def redirect(self, found: list[Redirect]) -> bool:
        """Read a redirection, if one is here."""
        matched = _REDIRECT.match(self.source, self.at)
        if matched is None:
            if _NAMED_REDIRECT.match(self.source, self.at) is None:
                return False
            start, self.at = self.at, self.source.index("}", self.at) + 1
            self.leave("a redirection sets a variable", start)
            return self.redirect(found)
        start, self.at = self.at, matched.end()
        op, digits = matched[2] or matched[0], matched[1]
        fd = int(digits) if digits and len(digits) <= _FD_DIGITS else None
        if digits and fd is None:
            self.leave("a descriptor is out of range", start)
        if op in {"<<", "<<-"}:
            found.append(self._heredoc_begins(op, fd, start))
            return True
        self.skip()
        duplicates = op in {"<&", ">&"}
        if not (self.starts_word() or (duplicates and self.here().isdigit())):
            raise Refused(start, f"a target is missing after {op}")
        found.append(Redirect(op=op, fd=fd, target=self._closing(start) if duplicates else self.word()))
        return True

    def _closing(self, start: int) -> Word:
        """What stands behind `>&`: a `-` is a word there, whatever follows it."""
        if self.here() != "-":
            return self.word()
        self.at += 1
        if self.at < self.end and self.source[self.at] not in _ENDS_WORD:
            self.leave("a word right behind a redirection is not read", start)
        return Word(text="-", raw="-", start=self.at - 1, end=self.at)

    def _heredoc_begins(self, op: str, fd: int | None, at: int) -> Redirect:
        self.skip()
        delimiter = _DELIMITER.match(self.source, self.at)
        if not self.starts_word():
            raise Refused(at, f"a word is missing after {op}")
        if delimiter is None:
            word = self.word()
            self.leave("a heredoc has an unusual end", at)
            text, literal = word.text, word.quoted
        else:
            self.spans.append(delimiter.span())
            self.at = delimiter.end()
            text = delimiter[1] or delimiter[2] or delimiter[3]
            literal = delimiter[3] is None or delimiter[0].startswith("\\")
        if len(self.pending) == HEREDOCS:
            raise Refused(at, "there are too many heredocs")
        self.pending.append(Heredoc(op, text, literal, at))
        return Redirect(op=op, fd=fd, body=str(at))

    def heredoc(self, heredoc: Heredoc) -> None:
        """Read the text of a heredoc."""
        source, start = self.source, self.at
        lines: list[str] = []
        while self.at < self.end:
            ends = source.find("\n", self.at)
            ends = self.end if ends < 0 else ends
            line = source[self.at : ends]
            if heredoc.op == "<<-":
                line = line.lstrip("\t")
            if line == heredoc.delimiter:
                break
            lines.append(line)
            self.at = ends + 1
        else:
            raise Refused(heredoc.at, f"the heredoc {heredoc.delimiter!r} is not ended")
        body = "".join(f"{line}\n" for line in lines)
        if not heredoc.literal and _EXPANDS.search(body):
            self.expanding(start, self.at)
            self.leave("something is expanded in a heredoc", start)
        self.at = ends
        self.bodies[heredoc.at] = body

    def whole(self) -> list[Simple]:
        """The commands in order of the text, with their heredocs."""
        for number, command in enumerate(self.commands):
            if any(redirect.body is not None for redirect in command.redirects):
                redirects = tuple(self._with_body(redirect) for redirect in command.redirects)
                self.commands[number] = command._replace(redirects=redirects)
        return sorted(self.commands, key=lambda command: command.start)

    def _with_body(self, redirect: Redirect) -> Redirect:
        return redirect if redirect.body is None else replace(redirect, body=self.bodies.get(int(redirect.body)))

    def shown(self) -> str:
        """What stands here, for a message."""
        found = _TOKEN.match(self.source, self.at)
        return "the line's end" if found is None or found[0] == "\n" else found[0][:20]

    def starts_word(self) -> bool:
        """Whether a word begins here."""
        return self.here() not in {"", "\n", ";", "|", "&", "(", ")"} and not self.starts_redirect()

    def starts_redirect(self) -> bool:
        """Whether a redirection begins here."""
        return _NO_WORD.match(self.source, self.at) is not None

    def empty_parenthesis(self) -> None:
        """Read `()`."""
        opened = self.at
        self.at += 1
        self.skip()
        if self.here() != ")":
            raise Refused(opened, "the ( is not expected here")
        self.at += 1
