"""The commands of a parsed line, as rules look at them."""

from __future__ import annotations

from typing import Final

from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Judgement, Tier
from shellback.exec.policy.classify.syntax import Parsed, Redirect, Simple, Word
from shellback.exec.policy.rules.carriers import Text, carried, name_of

_DEPTH: Final = 4
_MOST: Final = 200
"""So deep are command lines looked for in commands, so many commands in one; what is beyond asks by itself."""
MOVES: Final = frozenset(("cd", "pushd", "popd", "chdir"))
"""What changes the directory."""


def words_of(simple: Simple) -> tuple[str, ...]:
    """What the program gets, its name first."""
    return tuple(word.text for word in simple.words)


def is_plain(simple: Simple) -> bool:
    """Whether a command is its words and nothing else: what an allow may be given for."""
    return (
        bool(simple.words)
        and all(map(_fixed, simple.words))
        and not simple.assignments
        and all(map(_harmless, simple.redirects))
    )


def moves(parsed: Parsed) -> bool:
    """Whether a line changes the directory, so that what it names lies elsewhere."""
    return any(name_of(words[0]) in MOVES for simple in parsed.commands for words in commands_in(words_of(simple)))


def tier_of(simple: Simple, judgement: Judgement) -> Tier | None:
    """The tier of this command as it was judged; None where the judgement does not have it."""
    return max((segment.tier for segment in judgement.segments if segment.text == simple.text), default=None)


def commands_in(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A command and those that it carries, as far as can be told; it comes first."""
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
    """The simple commands of a line; none where it is no line."""
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
