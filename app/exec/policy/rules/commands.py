"""The commands of a parsed line, as rules match them."""

from __future__ import annotations

from typing import Final

from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Judgement, Tier
from shellback.exec.policy.classify.syntax import Parsed, Redirect, Simple, Word
from shellback.exec.policy.rules.carriers import Text, carried, name_of

_DEPTH: Final = 4
_MOST: Final = 200
"""Bounds on the depth of nested lines and on the commands of a line; beyond them the line asks anyway."""
MOVES: Final = frozenset(("cd", "pushd", "popd", "chdir"))
"""Commands that change the directory."""


def words_of(simple: Simple) -> tuple[str, ...]:
    """The program's name and arguments."""
    return tuple(word.text for word in simple.words)


def is_plain(simple: Simple) -> bool:
    """Whether a command has nothing but its words; only then can a rule allow it."""
    return (
        bool(simple.words)
        and all(map(_fixed, simple.words))
        and not simple.assignments
        and all(map(_harmless, simple.redirects))
    )


def moves(parsed: Parsed) -> bool:
    """Whether a line changes its directory, so that its relative names change meaning."""
    return any(name_of(words[0]) in MOVES for simple in parsed.commands for words in commands_in(words_of(simple)))


def tier_of(simple: Simple, judgement: Judgement) -> Tier | None:
    """The judged tier of this command; None if the judgement does not contain it."""
    return max((segment.tier for segment in judgement.segments if segment.text == simple.text), default=None)


def commands_in(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A command, and then the known commands that it carries."""
    found: list[tuple[str, ...]] = []
    stack = [(words, _DEPTH)]
    while stack and len(found) < _MOST:
        words, depth = stack.pop()
        if not words:
            continue
        found.append(words)
        for inner in carried(words):
            if not isinstance(inner, Text):
                stack.append((inner, depth))
            elif depth:
                stack += [(words_of(simple), depth - 1) for simple in simples(inner.text)]
    return found


def simples(text: str) -> tuple[Simple, ...]:
    """The simple commands of a line; none if it cannot be parsed."""
    parsed = parse(text)
    return parsed.commands if isinstance(parsed, Parsed) else ()


def _fixed(word: Word) -> bool:
    return not (word.globs or word.variables or word.tilde or word.splits or word.unknown)


def _harmless(redirect: Redirect) -> bool:
    target = redirect.target
    if target is None or not _fixed(target):
        return False
    if redirect.op in (">&", "<&"):
        return target.text.isdigit()
    return redirect.op in (">", ">>", "&>", "&>>", ">|", "<") and target.text == "/dev/null"
