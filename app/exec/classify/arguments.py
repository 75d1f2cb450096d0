"""From the words of a command to what its program gets, and from there to options and operands, by its table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final

from app.exec.classify.asking import Asks
from app.exec.classify.options import ALWAYS, Argument, Call, Invocation, Kind, Program, is_number
from app.exec.classify.paths import Files
from app.exec.classify.syntax import Simple, Word

MOST_VALUES: Final = 64
"""Combinations of loop variables' values that are looked at for one command."""
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+")
_PATTERN: Final = re.compile(r"[\w@%+=:,./*?-]+")
_DIGITS: Final = re.compile(r"-[0-9]+")


def bindings(simple: Simple, files: Files) -> Iterator[Mapping[str, str]]:
    """Each combination of values that the loop variables of a command can have; one empty one without variables.

    Raises:
        Asks: They are not known, or too many.
    """
    used = {name for word in _all_words(simple) for name in word.variables}
    known = dict(simple.loops)
    if not used <= known.keys():
        raise Asks(f"${min(used - known.keys())} is known only when it runs")
    ordered = sorted(used)
    values: list[list[str]] = []
    for name in ordered:
        words = known[name]
        if words is None or any(word.variables for word in words):
            raise Asks(f"${name} is known only when it runs")
        expanded = [argument for word in words for argument in expand(word, {}, files)]
        if any(argument.hidden for argument in expanded):
            raise Asks(f"${name} stands for hidden files")
        values.append([argument.text for argument in expanded])
    count = 1
    for choices in values:
        count *= len(choices)
    if count > MOST_VALUES:
        raise Asks("the loop has too many values to look at each")
    for chosen in itertools.product(*values):
        yield dict(zip(ordered, chosen, strict=True))


def expand(word: Word, bound: Mapping[str, str], files: Files) -> list[Argument]:
    """What one word becomes, with these values of loop variables.

    Raises:
        Asks: It cannot be told, or a pattern stands for what may not be read.
    """
    if word.unknown:
        raise Asks(f"{word.raw} is known only when it runs")
    if word.variables and (word.globs or word.tilde):
        raise Asks(f"{word.raw} mixes a variable with other signs")
    text = _VARIABLE.sub(lambda found: bound[found[1]], word.text) if word.variables else word.text
    if word.splits:
        return _again(word, text, files)
    if word.tilde:
        text = f"{files.around.home}{text[1:]}"
    return _matched(text, files) if word.globs else [Argument(text)]


def _matched(pattern: str, files: Files) -> list[Argument]:
    found = files.expand(pattern)
    return [Argument(name, pattern) for name in found or [pattern]]


def _again(word: Word, text: str, files: Files) -> list[Argument]:
    """A variable without quotes: the shell takes its value apart, and expands patterns in it."""
    if _PLAIN.fullmatch(text):
        return [Argument(text)]
    if _PATTERN.fullmatch(text):
        return _matched(text, files)
    raise Asks(f"{word.raw} stands without quotes for {text!r}, which the shell would take apart")


def _all_words(simple: Simple) -> Iterator[Word]:
    yield from simple.words
    yield from (word for _, word in simple.assignments)
    yield from (redirect.target for redirect in simple.redirects if redirect.target is not None)


def match(table: Program, call: Call) -> Invocation:
    """Take a program's arguments apart by its table, and judge each value and operand by its kind.

    Raises:
        Asks: An option is not in the table, a value has not its form, or a file may not be read.
    """
    options, operands = _apart(table, call)
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
        if argument.matched and not _stays(table, argument.pattern):
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
    """Whether all that a pattern can stand for is one option with some text, as in `--include=*.py`."""
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
    if value.matched:
        raise Asks(f"a pattern stands for the value of {program} {name}")
    if value.text.startswith("-") and len(value.text) > 1 and not is_number(value.text):
        raise Asks(f"{program} {name} may not take {value.text} for its value")
    return value.text


def _judge_operands(table: Program, given: set[str], operands: list[Argument], call: Call) -> None:
    _count(table, operands, call.name)
    rest = operands
    if table.first is not None and not given & table.first_unless and operands:
        if operands[0].matched:
            raise Asks(f"a pattern stands for the first operand of {call.name}")
        _judge(table.first, operands[0].text, call.files, call.name)
        rest = operands[1:]
    if table.operands is Kind.READ and any(operand.hidden for operand in rest):
        raise Asks("a pattern stands for hidden files")
    walks = _under(table.walks, given)
    texts = [operand.text for operand in rest]
    if table.here and not texts and (walks or not call.piped):
        texts = ["."]
    for text in texts:
        _judge(table.operands, text, call.files, call.name)
        if walks:
            call.files.descend(
                text,
                follows=_under(table.follows, given),
                reads=table.operands is Kind.READ,
                hidden=_under(table.hidden, given),
            )


def _under(options: frozenset[str], given: set[str]) -> bool:
    return ALWAYS in options or bool(options & given)


def _count(table: Program, operands: list[Argument], name: str) -> None:
    counted = table.most is not None or table.least > 0
    if counted and any(operand.matched for operand in operands):
        raise Asks(f"{name} takes what a pattern matches, which may be another number of files when it runs")
    if len(operands) < table.least:
        raise Asks(f"{name} lacks an operand")
    if table.most is not None and len(operands) > table.most:
        raise Asks(f"{name} with {len(operands)} operands is not known to only read")


def _judge(kind: Kind, text: str, files: Files, what: str) -> None:
    if kind is Kind.READ:
        files.read(text)
    elif kind is Kind.LOOK:
        files.look(text)
    elif kind is Kind.LINK:
        files.link(text)
    elif kind is Kind.NUMBER and not is_number(text):
        raise Asks(f"{text!r} is no number for {what}")
