"""The default denials: commands that would ruin the machine, or attack Shellback itself.

They are found in the parsed line at any depth, through wrappers and nested shells; `echo "mkfs"` is not denied, and
`rm  -r  -f  /` is. They are no security boundary: a command that they miss asks, and the sandbox holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules import damage, ours
from shellback.exec.policy.rules.carriers import CARRIERS, INTERPRETER, SHELLS, Text, carried, name_of, names, unfolded
from shellback.exec.policy.rules.damage import Where, written
from shellback.exec.policy.rules.loose import UNKNOWN, Loose, read, sourced

_DEPTH: Final = 5
"""The depth to which lines for nested shells are read."""
_FETCHES: Final = names("curl wget fetch aria2c lynx http https xh ftp lftp w3m links elinks GET nc ncat")
_KNOWN: Final = (damage.NAMES | ours.NAMES | CARRIERS | _FETCHES) - {"."}
"""Every word that can lead to a denial."""
_TELLING: Final = re.compile(
    r"\$'|\{[^{}\s]*,|\(\)|function|mkfs|mke2fs|newfs|EXEC_|SHELLBACK_|DBOS_|PPID|/proc|sock|>(?!&[0-9]|\s?/dev/null)"
)
_ELSEWHERE: Final = re.compile(
    r"/dev(?!/(?:null|zero|u?random|std(?:in|out|err)|tty)(?![\w./]))"
    r"|\b(?:builtin|command|eval|source|popd|CDPATH|mknod)\b|(?:^|[\s;&|])\.\s"
)
"""Commands that may put a device into the workspace, or hide the workspace."""
_PATHS: Final = re.compile(r"\.\.|~|(?:^|[\s\"'=:])/(?!dev/null)|\$\{?(?:HOME|PWD|OLDPWD)")


def denial(source: str, around: Surroundings) -> str | None:
    """The reason why a line is denied without a question, to follow "because", or None. The line may be unparsable."""
    return _line(source, around, _DEPTH) if _worth_reading(source, around) else None


def _worth_reading(source: str, around: Surroundings) -> bool:
    """Whether any part could be denied; a quick test that most lines fail."""
    flat = _flat(source)
    return (
        _TELLING.search(source) is not None
        or _TELLING.search(flat) is not None
        or (around.state is not None and _PATHS.search(source) is not None)
        or not _KNOWN.isdisjoint(re.findall(r"[A-Za-z0-9_.+-]+", flat))
    )


def _flat(source: str) -> str:
    """A line without its quotes and escapes."""
    return re.sub(r"\\\n|[\"'\\]", "", source)


def _line(source: str, around: Surroundings, depth: int) -> str | None:
    line = read(source)
    if line.bombs:
        return f"{line.bombs[0]} starts itself over and over (a fork bomb)"
    cwds = [str(around.cwd)]
    plain = depth == _DEPTH and _ELSEWHERE.search(_flat(source)) is None
    hunted = any(ours.finds_us(command.words) for command in line.commands if command.words)
    for command in line.commands:
        around_it = Where(around, tuple(cwds))
        for words in _with_carried(command, around, depth):
            if isinstance(words, str):
                return words
            where = replace(around_it, plain=plain and words is command.words)
            if damage.asks_for_help(words):
                continue
            if hunted and ours.ends_others(words):
                return "it would signal the program that runs it"
            reason = (
                damage.damage(words, where)
                or ours.attack(words, (), (), where)
                or _piped_in(words, command, line.commands)
            )
            if reason is not None:
                return reason
        reason = _around_it(command, around_it)
        if reason is not None:
            return reason
        if command.words[:1] in (("cd",), ("pushd",)):
            # The command may run in any of these directories, since `cd` may fail.
            operand = next((word for word in command.words[1:] if not word.startswith("-")), "~")
            cwds = [*cwds[-3:], *(os.path.normpath(os.path.join(cwd, written(operand, around))) for cwd in cwds[-1:])]
    return None


def _around_it(command: Loose, where: Where) -> str | None:
    for operator, target in command.redirects:
        reason = damage.redirected(operator, target, where)
        if reason is not None:
            return reason
    return ours.attack((), command.assigned, [target for _, target in command.redirects], where)


def _with_carried(command: Loose, around: Surroundings, depth: int) -> Iterator[tuple[str, ...] | str]:
    """A command and the commands that it would run; a str is the reason for a denial."""
    for words, lists, texts in unfolded(command.words):
        if not words:
            continue
        yield words
        for inner in lists:
            if name_of(words[0]) == "xargs" and command.before:
                yield from _handed(inner, command.before[0])
        for text in (*_fed(words, command), *texts) if depth else ():
            reason = _line(sourced(text), around, depth - 1)
            if reason is not None:
                yield reason


def _handed(inner: tuple[str, ...], before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The commands that `xargs` would run, if its input is known."""
    if not before or not inner:
        return
    if name_of(before[0]) in ("echo", "printf"):
        yield (*inner, *before[1:])
    if name_of(before[0]) in ("echo", "printf", "ls"):
        yield (*inner, *(word for word in before[1:] if not word.startswith("-")))
    elif name_of(before[0]) == "find" and name_of(inner[0]) in ("rm", "shred", "unlink"):
        yield (*before, "-delete")


def _fed(words: Sequence[str], command: Loose) -> Iterator[str]:
    """The known command lines on a shell's standard input."""
    if not _reads_code(words) or name_of(words[0]) not in SHELLS:
        return
    yield from command.fed
    for before in command.before[:1]:
        if before and name_of(before[0]) in ("echo", "printf"):
            yield " ".join(before[1:])


def _reads_code(words: Sequence[str]) -> bool:
    """Whether a shell or interpreter reads its program from standard input."""
    name = name_of(words[0])
    if name not in SHELLS and not INTERPRETER.fullmatch(name):
        return False
    for word in words[1:]:
        if word in ("-", "-s", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            return True
        if name in SHELLS and re.fullmatch(r"-[a-z]*s[a-z]*", word):
            return True
        if not word.startswith("-") or re.match(r"-[a-zA-Z]*[cemn]", word):
            return False
    return True


def _piped_in(words: Sequence[str], command: Loose, line: Sequence[Loose]) -> str | None:
    """The reason if a download becomes a program: `curl … | sh`, `bash <(curl …)`, `eval "$(curl …)"`."""
    name = name_of(words[0])
    if _reads_code(words) and any(_fetches(before) for before in command.before):
        return f"{name} would run what is downloaded, unseen"
    if (name in SHELLS or name in ("eval", "source", ".")) and any(UNKNOWN in word for word in words[1:]):
        inside = [one for one in line if one is not command and one.words and _fetches(one.words)]
        if inside:
            return f"{name} would run what is downloaded, unseen"
    return None


@lru_cache(maxsize=256)
def _fetches(words: tuple[str, ...]) -> bool:
    while words:
        if name_of(words[0]) in _FETCHES:
            return True
        inner = next((one for one in carried(words) if not isinstance(one, Text)), ())
        if inner and len(inner) >= len(words):
            return False
        words = inner
    return False
