"""How a program's options are written down. What is not in its table asks; abbreviations are never resolved."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.paths import Below, Files


class Kind(Enum):
    """What a value or operand is to its program."""

    TEXT = auto()
    """A pattern, a format, a name: nothing of the file system, whatever it is."""
    NUMBER = auto()
    """Digits, with a sign or a unit at most."""
    READ = auto()
    """A file or directory that is read: it has to be allowed, and no secret."""
    LOOK = auto()
    """A path of which only names and facts are told; the directories above the allowed ones may be looked at too."""
    LINK = auto()
    """As LOOK, and a symlink is not followed."""


HOLE: Final = "\0"
"""Stands in a text for what is known only when it runs."""


@dataclass(frozen=True, slots=True)
class Open:
    """What the HOLE of an argument can be; anything, if nothing else is said. `many`: there are any number of them.

    `number`: digits. `words`: letters, digits and marks that no shell
    expands. `below`: what comes behind the directory that the text begins with.
    """

    number: bool = False
    words: bool = False
    below: Below | None = None
    many: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as the program gets it. `pattern` is the glob that made it: there may be others when it runs.

    `open`: some of it is known only then, and what it can be.
    """

    text: str
    pattern: str = ""
    open: Open | None = None

    @property
    def matched(self) -> bool:
        """Whether it may be another text, or another number of arguments, when it runs."""
        return bool(self.pattern) or self.open is not None

    @property
    def below(self) -> Below | None:
        """The directory that it is a file of."""
        return self.open and self.open.below

    @property
    def several(self) -> bool:
        """Whether it may be another number of arguments."""
        return bool(self.pattern) or (self.open is not None and self.open.many)

    @property
    def unbound(self) -> bool:
        """Whether it may be anything but a file that is known."""
        return self.open is not None and self.open.below is None

    @property
    def hidden(self) -> bool:
        """Whether the glob asks for hidden files, where secrets are kept."""
        return any(part.startswith(".") and part.strip(".") for part in self.pattern.split("/"))


COUNTED: Final = Argument(HOLE, open=Open(number=True))
"""One argument that is a number."""
Pieces = tuple[Argument, ...] | None
"""What text becomes when it is cut at blanks; None is anything."""


DEPTH: Final = 4
"""So many wrappers in one another are followed."""


