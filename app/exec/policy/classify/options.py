"""Tables of programs' options. An option that is not in the table asks; abbreviations are never resolved."""

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
    """The kind of a value or operand."""

    TEXT = auto()
    """A pattern, a format, a name: never a path."""
    NUMBER = auto()
    """Digits, optionally with a sign or a unit."""
    READ = auto()
    """A file or directory that is read; it must be allowed and no secret."""
    LOOK = auto()
    """A path of which only names and metadata are read; directories above the allowed ones are accepted too."""
    LINK = auto()
    """As LOOK, without following a symlink."""


HOLE: Final = "\0"
"""Stands in a text for a part that is known only at run time."""


@dataclass(frozen=True, slots=True)
class Open:
    """The possible values of the HOLE in an argument; by default any text.

    `many`: any number of arguments. `number`: digits. `words`: letters, digits and marks that no shell expands.
    `below`: a path below the directory with which the text begins.
    """

    number: bool = False
    words: bool = False
    below: Below | None = None
    many: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the program. `pattern` is the glob that it matched; at run time other files may match.

    `open`: a part is known only at run time.
    """

    text: str
    pattern: str = ""
    open: Open | None = None

    @property
    def matched(self) -> bool:
        """Whether at run time it may be another text, or another number of arguments."""
        return bool(self.pattern) or self.open is not None

    @property
    def below(self) -> Below | None:
        """The directory below which it is a file."""
        return self.open and self.open.below

    @property
    def several(self) -> bool:
        """Whether it may be several arguments, or none."""
        return bool(self.pattern) or (self.open is not None and self.open.many)

    @property
    def unbound(self) -> bool:
        """Whether it may be something else than a known file."""
        return self.open is not None and self.open.below is None

    @property
    def hidden(self) -> bool:
        """Whether the glob matches hidden files, which often hold secrets."""
        return any(part.startswith(".") and part.strip(".") for part in self.pattern.split("/"))


COUNTED: Final = Argument(HOLE, open=Open(number=True))
"""One argument that is a number."""
Pieces = tuple[Argument, ...] | None
"""The pieces of a text that is split at blanks; None: unknown."""


DEPTH: Final = 4
"""The most nested wrappers that are followed."""


def _unknown() -> list[Pieces]:
    return [None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A program with its arguments, before they are matched with its table.

    `piped`: its input is a pipe, and `fed` the possible input. `carry` judges a command that it runs.
    """

    name: str
    arguments: tuple[Argument, ...]
    files: Files
    piped: bool = False
    fed: Callable[[], list[Pieces]] = _unknown
    carry: Callable[[Call], None] | None = None
    depth: int = 0

    def run(self, arguments: tuple[Argument, ...], *, fed: bool = False) -> None:
        """Accept a command that this one runs, its name first; with `fed` it inherits the input. Asks as `judge`."""
        if not arguments or arguments[0].matched or self.carry is None or self.depth == DEPTH:
            raise Asks(f"it is not known what {self.name} runs")
        inner = replace(self, name=arguments[0].text, arguments=arguments[1:], depth=self.depth + 1)
        self.carry(inner if fed else replace(inner, piped=False, fed=_unknown))

    @property
    def texts(self) -> tuple[str, ...]:
        """The arguments, for programs to which their number or order matters; Asks if they may differ at run time."""
        if any(argument.matched for argument in self.arguments):
            raise Asks(f"{self.name} takes what a pattern matches, which may be other things when it runs")
        return tuple(argument.text for argument in self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A program's arguments, split by its table. `options` are (name, value) in order, with names of the table."""

    name: str
    options: tuple[tuple[str, str | None], ...]
    operands: tuple[str, ...]
    files: Files
    piped: bool = False
    taken: tuple[Argument, ...] = ()
    """The operands as arguments."""

    def each(self, judge: Callable[[str], None]) -> None:
        """Judge each operand, and each file that it can match."""
        for operand in self.taken:
            if operand.below is not None:
                self.files.every(operand.below, judge)
            else:
                judge(operand.text)

    def given(self, *names: str) -> bool:
        """Whether any of these options is given."""
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> list[str]:
        """The values of these options, in order."""
        return [value for name, value in self.options if name in names and value is not None]


ALWAYS: Final = "always"

Check = Callable[[Invocation], None]
"""Judges an invocation; raises Asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The arguments with which a program only reads; made by `program`.

    `most` and `first` limit the number of operands and the first operand; if they are set, no glob may produce such an
    operand. `here`: without an operand it reads the current directory. `walks` and `follows` are the options with which
    it descends into directories, and follows symlinks in them; `hidden` those with which it reads hidden files there;
    "always" means without an option. `last` are options that need no value at the end.
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
"""Judges a program with a syntax of its own; raises Asks."""

_VALUED: Final = {"text": Kind.TEXT, "number": Kind.NUMBER, "read": Kind.READ}
_UNDER: Final = ("first_unless", "walks", "follows", "hidden", "last")
_LISTS: Final = frozenset({"flags", "maybe", *_VALUED, *_UNDER})


def words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


def program(flags: str = "", **row: Any) -> Program:
    """Make a program from a row; `programs.toml` documents the fields."""
    valued = {name: kind for key, kind in _VALUED.items() for name in names(row.pop(key, ""))}
    under = {key: names(row.pop(key)) for key in _UNDER if key in row}
    return Program(flags=names(flags), valued=valued, optional=names(row.pop("maybe", "")), **under, **row)


def table(file: str, checks: Mapping[str, Check], **everywhere: str) -> dict[str, Program]:
    """The programs of a file of rows beside this module; `everywhere` has defaults of the fields."""
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
    """A row merged with the rows that it names as `like`."""
    row = dict(rows[name])
    for other in row.pop("like", "").split():
        for key, value in _whole(other, rows).items():
            row[key] = f"{value} {row[key]}" if key in row and key in _LISTS else row.get(key, value)
    return row


def names(written: str) -> frozenset[str]:
    """The options in a table's text: `-ab` are two, `--ab` is one, `always` stays."""
    found: set[str] = set()
    for word in written.split():
        found.update({word} if word.startswith("--") or word == ALWAYS else {f"-{letter}" for letter in word[1:]})
    return frozenset(found)


_NUMBER: Final = re.compile(r"[-+]?[0-9]+([.,][0-9]+)?[A-Za-z%]{0,3}")


def is_number(value: str) -> bool:
    """Whether a value is digits, optionally with a sign or a unit."""
    return _NUMBER.fullmatch(value) is not None
