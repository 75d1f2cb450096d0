"""A command line is read twice: by our own reader, as bash reads, and by tree-sitter-bash.

Only what both read alike is inside the subset. Ours says what each command gets, word by word, and what bash would
refuse; theirs can only object.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.characters import unshowable
from shellback.exec.policy.classify.compounds import LOOPED, Compounds
from shellback.exec.policy.classify.pieces import Refused, Unread
from shellback.exec.policy.classify.syntax import Parsed, Unparsable

COMMANDS: Final = 50
"""Of one command line; more are all listed, and ask."""

WORDS: Final = 1_000
"""Likewise: so many are read twice in some milliseconds."""


def unfinished(command: str) -> bool:
    """Whether bash would refuse the text or read on, as our reader has it; costs a tenth of what `parse` does."""
    try:
        Reader(command).listed()
    except Refused:
        return True
    except Unread:
        pass
    return False


@functools.lru_cache(maxsize=32)
def parse(command: str) -> Parsed | Unparsable:
    """Take a command line apart. Nothing of it is run; the same text is always the same answer.

    Text that cannot be shown as what it is, or that bash would refuse, is `Unparsable`. What is `outside` asks.
    """
    if (hidden := unshowable(command)) is not None:
        return hidden
    reader = Reader(command)
    try:
        reader.listed()
    except Refused as refused:
        return Unparsable(reason=refused.reason, at=refused.place)
    except Unread as unread:
        reader.leave(unread.reason, 0, len(command))
    commands = reader.whole()
    if len(commands) > COMMANDS:
        reader.leave(f"it has {len(commands)} commands, which is more than {COMMANDS}", 0, len(command))
    if len(reader.spans) > WORDS:
        reader.leave(f"it has {len(reader.spans)} words, which is more than {WORDS}", 0, len(command))
    if not reader.outside and (found := second.disagreement(command, reader.spans)) is not None:
        reader.leave(f"{found[1]} from character {found[0]}", found[0], len(command))
    outside = sorted(reader.outside, key=lambda found: (found.start, found.end))
    return Parsed(source=command, commands=tuple(commands), outside=tuple(outside))


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
        printers: list[int | None] = []
        before = self.loops
        while True:
            separated |= self.lines()
            at, mark = self.at, self.mark_here()
            if mark in closers and (separated or mark in _CLOSING_ANYWHERE or self.compound_ended):
                if empty_so_far and not empty:
                    raise Refused(at, f"a command is missing before {mark}")
                self.at += len(mark)
                self.depth -= 1
                self.loops = before  # what is set in here may not be set behind it
                self.printer = printers[0] if len(printers) == 1 else None
                return mark
            if not mark:
                raise Refused(opened, f"{what} is not closed")
            if not separated or mark in _CLOSING:
                raise Refused(at, f"{self.shown()} is not expected here")
            printers.append(self._and_or())
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

    def _and_or(self) -> int | None:
        """Read pipelines; returns where the command begins that prints the output, if it is a single one."""
        start = self.at
        printer = self._pipeline()
        self._set(start)
        self.skip()
        while self.source.startswith(_AND_OR, self.at):
            self.at += 2
            self._needed()
            self._pipeline()
            printer = None
            self.skip()
        return printer

    def _set(self, start: int) -> None:
        """Let the commands that follow know what the variables are that were just set, if nothing else was done."""
        done = self.commands[-1] if self.commands else None
        if done is None or done.start != start or done.words or done.redirects or not done.assignments:
            return
        names = [name for name, _ in done.assignments]
        if len({*names, *self.loops}) == len(names) + len(self.loops) and all(map(LOOPED.match, names)):
            self.commands[-1] = done._replace(sets=True)
            # Neither a pattern nor a blank in a value means anything here.
            known = {name: (value._replace(globs=False, splits=False),) for name, value in done.assignments}
            self.loops = {**self.loops, **known}

    def _needed(self) -> None:
        at = self.at - 1
        self.lines()
        if self.at >= self.end:
            raise Refused(at, f"a command is missing after {self.source[at]}")

    def _pipeline(self) -> int | None:
        """Read a pipeline; returns where its last command begins, if that is a simple one."""
        outer = self.piped
        start = self.at
        negated = 0
        while (mark := self.mark_here()) in {"!", "time"}:
            if mark == "time":
                self.spans.append((self.at, self.at + 4))
            self.at += len(mark)
            if negated == 1:
                self.leave(f"{mark} is not read", start)
            negated += 1
            self.skip()
            if mark == "time" and (option := _TIME_OPTION.match(self.source, self.at)):
                self.spans.append(option.span())
                self.at = option.end()
                self.skip()
            if self.here() in {"", "\n", ";"}:  # bash takes them alone
                self.leave(f"{mark} stands alone", start)
                return None
        last = self._stage(None)
        while self.here() == "|" and self.here(1) != "|":
            errors = self.here(1) == "&"
            self.at += 2 if errors else 1
            self._needed()
            self.piped = True
            last = self._stage(None if errors else last)
        self.piped = outer
        return last

    def _stage(self, before: int | None) -> int | None:
        """Read a command of a pipeline; returns where it begins, if it is a simple one."""
        start = self.at
        self.command()
        self.skip()
        if not self.commands or self.commands[-1].start != start:
            return None
        fed = any(redirect.feeds for redirect in self.commands[-1].redirects)
        self.commands[-1] = self.commands[-1]._replace(fed_by=None if fed else before)
        return start

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
