"""The closed subset of bash that is understood, as plain values that the grammar makes.

Words and commands are named tuples: a line has hundreds, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


class Output(NamedTuple):
    """The value of a substitution: the output of the command that begins at `of`, or anything if that is None."""

    of: int | None


class Word(NamedTuple):
    """One word of a command as the program will get it, without quotes and backslashes.

    `text` is exact unless one of these is set. `globs`: it has an unquoted `*`, `?` or `[`. `tilde`: it begins with an
    unquoted `~` that becomes the home directory. `variables`: variables with known values, and offsets of
    substitutions; both are written as `${name}` in `text` (`with_values` replaces them). `splits`: one of them is
    unquoted, so its value is split at blanks and expanded as a pattern. `unknown`: a part is known only at run time;
    `text` has its source, and an `Outside` reports it. `raw` is the source; `start` and `end` are offsets in
    characters.
    """

    text: str
    raw: str
    start: int
    end: int
    quoted: bool = False
    globs: bool = False
    variables: tuple[str, ...] = ()
    tilde: bool = False
    splits: bool = False
    unknown: bool = False

    def with_values(self, values: Mapping[str, str]) -> str:
        """`text` with its variables replaced; KeyError if one has no value."""
        text = self.text
        for name in self.variables:
            text = text.replace(f"${{{name}}}", values[name])
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """One redirection: `op` is `<`, `>`, `>>`, `>&`, `<&`, `&>`, `<<<`, `<<` and so on; `fd` as written, or None.

    `target` is None for a heredoc. `body` is a heredoc's text, if its delimiter is quoted or it has nothing to expand.
    """

    op: str
    fd: int | None = None
    target: Word | None = None
    body: str | None = None

    @property
    def feeds(self) -> bool:
        """Whether it replaces a pipe as the input."""
        return self.op.startswith("<") and self.fd in {None, 0}


Values = tuple[Word, ...] | Output | None
"""The possible values of a variable; None: anything."""


STATUS: Final = "0status"
"""The name that stands for `$?`; no variable has it."""
NUMBER: Final = -1
"""Stands for a command that prints a number."""
KNOWN: Final[Mapping[str, Values]] = {"HOME": (Word("~", "~", 0, 0, tilde=True),), STATUS: Output(NUMBER)}
"""Variables with known values that no line sets."""


class Simple(NamedTuple):
    """One simple command: assignments before it, its words (the first is the program), its redirections.

    Without words it has only assignments or redirections, such as those of a compound command (`{ ...; } > file`). A
    test is a command too: the words of `[[ -f a ]]` are `[[`, `-f`, `a` and `]]`.

    `piped`: it reads another command's output; `fed_by` is the offset of that command, if it is a single one. `loops`
    are the values of each variable that a loop around it or an assignment before it sets. `sets`: it is such an
    assignment.
    """

    text: str
    start: int
    end: int
    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    piped: bool = False
    loops: tuple[tuple[str, Values], ...] = ()
    fed_by: int | None = None
    sets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A part of the command outside the subset; the command asks. `text` is its source."""

    reason: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A command line that bash can run; `commands` has its commands at any depth, in the order of the text.

    With `outside`, a part is not understood: `commands` is correct but may be incomplete.
    """

    source: str
    commands: tuple[Simple, ...]
    outside: tuple[Outside, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unparsable:
    """Text that is denied: bash would refuse it, or it cannot be shown unambiguously. `at` is a character offset."""

    reason: str
    at: int