def _unknown() -> list[Pieces]:
    return [None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A program and what it is given, before its table has been looked at.

    `piped` says that its input is a pipe, and `fed` what that can be. `carry` judges a command that it runs in turn.
    """

    name: str
    arguments: tuple[Argument, ...]
    files: Files
    piped: bool = False
    fed: Callable[[], list[Pieces]] = _unknown
    carry: Callable[[Call], None] | None = None
    depth: int = 0

    def run(self, arguments: tuple[Argument, ...], *, fed: bool = False) -> None:
        """Accept a command that this one runs, its name first; with `fed` it gets this one's input.

        Raises:
            Asks: It is not known to only read.
        """
        if not arguments or arguments[0].matched or self.carry is None or self.depth == DEPTH:
            raise Asks(f"it is not known what {self.name} runs")
        inner = replace(self, name=arguments[0].text, arguments=arguments[1:], depth=self.depth + 1)
        self.carry(inner if fed else replace(inner, piped=False, fed=_unknown))

    @property
    def texts(self) -> tuple[str, ...]:
        """The arguments; for programs to which it matters how many there are, or which comes first.

        Raises:
            Asks: Some of them may be others when it runs.
        """
        if any(argument.matched for argument in self.arguments):
            raise Asks(f"{self.name} takes what a pattern matches, which may be other things when it runs")
        return tuple(argument.text for argument in self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A program's arguments taken apart by its table. `options` are (name, value) in order; names as in the table."""

    name: str
    options: tuple[tuple[str, str | None], ...]
    operands: tuple[str, ...]
    files: Files
    piped: bool = False
    taken: tuple[Argument, ...] = ()
    """The operands as arguments."""

    def each(self, judge: Callable[[str], None]) -> None:
        """Judge each operand, and each file that one can stand for."""
        for operand in self.taken:
            if operand.below is not None:
                self.files.every(operand.below, judge)
            else:
                judge(operand.text)

    def given(self, *names: str) -> bool:
        """Whether any of these options is there."""
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> list[str]:
        """The values of these options, in order."""
        return [value for name, value in self.options if name in names and value is not None]


ALWAYS: Final = "always"

Check = Callable[[Invocation], None]
"""Judges arguments that were taken apart; raises Asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program may be given so that it only reads; made by `program`.

    `most` and `first` bind how many operands there are and what the first one is; where they are set, no glob may
    make an operand that counts. `here`: without an operand it works on the current directory. `walks` and `follows`
    are the options under which it goes down directories, and through symlinks in them, `hidden` those under which it
    reads hidden files there; "always" stands for itself. `last` are options that need no value at the end.
    """

    flags: frozenset[str] = frozenset()
    valued: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    optional: frozenset[str] = frozenset()
    digits: bool = False
    operands: Kind = Kind.READ
    first: Kind | None = None
    first_unless: frozenset[str] = frozenset()
    most: int | None = None
    least: int = 0
    permutes: bool = True
    here: bool = False
    walks: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset({ALWAYS})
    last: frozenset[str] = frozenset()
    check: Check | None = None


Judge = Callable[[Call], None]
"""Judges a program that has a syntax of its own; raises Asks."""

_VALUED: Final = {"text": Kind.TEXT, "number": Kind.NUMBER, "read": Kind.READ}
_UNDER: Final = ("first_unless", "walks", "follows", "hidden", "last")
_LISTS: Final = frozenset({"flags", "maybe", *_VALUED, *_UNDER})


def words(listed: str) -> frozenset[str]:
    """The words of a table's text."""
    return frozenset(listed.split())


def program(flags: str = "", **row: Any) -> Program:
    """Write down a program, as a row of programs.toml does, where it is said what there can be in one."""
    valued = {name: kind for key, kind in _VALUED.items() for name in names(row.pop(key, ""))}
    under = {key: names(row.pop(key)) for key in _UNDER if key in row}
    return Program(flags=names(flags), valued=valued, optional=names(row.pop("maybe", "")), **under, **row)


def table(file: str, checks: Mapping[str, Check], **everywhere: str) -> dict[str, Program]:
    """The programs of a file of rows beside this module; `everywhere` is what a row has that says nothing else."""
    rows = tomllib.loads((Path(__file__).parent / "tables" / file).read_text(encoding="utf-8"))
    found: dict[str, Program] = {}
    for listed in rows:
        if not listed.isupper():
            row = {**everywhere, **_whole(listed, rows)}
            row |= {key: Kind[row[key].upper()] for key in ("operands", "first") if key in row}
            row |= {"check": checks[row["check"]]} if "check" in row else {}
            found |= dict.fromkeys(listed.split(), program(**row))
    return found


def _whole(name: str, rows: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what it has of others that it is like: their options and its own."""
    row = dict(rows[name])
    for other in row.pop("like", "").split():
        for key, value in _whole(other, rows).items():
            row[key] = f"{value} {row[key]}" if key in row and key in _LISTS else row.get(key, value)
    return row


def names(written: str) -> frozenset[str]:
    """The options that a table's words stand for: `-ab` are two, `--ab` is one, `always` is itself."""
    found: set[str] = set()
    for word in written.split():
        found.update({word} if word.startswith("--") or word == ALWAYS else {f"-{letter}" for letter in word[1:]})
    return frozenset(found)


_NUMBER: Final = re.compile(r"[-+]?[0-9]+([.,][0-9]+)?[A-Za-z%]{0,3}")


def is_number(value: str) -> bool:
    """Whether a value is digits, with a sign or a unit at most."""
    return _NUMBER.fullmatch(value) is not None
