"""Parses a command line twice: with our own reader, which follows bash, and with tree-sitter-bash.

The subset contains only text that both read alike. Our reader yields the words of each command and the errors of bash;
tree-sitter-bash can only object.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from shellback.exec.policy.classify import second
from shellback.exec.policy.classify.characters import named, unshowable
from shellback.exec.policy.classify.syntax import Parsed, Redirect, Simple, Unparsable, Word
from shellback.exec.policy.classify.words import Misread, Refused, Unread, Words

COMMANDS: Final = 50
"""The most commands of a line that is judged; all commands of a longer line are listed, and it asks."""

WORDS: Final = 1_000
"""The most words of a line that is judged; these are parsed twice in some milliseconds."""
_MOST: Final = 1_000
"""The most commands that are listed of one text; a longer text is not read to its end, and asks."""
_HEREDOCS: Final = 16
"""The limit of bash on one line."""

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
_LOOPED: Final = re.compile(r"(?!histchars\Z|auto_resume\Z)[a-z][a-z0-9_]*(?<!_proxy)\Z")
_ENDS_CASE: Final = frozenset({";;", ";&", ";;&", "esac"})
_COMPOUND: Final = frozenset({"{", "if", "while", "until", "for", "case", "select", "[["})
_TESTS: Final = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOSnz")
_COMPARES: Final = frozenset({"=", "==", "!="})
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


def unfinished(command: str) -> bool:
    """Whether bash would refuse the text or wait for more, by our reader alone; costs a tenth of `parse`."""
    try:
        Reader(command).listed()
    except (Refused, Misread):
        return True
    except Unread:
        pass
    return False


@functools.lru_cache(maxsize=32)
def parse(command: str) -> Parsed | Unparsable:
    """Parse a command line; runs nothing, and depends on the text alone.

    Text that bash would refuse, or that cannot be shown unambiguously, is `Unparsable`. A part `outside` asks.
    """
    if (hidden := unshowable(command)) is not None:
        return hidden
    reader = Reader(command)
    try:
        reader.listed()
    except (Refused, Misread) as refused:
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


@dataclass(frozen=True, slots=True)
class _Heredoc:
    """A heredoc whose text is still to be read."""

    op: str
    delimiter: str
    literal: bool
    at: int


class Reader(Words):
    """Reads commands into `commands` and `outside`, in no order."""

    def __init__(self, source: str, at: int = 0) -> None:
        super().__init__(source, at)
        self.bodies: dict[int, str] = {}
        self.pending: list[_Heredoc] = []
        self.piped = False
        self.compound_ended = False

    def part(self, upto: int, at: int) -> Reader:
        """A reader for another part of the text, from `at`; it adds its findings to this one's."""
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
            Unread: It cannot be read to its end.
        """
        self._upto_ended(frozenset({""}), 0, "")

    def nested(self, opened: int) -> None:
        """Read commands up to and including their `)`."""
        pending, self.pending = self.pending, []
        self._upto_ended(frozenset({")"}), opened, "the (")
        self.pending = pending

    def _upto_ended(self, closers: frozenset[str], opened: int, what: str) -> None:
        self.list_upto(closers, opened, what, empty=True)
        if self.pending:
            raise Refused(self.pending[0].at, f"the heredoc {self.pending[0].delimiter!r} is not ended")

    def list_upto(self, closers: frozenset[str], opened: int, what: str, *, empty: bool = False) -> str:
        """Read commands up to and including one of `closers`, and return it."""
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
                self.loops = before  # variables that are set inside may be unset after it
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
        """The reserved word or closing mark here; "" at the end, else another text."""
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
        """Skip empty lines and heredocs to the next token; whether a line ended."""
        crossed = False
        self.skip()
        while self.here() == "\n":
            self.at += 1
            crossed = True
            for number, heredoc in enumerate(self.pending):
                self.at += number > 0  # the newline that ends the heredoc before
                self.heredoc(heredoc)
            self.pending = []
            self.skip()
        return crossed

    def _and_or(self) -> int | None:
        """Read pipelines; returns the offset of the command that prints the output, if it is a single one."""
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
        """Keep the variables that were just set for the commands that follow, if the list did nothing else."""
        done = self.commands[-1] if self.commands else None
        if done is None or done.start != start or done.words or done.redirects or not done.assignments:
            return
        names = [name for name, _ in done.assignments]
        if len({*names, *self.loops}) == len(names) + len(self.loops) and all(map(_LOOPED.match, names)):
            self.commands[-1] = done._replace(sets=True)
            # In an assignment, patterns and blanks of a value have no meaning.
            known = {name: (value._replace(globs=False, splits=False),) for name, value in done.assignments}
            self.loops = {**self.loops, **known}

    def _needed(self) -> None:
        at = self.at - 1
        self.lines()
        if self.at >= self.end:
            raise Refused(at, f"a command is missing after {self.source[at]}")

    def _pipeline(self) -> int | None:
        """Read a pipeline; returns the offset of its last command, if that is a simple one."""
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
            if self.here() in {"", "\n", ";"}:  # bash accepts `!` and `time` alone
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
        """Read a command of a pipeline; returns its offset, if it is a simple one."""
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

    def compound(self, mark: str) -> None:
        """Read the compound command that begins with a reserved word or a parenthesis, and its redirections."""
        start = self.at
        match mark:
            case "if":
                self._if()
            case "while" | "until":
                self.at += len(mark)
                self.list_upto(frozenset({"do"}), start, mark)
                self.list_upto(frozenset({"done"}), start, mark)
                self.leave("what a loop waits for may never be", start, start + len(mark))
            case "for" | "select":
                self._for(mark)
            case "case":
                self._case()
            case "{":
                self.at += 1
                self.list_upto(frozenset({"}"}), start, "the {")
            case "function":
                self._function()
            case "coproc":
                self.at += len(mark)
                self.skip()
                self.command()
                self.leave("a coprocess is started", start)
            case "[[":
                self._test()
            case _:
                self._parenthesis()
        self._redirected()
        self.compound_ended = True

    def _redirected(self) -> None:
        redirects: list[Redirect] = []
        self.skip()
        first = last = self.at
        while self.redirect(redirects):
            last = self.at
            self.skip()
        if redirects:
            self.add((), (), redirects, first, last)

    def _if(self) -> None:
        start = self.at
        self.at += 2
        self.list_upto(frozenset({"then"}), start, "if")
        while (mark := self.list_upto(frozenset({"elif", "else", "fi"}), start, "if")) == "elif":
            self.list_upto(frozenset({"then"}), start, "if")
        if mark == "else":
            self.list_upto(frozenset({"fi"}), start, "if")

    def _for(self, mark: str) -> None:
        start = self.at
        self.at += len(mark)
        self.skip()
        if self.source.startswith("((", self.at):
            self.matched("(", self.at)
            self.leave("arithmetic can run commands", start)
            self._semicolon()
            self._body(start, mark)
            return
        name, named = self._needed_word(start, f"a name is missing after {mark}"), self.at
        self.lines()
        values: tuple[Word, ...] | None = None
        if self.mark_here() == "in":
            self.at += 2
            values = self._values()
        else:
            self.leave("a loop over arguments is not read", start, named)
            self._semicolon()
        if (reason := self._unlike(mark, name.raw)) is not None:
            self.leave(reason, start, named)
        before = self.loops
        self.loops = {**before, name.raw: values}
        self._body(start, mark)
        self.loops = before

    def _unlike(self, mark: str, name: str) -> str | None:
        if mark == "select":
            return "a menu is not read"
        if not _LOOPED.match(name):
            return f"the loop variable {name} has a name that programs may know"
        if name in self.loops:
            return f"the loop variable {name} is used twice"
        return None

    def _semicolon(self) -> None:
        self.lines()
        if self.here() == ";":
            self.at += 1

    def _values(self) -> tuple[Word, ...]:
        values: list[Word] = []
        while True:
            self.skip()
            if self.starts_word():
                values.append(self.word())
            elif self.here() == ";" or self.here() == "\n":
                self.at += self.here() == ";"
                return tuple(values)
            else:
                raise Refused(self.at, f"{self.shown()} is not expected here")

    def _body(self, start: int, what: str) -> None:
        self.lines()
        mark = self.mark_here()
        if mark not in {"do", "{"}:
            raise Refused(self.at if mark else start, f"do is missing after {what}")
        self.at += len(mark)
        if mark == "{":
            self.leave("a loop in braces is not read", start)
        self.list_upto(frozenset({"done" if mark == "do" else "}"}), start, what)

    def _case(self) -> None:
        start = self.at
        self.at += 4
        self.skip()
        self._needed_word(self.at, "a word is missing after case")
        self.lines()
        if self.mark_here() != "in":
            raise Refused(self.at if self.at < self.end else start, "in is missing after case")
        self.at += 2
        mark = ""
        while mark != "esac":
            self.lines()
            if self.mark_here() == "esac":
                self.at += 4
                break
            self._patterns(start)
            mark = self.list_upto(_ENDS_CASE, start, "case", empty=True)
        self.leave("case is not read", start)

    def _patterns(self, start: int) -> None:
        if self.here() == "(":
            self.at += 1
        while True:
            self.skip()
            self._needed_word(start, "a pattern is missing in case")
            self.skip()
            if self.here() == ")":
                self.at += 1
                return
            if self.here() != "|":
                raise Refused(self.at if self.at < self.end else start, "a ) is missing in case")
            self.at += 1

    def _function(self) -> None:
        start = self.at
        self.at += 8
        self.skip()
        self._needed_word(start, "a name is missing after function")
        self.skip()
        if self.here() == "(":
            self.empty_parenthesis()
        self.function_body(start)

    def function_body(self, start: int) -> None:
        """Read the body of a function."""
        self.lines()
        if self.mark_here() not in _COMPOUND and self.here() != "(":
            raise Refused(self.at if self.at < self.end else start, "a function has no body")
        self.command()
        self.leave("a function is defined", start)

    def _parenthesis(self) -> None:
        start = self.at
        if self.source.startswith("((", start) and self.arithmetic(start, command=True):
            self.leave("arithmetic can run commands", start)
            return
        if self.source.startswith("((", start):
            self.leave("two parentheses could be arithmetic", start, start + 2)
        self.at = start + 1
        self.list_upto(frozenset({")"}), start, "the (")

    def _test(self) -> None:
        start = self.at
        self.at += 2
        self.spans.append((start, self.at))
        words = [Word(text="[[", raw="[[", start=start, end=start + 2)]
        known = True
        while True:
            if self.lines():
                known = False
            if self.at >= self.end:
                raise Refused(start, "the [[ is not closed")
            if self.starts_word():
                words.append(self.word())
                if words[-1].raw == "]]":
                    break
            else:
                known = False
                self.at += 1
        self.add(words, (), (), start, self.at)
        if not (known and _plain_test(words[1:-1])):
            self.leave("a test of this form may do more than it shows", start)

    def simple(self) -> None:
        """Read a simple command, or the definition of a function."""
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
        """Read plain or fully quoted arguments, the usual ones; returns the offset after the last, or 0."""
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
        """Add a command; Misread if the name of its program is not ASCII, Unread if there are too many."""
        if len(self.commands) == _MOST:
            raise Unread(f"it has more than {_MOST} commands")
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
        """The word after `>&`; a `-` is a word of its own there."""
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
        if len(self.pending) == _HEREDOCS:
            raise Refused(at, "there are too many heredocs")
        self.pending.append(_Heredoc(op, text, literal, at))
        return Redirect(op=op, fd=fd, body=str(at))

    def heredoc(self, heredoc: _Heredoc) -> None:
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
        """The commands in the order of the text, with their heredocs."""
        for number, command in enumerate(self.commands):
            if any(redirect.body is not None for redirect in command.redirects):
                redirects = tuple(
                    one if one.body is None else replace(one, body=self.bodies.get(int(one.body)))
                    for one in command.redirects
                )
                self.commands[number] = command._replace(redirects=redirects)
        return sorted(self.commands, key=lambda command: command.start)

    def shown(self) -> str:
        """The text here, for a message."""
        found = _TOKEN.match(self.source, self.at)
        return "the line's end" if found is None or found[0] == "\n" else found[0][:20]

    def starts_word(self) -> bool:
        """Whether a word begins here."""
        begins = self.here() not in {"", "\n", ";", "|", "&", "(", ")"}
        return begins and _NO_WORD.match(self.source, self.at) is None

    def _needed_word(self, start: int, reason: str) -> Word:
        if not self.starts_word():
            raise Refused(self.at if self.at < self.end else start, reason)
        return self.word()

    def empty_parenthesis(self) -> None:
        """Read `()`."""
        opened = self.at
        self.at += 1
        self.skip()
        if self.here() != ")":
            raise Refused(opened, "the ( is not expected here")
        self.at += 1


def _plain_test(words: Sequence[Word]) -> bool:
    """Whether `[[ ]]` contains a single comparison of words, which evaluates nothing."""
    texts = [word.raw for word in words]
    if texts[:1] == ["!"]:
        words, texts = words[1:], texts[1:]
    if any(word.globs or word.tilde for word in words):
        return False
    match texts:
        case [one]:
            return one not in _TESTS
        case [test, _]:
            return test in _TESTS
        case [_, compares, _]:
            return compares in _COMPARES
        case _:
            return False
