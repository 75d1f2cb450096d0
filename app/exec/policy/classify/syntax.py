"""The closed subset of bash that is understood: plain values, made by the grammar, judged by everybody else.

Words and commands are named tuples: a line has hundreds, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


class Output(NamedTuple):
    """What a substitution stands for: the output of the command that begins at `of`; anything, where that is None."""

    of: int | None


class Word(NamedTuple):
    """One word of a command as the program will get it: quotes and backslashes are gone.

    `text` is exact unless one of these is set. `globs`: an unquoted `*`, `?` or `[` is in it, kept as it is written.
    `tilde`: it begins with an unquoted `~` that becomes the home directory. `variables`: names of variables with known
    values in it, and offsets of substitutions, which stand in `text` as `${name}` (`with_values` puts values there);
    with `splits`, one of them is not quoted, so its value is cut at blanks and expanded as a pattern. `unknown`:
    something in it is told only when it runs (another variable) and stands in `text` as it is written; an `Outside`
    goes with it. `raw` is the source. `start` and `end` are offsets in characters of the command.
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
        """`text` with each variable's value in its place.

        Raises:
            KeyError: A variable has no value here.
        """
        text = self.text
        for name in self.variables:
            text = text.replace(f"${{{name}}}", values[name])
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """One redirection: `op` is `<`, `>`, `>>`, `>&`, `<&`, `&>`, `<<<`, `<<` and so on; `fd` as written, or None.

    `target` is None for a heredoc; `body` is a heredoc's text, and only of one whose delimiter is quoted or whose text
    has nothing to expand.
    """

    op: str
    fd: int | None = None
    target: Word | None = None
    body: str | None = None

    @property
    def feeds(self) -> bool:
        """Whether it is the input, in place of a pipe."""
        return self.op.startswith("<") and self.fd in {None, 0}


Values = tuple[Word, ...] | Output | None
"""What a variable can be: one of these words; or anything, where it is None."""


STATUS: Final = "0status"
"""Stands for the name of `$?`; no variable is called so."""
NUMBER: Final = -1
"""In place of a command: what prints a number."""
KNOWN: Final[Mapping[str, Values]] = {"HOME": (Word("~", "~", 0, 0, tilde=True),), STATUS: Output(NUMBER)}
"""Variables that are known without being set."""


class Simple(NamedTuple):
    """One simple command: assignments before it, its words (the first is the program), its redirections.

    Without words it is assignments or redirections alone, those of a compound command (`{ ...; } > file`) among them.
    A test is a command too: the words of `[[ -f a ]]` are `[[`, `-f`, `a` and `]]`.

    `piped` says that it reads another command's output, and `fed_by` where that one begins, if it is a single one.
    `loops` are the values that each variable can have that a loop around it or an assignment before it sets. `sets`: it
    is such an assignment.
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
    """Something of the command that is outside the subset: it asks. `text` is the source of it."""

    reason: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A command line that bash can run. Every command in it, at any depth, is in `commands`, in order of the text.

    With `outside`, some of it is not understood: what is in `commands` is still true, but not all that would run.
    """

    source: str
    commands: tuple[Simple, ...]
    outside: tuple[Outside, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unparsable:
    """Text that bash would refuse, or that cannot be shown as what it is: it is denied. `at` is a character offset."""

    reason: str
    at: int
