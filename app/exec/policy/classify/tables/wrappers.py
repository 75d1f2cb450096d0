"""Programs that run what they are given: they read where that reads, with all that they may hand it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import (
    HOLE,
    Argument,
    Call,
    Invocation,
    Judge,
    Kind,
    Open,
    Pieces,
    Program,
    program,
    words,
)

_SAFE_VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(
        ("LANG", "LANGUAGE", *(f"LC_{part}" for part in words("ALL COLLATE CTYPE MESSAGES MONETARY NUMERIC TIME"))),
        re.compile(r"(C|POSIX|[a-z]{2,3}_[A-Z]{2})(\.[A-Za-z0-9-]+)?|"),
    ),
    "TZ": re.compile(r"[A-Z][A-Za-z0-9_+-]*(/[A-Z][A-Za-z0-9_+-]*)*|"),
    "NO_COLOR": re.compile(r"1?"),
    "TERM": re.compile(r"dumb|xterm(-256color)?"),
    "COLUMNS": re.compile(r"[0-9]{1,4}"),
    "LINES": re.compile(r"[0-9]{1,4}"),
    "PAGER": re.compile(r"cat|"),
    "GIT_PAGER": re.compile(r"cat|"),
    "GIT_OPTIONAL_LOCKS": re.compile(r"0"),
    "GIT_TERMINAL_PROMPT": re.compile(r"0"),
}


def harmless(name: str, value: str) -> bool:
    """Whether a program may find this in its environment."""
    pattern = _SAFE_VALUES.get(name)
    return pattern is not None and pattern.fullmatch(value) is not None


_TIMEOUT: Final = program(
    "-v --foreground --preserve-status --verbose", text="-ks --signal --kill-after", operands=Kind.TEXT, permutes=False
)
_PLAIN: Final[Mapping[str, Program]] = {
    "nice": program(number="-n --adjustment", digits=True, operands=Kind.TEXT, permutes=False),
    # Not -p, -P, -u, which are about other processes.
    "ionice": program("-t --ignore", number="-cn --class --classdata", operands=Kind.TEXT, permutes=False),
    "stdbuf": program(text="-ioe --input --output --error", operands=Kind.TEXT, permutes=False),
    # No options: another environment, directory or line of words.
    "env": program(operands=Kind.TEXT, permutes=False),
}


def _timeout(call: Call) -> None:
    rest = match(_TIMEOUT, call).taken
    if not rest or rest[0].matched or not re.fullmatch(r"[0-9.]+[smhd]?", rest[0].text):
        raise Asks("timeout lacks its time")
    call.run(rest[1:], fed=True)


def _plain(call: Call) -> None:
    call.run(match(_PLAIN[call.name], call).taken, fed=True)


def _env(call: Call) -> None:
    rest = match(_PLAIN["env"], call).taken
    while rest and not rest[0].matched and "=" in rest[0].text:
        name, _, value = rest[0].text.partition("=")
        if not harmless(name, value):
            raise Asks(f"{name} is set, which may steer what runs")
        rest = rest[1:]
    call.run(rest, fed=True)


# Not -a, -i, -l, -o, -p: names from a file, values that are attached, a terminal.
_XARGS: Final = program(
    "-0rtx --null --no-run-if-empty --verbose --exit",
    text="-IdE --delimiter",
    number="-nPLs --max-args --max-procs --max-lines --max-chars",
    operands=Kind.TEXT,
    permutes=False,
)


_AS_THEY_COME: Final = frozenset({"-r", "--no-run-if-empty", "-t", "--verbose"})
"""Under these options, all that it reads becomes the arguments of one command."""


def _xargs(call: Call) -> None:
    own = match(_XARGS, call)
    command = own.taken or (Argument("echo"),)
    places = own.values("-I")
    if places and own.given("-n", "-L", "--max-args", "--max-lines"):
        raise Asks("xargs -I with another way to take its input is not read")
    for pieces in call.fed():
        given = _given(pieces, own)
        if not places:
            call.run(command + given)
            continue
        for one in given:
            call.run(tuple(_put(word, places[-1], one) for word in command))
    if not (places or own.given("-r", "--no-run-if-empty")):
        call.run(command)


def _given(pieces: Pieces, own: Invocation) -> tuple[Argument, ...]:
    """What the pieces become that it cuts its input into: anything, where a name could be cut otherwise."""
    nul = own.given("-0", "--null")
    exact = pieces is not None and any(piece.below is None for piece in pieces)
    otherwise = any(name not in _AS_THEY_COME for name, _ in own.options)
    if (
        not pieces
        or (exact and otherwise)
        or any(value not in {"\\n", "\n"} for value in own.values("-d", "--delimiter"))
    ):
        return (Argument(HOLE, open=Open(many=True)),)
    for piece in pieces:
        below = piece.below
        whole = nul and below is not None and below.nul
        if below is not None and not whole and (below.nul or nul or not own.files.tidy(below)):
            return (Argument(HOLE, open=Open(many=True)),)
    return pieces


def _put(word: Argument, place: str, one: Argument) -> Argument:
    if not place or word.open is not None:
        raise Asks("xargs puts what it reads where that is not known")
    if word.text == place:
        return replace(one, open=one.open and replace(one.open, many=False))
    if place not in word.text:
        return word
    if word.pattern:
        raise Asks("xargs puts what it reads into what a pattern matches")
    return Argument(word.text.replace(place, HOLE), open=Open())


WRAPPERS: Final[Mapping[str, Judge]] = {
    "timeout": _timeout,
    "env": _env,
    **dict.fromkeys(("nice", "ionice", "stdbuf"), _plain),
    "xargs": _xargs,
}
