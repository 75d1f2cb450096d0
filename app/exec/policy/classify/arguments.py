"""Expands the words of a command to arguments, and splits these into options and operands by the program's table."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shellback.exec.core.display import label
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import (
    ALWAYS,
    COUNTED,
    HOLE,
    Argument,
    Call,
    Invocation,
    Kind,
    Open,
    Pieces,
    Program,
    is_number,
)
from shellback.exec.policy.classify.paths import Files
from shellback.exec.policy.classify.syntax import STATUS, Output, Simple, Values, Word

MOST_VALUES: Final = 64
"""The most combinations of variables' values that are judged for one command."""
MOST_JOINED: Final = 8192
"""The most characters of a word after its variables are replaced."""
Bound = Mapping[str, Pieces]
"""The value of each variable."""
Printed = Callable[[int | None, Files], list[Pieces]]
"""The possible outputs of the command that begins at an offset."""
Looked = dict[tuple[str, Values, Path], list[Pieces] | None]
"""Cache of the variables' values of a line, by name, binding and directory; None while one is being computed."""
_FILES: Final = frozenset({Kind.READ, Kind.LOOK, Kind.LINK})
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+")
_PATTERN: Final = re.compile(r"[\w@%+=:,./*?-]+")
_DIGITS: Final = re.compile(r"-[0-9]+")
_COUNTING: Final = frozenset({"head", "tail"})


