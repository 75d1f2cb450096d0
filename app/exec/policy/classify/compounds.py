"""How bash reads compound commands: conditions, loops, groups, tests and functions."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from shellback.exec.policy.classify.pieces import Refused
from shellback.exec.policy.classify.simples import Simples
from shellback.exec.policy.classify.syntax import Redirect, Word

LOOPED: Final = re.compile(r"(?!histchars\Z|auto_resume\Z)[a-z][a-z0-9_]*(?<!_proxy)\Z")
_ENDS_CASE: Final = frozenset({";;", ";&", ";;&", "esac"})
_COMPOUND: Final = frozenset({"{", "if", "while", "until", "for", "case", "select", "[["})
_TESTS: Final = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOSnz")
_COMPARES: Final = frozenset({"=", "==", "!="})


class Compounds(Simples):
    """Reads compound commands."""

    def __init__(self, source: str, at: int = 0) -> None:
        super().__init__(source, at)
        self.compound_ended = False

    @abstractmethod
    def list_upto(self, closers: frozenset[str], opened: int, what: str, *, empty: bool = False) -> str:
        """Read commands up to one of `closers`, and that too; returns it."""

    @abstractmethod
    def mark_here(self) -> str:
        """What stands here: a reserved word or closing mark, nothing at the end, else something."""

    @abstractmethod
    def lines(self) -> bool:
        """Go over empty lines and heredocs to the next token; whether there was a line's end."""

    @abstractmethod
    def command(self) -> None:
        """Read one command, compound or simple."""

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
        if not self.starts_word():
            raise Refused(self.at if self.at < self.end else start, f"a name is missing after {mark}")
        name, named = self.word(), self.at
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
        if not LOOPED.match(name):
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
        if not self.starts_word():
            raise Refused(self.at, "a word is missing after case")
        self.word()
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
            if not self.starts_word():
                raise Refused(self.at if self.at < self.end else start, "a pattern is missing in case")
            self.word()
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
        if not self.starts_word():
            raise Refused(self.at if self.at < self.end else start, "a name is missing after function")
        self.word()
        self.skip()
        if self.here() == "(":
            self.empty_parenthesis()
        self.function_body(start)

    def function_body(self, start: int) -> None:
        """Read what a function consists of."""
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


def _plain_test(words: Sequence[Word]) -> bool:
    """Whether what stands in `[[ ]]` is one comparison of words, which evaluates nothing."""
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
