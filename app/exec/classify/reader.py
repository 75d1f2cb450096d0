"""How bash reads a command line: lists and pipelines of commands, in one another."""

from __future__ import annotations

import re
from typing import Final

from app.exec.classify.compounds import Compounds
from app.exec.classify.pieces import Refused

_RESERVED: Final = re.compile(
    r"(?:if|then|elif|else|fi|for|while|until|do|done|case|esac|select|function|time|coproc|in|\{|\}|!|\[\[|\]\])"
    r"(?=[ \t\n;|&()<>]|\Z)"
)
_RESERVED_BEGIN: Final = frozenset("itefwducs{}![]")
_TIME_OPTION: Final = re.compile(r"(?:-p|--)(?=[ \t\n]|\Z)")
_CLOSING: Final = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"})
_CLOSING_ANYWHERE: Final = frozenset({"", ")", ";;", ";&", ";;&"})
_NO_COMMAND: Final = _CLOSING | {"", "in", "]]", "!"}
_AND_OR: Final = ("&&", "||")


class Reader(Compounds):
    """Reads commands; what it finds is in `commands` and `outside`, in no order."""

    def part(self, upto: int, at: int) -> Reader:
        """A reader for another part of the text, from `at` on; what it finds is found here."""
        inner = Reader(self.source[:upto], at)
        inner.outside, inner.commands, inner.spans = self.outside, self.commands, self.spans
        inner.bodies, inner.loops = self.bodies, self.loops
        self.deeper()
        inner.depth, inner.levels = self.depth, self.levels
        self.depth -= 1
        return inner

    def listed(self) -> None:
        """Read commands up to the end of the text.

        Raises:
            Refused: Bash would refuse it.
            Unread: It cannot be followed to its end.
        """
        self.list_upto(frozenset({""}), 0, "", empty=True)
        if self.pending:
            raise Refused(self.pending[0].at, f"the heredoc {self.pending[0].delimiter!r} is not ended")

    def nested(self, opened: int) -> None:
        """Read commands up to the `)` that ends them, and that too."""
        pending, self.pending = self.pending, []
        self.list_upto(frozenset({")"}), opened, "the (", empty=True)
        if self.pending:
            raise Refused(self.pending[0].at, f"the heredoc {self.pending[0].delimiter!r} is not ended")
        self.pending = pending

    def list_upto(self, closers: frozenset[str], opened: int, what: str, *, empty: bool = False) -> str:
        """Read commands up to one of `closers`, and that too; returns it."""
        self.deeper()
        separated = empty_so_far = True
        while True:
            separated |= self.lines()
            at, mark = self.at, self.mark_here()
            if mark in closers and (separated or mark in _CLOSING_ANYWHERE or self.compound_ended):
                if empty_so_far and not empty:
                    raise Refused(at, f"a command is missing before {mark}")
                self.at += len(mark)
                self.depth -= 1
                return mark
            if not mark:
                raise Refused(opened, f"{what} is not closed")
            if not separated or mark in _CLOSING:
                raise Refused(at, f"{self.shown()} is not expected here")
            self._and_or()
            empty_so_far = False
            separated = self._separator()

    def mark_here(self) -> str:
        """What stands here: a reserved word or closing mark, nothing at the end, else something."""
        if self.at >= self.end:
            return ""
        source, at = self.source, self.at
        if source[at] == ")":
            return ")"
        if source[at] == ";" and source.startswith((";;", ";&"), at):
            return ";;&" if source.startswith(";;&", at) else source[at : at + 2]
        if source[at] not in _RESERVED_BEGIN:
            return "a command"
        reserved = _RESERVED.match(source, at)
        return reserved[0] if reserved else "a command"

    def _separator(self) -> bool:
        self.skip()
        if self.here() == ";" and self.here(1) not in {";", "&"}:
            self.at += 1
        elif self.here() == "&":
            self.at += 1
            self.leave("it goes on in the background", self.at - 1)
        else:
            return False
        return True

    def lines(self) -> bool:
        """Go over empty lines and heredocs to the next token; whether there was a line's end."""
        crossed = False
        self.skip()
        while self.here() == "\n":
            self.at += 1
            crossed = True
            for number, heredoc in enumerate(self.pending):
                self.at += number > 0  # the end of the line that ends the one before
                self.heredoc(heredoc)
            self.pending = []
            self.skip()
        return crossed

    def _and_or(self) -> None:
        self._pipeline()
        self.skip()
        while self.source.startswith(_AND_OR, self.at):
            self.at += 2
            self._needed()
            self._pipeline()
            self.skip()

    def _needed(self) -> None:
        at = self.at - 1
        self.lines()
        if self.at >= self.end:
            raise Refused(at, f"a command is missing after {self.source[at]}")

    def _pipeline(self) -> None:
        outer = self.piped
        start = self.at
        negated = 0
        while (mark := self.mark_here()) in {"!", "time"}:
            self.at += len(mark)
            if mark == "time" or negated == 1:
                self.leave(f"{mark} is not read", start)
            negated += 1
            self.skip()
            if mark == "time" and (option := _TIME_OPTION.match(self.source, self.at)):
                self.at = option.end()
                self.skip()
            if self.here() in {"", "\n", ";"}:  # bash takes them alone
                self.leave(f"{mark} stands alone", start)
                return
        self.command()
        self.skip()
        while self.here() == "|" and self.here(1) != "|":
            self.at += 2 if self.here(1) == "&" else 1
            self._needed()
            self.piped = True
            self.command()
            self.skip()
        self.piped = outer

    def command(self) -> None:
        """Read one command, compound or simple."""
        start, mark = self.at, self.mark_here()
        self.compound_ended = False
        if mark in _NO_COMMAND:
            raise Refused(start, f"{self.shown()} is not expected here" if mark else "a command is missing")
        if mark == "time":
            self.leave(f"{mark} is not read", start, start + 4)
        elif mark != "a command" or self.here() == "(":
            self.compound(mark)
            return
        self.simple()
