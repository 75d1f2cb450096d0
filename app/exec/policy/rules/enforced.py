"""Enforced paths (spec 002): a command line that names a path outside the allowed directories is refused.

The check reads the text and the present symlinks, so it is no security boundary; the sandbox is. Values that only the
shell knows (variables, substitutions, matches of patterns) are not checked here, and ask.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from shellback.exec.core.sight.sight import Sight, TooMuch, Unseen
from shellback.exec.policy.classify.model import Judgement, Surroundings, Tier
from shellback.exec.policy.rules.carriers import name_of, unfolded
from shellback.exec.policy.rules.commands import MOVES
from shellback.exec.policy.rules.damage import written
from shellback.exec.policy.rules.loose import Loose, read, sourced

_DEPTH: Final = 5
_PLACES: Final = 8
"""Bounds on nested command lines, and on directories in which a command may run."""
_STREAMS: Final = re.compile(r"/dev/(?:null|zero|full|u?random|tty|std(?:in|out|err)|fd/[0-9]+)")
_BEHIND: Final = re.compile(r"[=:](?!//)")
_SHORT: Final = re.compile(r"-[A-Za-z](?=.)")


def outside(source: str, judgement: Judgement, around: Surroundings) -> str | None:
    """The reason why a command line is refused if paths are enforced; None if every path is inside."""
    only_reads = [one for one in judgement.segments if one.tier is Tier.READ_ONLY]
    # The paths of read-only commands are known; their other words may look like paths: `grep /x/ file`.
    named = [path for one in only_reads for path in one.paths]
    known = frozenset(one.words for one in only_reads)
    return any_outside(named, around) or _said(_Line(around, known).line(source, _DEPTH))


def any_outside(paths: Sequence[str], around: Surroundings) -> str | None:
    """The same for paths."""
    return _said(_Line(around).first(paths))


def _said(word: str | None) -> str | None:
    return word and f"{word!r} is outside of what commands may name, and paths are enforced"


class _Line:
    """The commands of one line, in order, with every directory in which they may run, since `cd` may fail."""

    def __init__(self, around: Surroundings, known: frozenset[tuple[str, ...]] = frozenset()) -> None:
        self._around = around
        self._known = known
        self._cwds = [str(around.cwd)]
        self._roots = tuple(map(str, around.allowed))
        self._sight = Sight(self._roots, held=around.held)

    def first(self, words: Sequence[str]) -> str | None:
        """The first word that leads outside, from any of the directories."""
        return next((word for word in words if any(self._leads_out(word, cwd) for cwd in self._cwds)), None)

    def line(self, source: str, depth: int) -> str | None:
        """The first word of a line that leads outside."""
        return next((found for command in read(source).commands if (found := self._command(command, depth))), None)

    def _command(self, command: Loose, depth: int) -> str | None:
        targets = [target for op, target in command.redirects if not op.startswith("<<")]
        found = self.first([target for target in targets if not target.isdigit()])
        for words, lists, texts in unfolded(command.words):
            found = found or self._words(words, {one[0] for one in lists if one}, texts)
            for text in texts if depth else ():
                found = found or self.line(sourced(text), depth - 1)
            if found:
                break
        return found

    def _words(self, words: Sequence[str], programs: set[str], texts: Sequence[str]) -> str | None:
        if not words or tuple(words) in self._known:
            return self._enter(words)
        operands = [word for word in words[1:] if word not in texts]
        others = [word for word in (words[0], *operands) if not self._is_program(word, {words[0], *programs})]
        return self.first([part for word in others for part in _parts(word)]) or self._enter(words)

    def _enter(self, words: Sequence[str]) -> str | None:
        """Add the target of a `cd` to the directories of the commands that follow."""
        if not words or name_of(words[0]) not in MOVES:
            return None
        operand = next((word for word in words[1:] if word == "-" or not word.startswith(("-", "+"))), "~")
        if operand == "-" or name_of(words[0]) == "popd":
            return None
        if found := self.first([operand]):
            return found
        there = [os.path.normpath(os.path.join(cwd, written(operand, self._around))) for cwd in self._cwds]
        self._cwds = list(dict.fromkeys([*self._cwds, *there]))
        return operand if len(self._cwds) > _PLACES else None

    def _is_program(self, word: str, programs: set[str]) -> bool:
        return word in programs and ("/" not in word or os.path.dirname(word) in self._around.search)

    def _leads_out(self, word: str, cwd: str) -> bool:
        text = written(word, self._around)
        if not text or "\0" in text or _STREAMS.fullmatch(os.path.normpath(text)):
            return False
        path = os.path.join(cwd, "/".join(map(_upwards, text.split("/"))))
        for one in (path, os.path.normpath(path)):
            try:
                self._sight.real(one)
            except (Unseen, TooMuch):
                return True
            except OSError:
                continue  # a directory of the path is missing, so only the text counts
            else:
                return False
        return not self._sight.sees(os.path.normpath(path))


def _upwards(part: str) -> str:
    """A component of a path, or `..` if its pattern could match that: `.?`, `.*`."""
    return ".." if part.startswith(".") and fnmatchcase("..", part) else part


def _parts(word: str) -> Iterator[str]:
    """The parts of a word that may be paths: the whole word, and the text after `=`, `:` or an option's letter."""
    short = _SHORT.match(word)
    if short is not None:
        yield word[short.end() :]
    elif not word.startswith("-"):
        yield word
    yield from _BEHIND.split(word)[1:]