def bindings(simple: Simple, files: Files, printed: Printed, looked: Looked) -> Iterator[Bound]:
    """Each combination of values of the command's variables; one empty combination without variables.

    Raises:
        Asks: The values are unknown, or too many.
    """
    return _Variables(dict(simple.loops), files, printed, looked).bindings(_all_words(simple))


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of one command."""

    known: Mapping[str, Values]
    files: Files
    printed: Printed
    looked: Looked

    def bindings(self, words: Iterable[Word]) -> Iterator[Bound]:
        used = sorted({name for word in words for name in word.variables})
        values = [self._values(name) for name in used]
        if math.prod(map(len, values)) > MOST_VALUES:
            raise Asks("its variables have too many values to look at each")
        for chosen in itertools.product(*values):
            yield dict(zip(used, chosen, strict=True))

    def _values(self, name: str) -> list[Pieces]:
        values = self.known.get(name)
        if values is None:
            raise Asks(f"${name} is known only when it runs")
        if isinstance(values, Output):
            return self.printed(values.of, self.files)
        key = (name, values, self.files.around.cwd)
        if key not in self.looked:
            self.looked[key] = None
            self.looked[key] = self._one_of(name, values)
        found = self.looked[key]
        if found is None:
            raise Asks(f"${name} could not be told")
        return found

    def _one_of(self, name: str, values: Iterable[Word]) -> list[Pieces]:
        found: dict[Pieces, None] = {}
        for word in values:
            for bound in self.bindings((word,)):
                for argument in expand(word, bound, self.files):
                    if argument.hidden:
                        raise Asks(f"${name} stands for hidden files")
                    one = argument.open and replace(argument.open, many=False)
                    found[(Argument(argument.text, open=one),)] = None
            if len(found) > MOST_VALUES:
                raise Asks(f"${name} has too many values to look at each")
        return list(found)


def expand(word: Word, bound: Bound, files: Files) -> list[Argument]:
    """The arguments that one word expands to, with these values of variables.

    Raises:
        Asks: The expansion is unknown, or a pattern matches a file that may not be read.
    """
    if word.unknown:
        raise Asks(f"{label(word.raw)} is known only when it runs")
    if word.variables and (word.globs or word.tilde):
        raise Asks(f"{label(word.raw)} mixes a variable with other signs")
    if word.variables:
        pieces = bound[word.variables[0]]
        if word.splits and word.text == f"${{{word.variables[0]}}}" and pieces is not None:
            return [argument for piece in pieces for argument in _split(word, piece, files)]
        whole = _joined(word, bound)
        if not word.splits:
            return [whole]
        if whole.matched:
            raise Asks(f"{label(word.raw)} stands without quotes for what is known only when it runs")
        return _again(word, whole.text, files)
    text = word.text
    if word.tilde:
        text = f"{files.around.home}{text[1:]}"
    return _matched(text, files) if word.globs else [Argument(text)]


def _matched(pattern: str, files: Files) -> list[Argument]:
    found = files.expand(pattern)
    return [Argument(name, pattern) for name in found or [pattern]]


def _joined(word: Word, bound: Bound) -> Argument:
    """A word as one argument, with its variables replaced."""
    single = {name: _single(bound[name]) for name in word.variables}
    if len(word.text) + sum(len(single[name].text) for name in word.variables) > MOST_JOINED:
        raise Asks(f"{label(word.raw)} becomes too long to look at")
    text = _VARIABLE.sub(lambda found: single[found[1]].text, word.text)
    if len(single) == 1 and word.text == f"${{{word.variables[0]}}}":
        return single[word.variables[0]]
    return Argument(text, open=Open() if any(one.open is not None for one in single.values()) else None)


def _single(pieces: Pieces) -> Argument:
    """A quoted value."""
    if pieces == ():
        return Argument("")
    if pieces is None or len(pieces) != 1 or pieces[0].several:
        return Argument(HOLE, open=Open())
    return pieces[0]


def _split(word: Word, piece: Argument, files: Files) -> list[Argument]:
    """A piece of an unquoted value, in which the shell expands patterns."""
    if piece.open is None:
        if piece.pattern and not (_PLAIN.fullmatch(piece.text) or piece.text == piece.pattern):
            raise Asks(f"{label(word.raw)} stands without quotes for names that the shell would take apart")
        return [piece] if piece.pattern else _again(word, piece.text, files)
    below = piece.open.below
    if not (piece.open.number or piece.open.words or (below is not None and files.tidy(below))):
        raise Asks(f"{label(word.raw)} stands without quotes for what is known only when it runs")
    if word.variables == (STATUS,):
        return [piece]
    return [replace(piece, open=replace(piece.open, many=True))]  # many, or none


def _again(word: Word, text: str, files: Files) -> list[Argument]:
    """An unquoted variable: the shell splits its value at blanks and expands patterns in it."""
    if _PLAIN.fullmatch(text):
        return [Argument(text)]
    if _PATTERN.fullmatch(text):
        return _matched(text, files)
    raise Asks(f"{label(word.raw)} stands without quotes for {text!r}, which the shell would take apart")


def _all_words(simple: Simple) -> Iterator[Word]:
    yield from simple.words
    yield from (word for _, word in simple.assignments)
    yield from (redirect.target for redirect in simple.redirects if redirect.target is not None)


def match(table: Program, call: Call) -> Invocation:
    """Split a program's arguments by its table, and judge each value and operand by its kind.

    Raises:
        Asks: An option is not in the table, a value has the wrong form, or a file may not be read.
    """
    options, operands = _apart(table, call)
    if any(operand.unbound for operand in operands):
        raise Asks(f"{call.name} is given what is known only when it runs")
    for name, value in options:
        if value is not None:
            _judge(table.valued.get(name, Kind.TEXT), value, call.files, f"{call.name} {name}")
    given = {name for name, _ in options}
    _judge_operands(table, given, operands, call)
    found = Invocation(
        name=call.name,
        options=tuple(options),
        operands=tuple(operand.text for operand in operands),
        files=call.files,
        piped=call.piped,
        taken=tuple(operands),
    )
    if table.check is not None:
        table.check(found)
    return found


def _apart(table: Program, call: Call) -> tuple[list[tuple[str, str | None]], list[Argument]]:
    options: list[tuple[str, str | None]] = []
    operands: list[Argument] = []
    waiting = list(reversed(call.arguments))
    while waiting:
        argument = waiting.pop()
        text = argument.text
        if text == "-" or not text.startswith("-"):
            operands.append(argument)
            if not table.permutes:
                operands += reversed(waiting)
                break
            continue
        if argument.open is not None or (argument.pattern and not _stays(table, argument.pattern)):
            raise Asks(f"a pattern stands for {text}, which {call.name} takes for an option")
        if text == "--":
            operands += reversed(waiting)
            break
        if text.startswith("--"):
            options.append(_long(table, call.name, text, waiting))
        elif table.digits and _DIGITS.fullmatch(text):
            options.append(("-NUM", text[1:]))
        else:
            options += _cluster(table, call.name, text, waiting)
    return options, operands


def _stays(table: Program, pattern: str) -> bool:
    """Whether every match of a pattern is the same option with some text, as in `--include=*.py`."""
    name, assigned, _ = pattern.partition("=")
    return bool(assigned) and table.valued.get(name) is Kind.TEXT and not any(sign in name for sign in "*?[")


def _long(table: Program, program: str, text: str, waiting: list[Argument]) -> tuple[str, str | None]:
    name, assigned, value = text.partition("=")
    if name in table.valued:
        return name, value if assigned else _next(table, program, name, waiting)
    if name in table.optional or (name in table.flags and not assigned):
        return name, value if assigned else None
    raise Asks(f"{program} {name} is not known to only read")


def _cluster(table: Program, program: str, text: str, waiting: list[Argument]) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    for index, letter in enumerate(text[1:], start=1):
        name, rest = f"-{letter}", text[index + 1 :]
        if name in table.valued:
            return [*found, (name, rest or _next(table, program, name, waiting))]
        if name in table.optional:
            return [*found, (name, rest or None)]
        if name not in table.flags:
            raise Asks(f"{program} {name} is not known to only read")
        found.append((name, None))
    return found


def _next(table: Program, program: str, name: str, waiting: list[Argument]) -> str | None:
    if not waiting and name in table.last:
        return None
    if not waiting:
        raise Asks(f"{program} {name} lacks its value")
    value = waiting.pop()
    if value == COUNTED and program in _COUNTING and name == "-n":
        return "1"  # any number of lines is harmless
    if value.matched:
        raise Asks(f"a pattern stands for the value of {program} {name}")
    if value.text.startswith("-") and len(value.text) > 1 and not is_number(value.text):
        raise Asks(f"{program} {name} may not take {value.text} for its value")
    return value.text


def _judge_operands(table: Program, given: set[str], operands: list[Argument], call: Call) -> None:
    _count(table, operands, call.name)
    rest = operands
    if table.first is not None and not given & table.first_unless and operands:
        if operands[0].several or (operands[0].matched and table.check is not None):
            raise Asks(f"a pattern stands for the first operand of {call.name}")
        _judge(table.first, operands[0].text, call.files, call.name)
        rest = operands[1:]
    if table.operands is Kind.READ and any(operand.hidden for operand in rest):
        raise Asks("a pattern stands for hidden files")
    walks = _under(table.walks, given)
    if table.here and not rest and (walks or not call.piped):
        rest = [Argument(".")]
    for operand in rest:
        _judge_one(table.operands, operand, call)
        if walks:
            call.files.descend(
                operand.below.top if operand.below else operand.text,
                follows=_under(table.follows, given),
                reads=table.operands is Kind.READ,
                hidden=_under(table.hidden, given),
            )


def _under(options: frozenset[str], given: set[str]) -> bool:
    return ALWAYS in options or bool(options & given)


def _count(table: Program, operands: list[Argument], name: str) -> None:
    counted = table.most is not None or table.least > 0
    if counted and any(operand.several for operand in operands):
        raise Asks(f"{name} takes what a pattern matches, which may be another number of files when it runs")
    if len(operands) < table.least:
        raise Asks(f"{name} lacks an operand")
    if table.most is not None and len(operands) > table.most:
        raise Asks(f"{name} with {len(operands)} operands is not known to only read")


def _judge_one(kind: Kind, operand: Argument, call: Call) -> None:
    """Judge an operand, or each file that it can match."""
    if operand.below is not None and kind in _FILES:
        call.files.every(operand.below, lambda path: _judge(kind, path, call.files, call.name))
    else:
        _judge(kind, operand.text, call.files, call.name)


def _judge(kind: Kind, text: str, files: Files, what: str) -> None:
    if kind is Kind.READ:
        files.read(text)
    elif kind is Kind.LOOK:
        files.look(text)
    elif kind is Kind.LINK:
        files.link(text)
    elif kind is Kind.NUMBER and not is_number(text):
        raise Asks(f"{text!r} is no number for {what}")
