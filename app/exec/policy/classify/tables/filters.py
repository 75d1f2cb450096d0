"""Programs whose argument is a small program itself: sed, awk, jq; and find, whose arguments are one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shellback.exec.policy.classify import languages
from shellback.exec.policy.classify.arguments import match
from shellback.exec.policy.classify.model import Asks
from shellback.exec.policy.classify.options import Call, Invocation, Judge, Kind, Program, program
from shellback.exec.policy.classify.tables.find import find


def _sed(found: Invocation) -> None:
    scripts = found.values("-e", "--expression") or list(found.operands[:1])
    if not scripts:
        raise Asks("sed lacks its script")
    languages.sed("\n".join(scripts))


def _awk(found: Invocation) -> None:
    if not found.operands:
        raise Asks("awk lacks its program")
    if any(operand.startswith("-") and operand != "-" for operand in found.operands):
        raise Asks("awk may take what begins with a dash for an option")
    languages.awk(found.operands[0])


# Not -f, -i, -l, -E, -o, -p, -d, -W.
_AWK: Final = program("", text="-Fv", first=Kind.TEXT, permutes=False, check=_awk)

_JQ_NAMED: Final = {"--arg": 2, "--argjson": 2}
# Not -f, -L, --slurpfile, --rawfile, --args, --jsonargs.
_JQ: Final = program(
    "-rjacnsSeRCMb --raw-output --join-output --ascii-output --compact-output --null-input --slurp --sort-keys"
    " --exit-status"
    " --raw-input --color-output --monochrome-output --tab --stream --stream-errors --seq --unbuffered --raw-output0",
    number="--indent",
    first=Kind.TEXT,
    check=lambda found: languages.jq(found.operands[0] if found.operands else "."),
)


def _jq(call: Call) -> None:
    """`--arg` is followed by a name and a value."""
    around = call.files.around
    if not around.sandboxed and os.path.lexists(around.home / ".jq"):
        raise Asks("jq takes definitions from .jq in HOME")
    texts = [argument.text for argument in call.arguments]
    if "--" in texts and not _JQ_NAMED.keys().isdisjoint(texts):
        raise Asks("jq takes --arg behind -- for a file")
    kept: list[int] = []
    index = 0
    while index < len(call.arguments):
        skipped = _JQ_NAMED.get(call.arguments[index].text)
        if skipped is None:
            kept.append(index)
            index += 1
            continue
        named = call.arguments[index + 1 : index + 1 + skipped]
        if len(named) < skipped or any(argument.matched or argument.text.startswith("-") for argument in named):
            raise Asks("jq --arg lacks its name or value")
        index += 1 + skipped
    match(_JQ, replace(call, arguments=tuple(call.arguments[index] for index in kept)))


_XXD_ALONE: Final = re.compile(
    r"-(a|autoskip|b|bits|C|capitalize|d|e|E|EBCDIC|i|include|p|ps|plain|postscript|u|upper)"
)
_XXD_NUMBER: Final = re.compile(r"-(c|cols|g|groupsize|l|len|o|offset|s|seek)")
_XXD_ATTACHED: Final = re.compile(r"-[cglos][-+]?[0-9]+")


def _xxd(call: Call) -> None:
    """One file at most: a second one is written, and so is what `-r` makes."""
    waiting = list(reversed(call.texts))
    while waiting and waiting[-1].startswith("-") and waiting[-1] != "-":
        option = waiting.pop()
        if _XXD_NUMBER.fullmatch(option) and waiting and re.fullmatch(r"[-+]?(0x)?[0-9a-fA-F]+", waiting[-1]):
            waiting.pop()
        elif not (_XXD_ALONE.fullmatch(option) or _XXD_ATTACHED.fullmatch(option)):
            raise Asks(f"xxd {option} is not known to only read")
    if len(waiting) > 1:
        raise Asks("xxd writes its second file")
    for operand in waiting:
        call.files.read(operand)


FILTERS: Final[Mapping[str, Program | Judge]] = {
    # Not -i, -f.
    "sed": program(
        "-nErsuz --quiet --silent --regexp-extended --separate --unbuffered --null-data --zero-terminated --debug"
        " --sandbox",
        text="-e --expression",
        number="-l --line-length",
        first=Kind.TEXT,
        first_unless="-e --expression",
        check=_sed,
    ),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    "jq": _jq,
    "find": find,
    "xxd": _xxd,
}
