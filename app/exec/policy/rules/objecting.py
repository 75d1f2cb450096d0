"""Whether a rule that asks or denies is about a command: matched as widely as can be told.

Through wrappers and shells in shells, another spelling of the program, options in between, symlinks, what is outside
the subset that is understood.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from shellback.exec.policy.classify.model import Judgement
from shellback.exec.policy.classify.syntax import Parsed, Simple
from shellback.exec.policy.rules import globs
from shellback.exec.policy.rules.carriers import name_of
from shellback.exec.policy.rules.commands import MOVES, commands_in, tier_of, words_of
from shellback.exec.policy.rules.facts import Facts
from shellback.exec.policy.rules.loose import read
from shellback.exec.policy.rules.rule import Match, fits

_VARIABLE: Final = re.compile(r"\$\{\w+\}")


def objects(match: Match, parsed: Parsed, judgement: Judgement, facts: Facts) -> bool:
    """Whether anything of the line could be what the rule is about."""
    if match.anything:
        return True
    cwds = [str(facts.cwd)]
    for simple in parsed.commands:
        words = words_of(simple)
        if words and name_of(words[0]) in MOVES and len(words) > 1:
            cwds = [*cwds[-3:], os.path.join(cwds[-1], words[-1])]
        tier = tier_of(simple, judgement) or judgement.tier
        known = [one for one in judgement.segments if one.text == simple.text]
        commands = [*commands_in(words), *(one.words for one in known if one.words)]
        paths = [path for one in known for path in one.paths]
        # One with a slash at its end is all below it, so what a pattern there stands for too.
        below = [
            pattern for pattern in match.paths if any(pattern.startswith(path) for path in paths if path[-1] == "/")
        ]
        targets = [*_targets(simple), *paths, *below]
        if (match.tier is None or tier >= match.tier) and _about(match, commands, targets, cwds):
            return True
    if not parsed.outside or (match.tier is not None and judgement.tier < match.tier):
        return False
    return any(
        _about(match, commands_in(command.words), [target for _, target in command.redirects], cwds)
        for command in read(parsed.source).commands
    )


def _about(match: Match, commands: Sequence[tuple[str, ...]], targets: Sequence[str], cwds: Sequence[str]) -> bool:
    if match.prefix and not any(_could_be(match.prefix, words, exact=match.exact) for words in commands):
        return False
    files = [*targets, *(text for words in commands for text in _named(words))]
    return not match.paths or any(_touches(match.paths, text, cwds) for text in files)


def _could_be(prefix: Sequence[str], words: Sequence[str], *, exact: bool) -> bool:
    if not (fits(prefix[0], words[0]) or fits(prefix[0], name_of(words[0]))):
        return False
    if exact:
        return len(prefix) == len(words) and all(map(_may_fit, prefix[1:], words[1:]))
    wanted = 1
    for at in range(1, len(words)):
        if wanted == len(prefix):
            break
        if _may_fit(prefix[wanted], words[at]):
            wanted += 1
        elif not (words[at].startswith("-") or words[at - 1].startswith("-")):
            return False  # neither an option nor what one may take
    return wanted == len(prefix)


def _may_fit(pattern: str, word: str) -> bool:
    return fits(pattern, word) or _VARIABLE.search(word) is not None


def _targets(simple: Simple) -> list[str]:
    return [redirect.target.text for redirect in simple.redirects if redirect.target is not None]


def _named(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield word
        if "=" in word:
            yield word.partition("=")[2]


def _touches(patterns: Sequence[str], text: str, cwds: Sequence[str]) -> bool:
    if not text or "\0" in text:
        return False
    named = [os.path.join(cwd, text) for cwd in cwds]
    paths = {path for one in named for path in (os.path.realpath(one), os.path.normpath(one))}
    return any(globs.fits(pattern, path) for pattern in patterns for path in paths)
