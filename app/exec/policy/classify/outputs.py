"""Predicts the output of commands from their words: names of files, numbers, their own arguments.

The commands themselves are judged elsewhere. An unknown output is anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.options import (
    COUNTED,
    HOLE,
    Argument,
    Call,
    Invocation,
    Open,
    Pieces,
    Program,
    names,
)
from shellback.exec.policy.classify.paths import Below, Files
from shellback.exec.policy.classify.programs import TABLES, Trust
from shellback.exec.policy.classify.tables import find

_PLAIN: Final = re.compile(r"[\w@%+=:,./-]+")
_NUMBER: Final = (COUNTED,)
_WORDS: Final = (Argument(HOLE, open=Open(words=True, many=True)),)
_LS: Final = names("-1trSdvX --directory --reverse")
_ENDS: Final = names("-nzq --lines --zero-terminated --quiet") | {"-NUM"}
_GREP: Final = names("-EFGPivwxzem --invert-match --ignore-case")
_LINES: Final = {
    "head": _ENDS,
    "tail": _ENDS,
    "sort": names("-bdfghiMnRrVuzkts --reverse --unique --numeric-sort --zero-terminated"),
    "uniq": names("-iudz --unique --repeated --zero-terminated"),
    "cat": names(""),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _GREP),
}
"""Filters that print some of their input lines, with these options."""
_PATTERN_FIRST: Final = frozenset({"grep", "egrep", "fgrep"})
_COUNTS: Final = names("-clmw --bytes --chars --lines --words")
_GREP_COUNTS: Final = names("-cEFGPivwxe --count --invert-match --ignore-case")


def printed(call: Call, trust: Trust) -> Pieces:
    """The pieces of the output, split at blanks."""
    if call.name in _LINES:
        kept = _filtered(call)
        if kept is not None or call.name not in _PATTERN_FIRST:
            return kept
    if call.name == "find":
        below = find.found(call)
        return None if below is None else tuple(below)
    if call.name == "which":
        return _program(call, trust)
    told = _TELLERS.get(call.name)
    return None if told is None else told(call)


def _taken(call: Call) -> Invocation:
    table = TABLES[call.name]
    assert isinstance(table, Program)
    return match(table, call)


def _filtered(call: Call) -> Pieces:
    found = _taken(call)
    given = {name for name, _ in found.options}
    first = call.name in _PATTERN_FIRST and not given & {"-e"}
    if not call.piped or len(found.operands) != first or not given <= _LINES[call.name]:
        return None
    fed = call.fed()
    if len(fed) != 1 or fed[0] is None:
        return None
    nul = bool(given & {"-z", "--zero-terminated"})
    if any((piece.below is not None and piece.below.nul) is not nul for piece in fed[0]):
        return None
    # A filter may drop some of them.
    return tuple(piece if piece.several else _maybe(piece) for piece in fed[0])


def _maybe(piece: Argument) -> Argument:
    if piece.open is not None:
        return replace(piece, open=replace(piece.open, many=True))
    return Argument(piece.text, piece.text)


def _program(call: Call, trust: Trust) -> Pieces:
    if len(call.texts) != 1 or not re.fullmatch(r"\w[\w.+-]*", call.texts[0]):
        return None
    path = trust.where(call.texts[0])
    return None if path is None else (Argument(path, path),)


def _echo(call: Call) -> Pieces:
    plain = all(one.open is None and not one.hidden and _PLAIN.fullmatch(one.text) for one in call.arguments)
    # If too many matches of a pattern are cut off, a later word may become the first and be taken as an option.
    return call.arguments if plain and not any(one.text.startswith("-") for one in call.arguments) else None


def _part(cut: Callable[[str], str], call: Call) -> Pieces:
    texts = call.texts
    if len(texts) != 1 or not _PLAIN.fullmatch(texts[0]) or texts[0].startswith("-"):
        return None
    trimmed = texts[0].rstrip("/")
    return (Argument((cut(trimmed) or ".") if trimmed else "/"),)


def _seq(call: Call) -> Pieces:
    counts = all(text.isdecimal() for text in call.texts)
    return (Argument(HOLE, open=Open(number=True, many=True)),) if counts else None


def _wc(call: Call) -> Pieces:
    found = _taken(call)
    return _NUMBER if len(found.options) == 1 and not found.operands and found.given(*_COUNTS) else None


def _grep(call: Call) -> Pieces:
    """Names of files, or the number of matching lines of one file."""
    found = _taken(call)
    given = {name for name, _ in found.options}
    operands = found.taken[not given & {"-e", "-f", "--regexp", "--file"} :]
    walks = bool(given & {"-r", "--recursive"})
    if given & {"-c", "--count"}:
        exact = given <= _GREP_COUNTS and not any(one.matched for one in operands)
        return _NUMBER if exact and len(operands) < 2 else None
    if not given & {"-l", "-L", "--files-with-matches", "--files-without-match"} or not operands:
        return None
    if given & {"-Z", "--null", "-z", "--null-data", "-R", "--dereference-recursive", "-d", "--directories"}:
        return None
    if not all(one.open is None and not one.text.startswith("-") and _PLAIN.fullmatch(one.text) for one in operands):
        return None
    if walks:
        return tuple(Argument(f"{one.text}{HOLE}", open=Open(below=Below(one.text), many=True)) for one in operands)
    return tuple(map(_maybe, operands))


def _ls(call: Call) -> Pieces:
    """Names, as a pattern would match them."""
    found = _taken(call)
    given = {name for name, _ in found.options}
    if not given <= _LS:
        return None
    names = found.taken
    if not names and not given & {"-d", "--directory"}:
        names = tuple(Argument(name, "*") for name in call.files.expand("*") or ["*"])
    elif not given & {"-d", "--directory"} and not all(map(partial(_is_file, call.files), names)):
        return None
    return tuple(one if one.pattern else _maybe(one) for one in names) if all(map(_is_name, names)) else None


def _is_file(files: Files, one: Argument) -> bool:
    there = one.text == one.pattern or (one.open is None and files.stands(one.text))
    return there and not files.enters(one.text)


def _is_name(one: Argument) -> bool:
    """Whether it is a single name that no shell splits, or a pattern without a match."""
    return one.open is None and not one.hidden and (_PLAIN.fullmatch(one.text) is not None or one.text == one.pattern)


def _words(allowed: Callable[[Sequence[str]], bool]) -> Callable[[Call], Pieces]:
    return lambda call: _WORDS if allowed(call.texts) else None


def _date(call: Call) -> Pieces:
    match call.texts:
        case (form,) if re.fullmatch(r"\+%[sYmdHMSjuyN]", form):
            return _NUMBER
        case () | ("-u",):
            return _WORDS
        case (form,) | ("-u", form) | ("-d", _, form) if re.fullmatch(r"\+[\w%:./ -]*", form):
            return _WORDS
        case _:
            return None


_TELLERS: Final[Mapping[str, Callable[[Call], Pieces]]] = {
    "echo": _echo,
    "pwd": lambda call: None if call.arguments else (Argument(str(call.files.around.cwd)),),
    "basename": partial(_part, os.path.basename),
    "dirname": partial(_part, os.path.dirname),
    "seq": _seq,
    "wc": _wc,
    **dict.fromkeys(_PATTERN_FIRST, _grep),
    "ls": _ls,
    "date": _date,
    "nproc": lambda call: None if call.arguments else _NUMBER,
    "id": lambda call: _NUMBER if call.texts in {("-u",), ("-g",)} else None,
    **dict.fromkeys(("whoami", "hostname", "arch"), _words(lambda texts: not texts)),
    "uname": _words(lambda texts: all(re.fullmatch(r"-[asnrvmpio]+", text) for text in texts)),
    "git": _words(
        lambda texts: re.fullmatch(r"rev-parse (--short )?HEAD|branch --show-current", " ".join(texts)) is not None
    ),
}
