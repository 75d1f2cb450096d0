"""How narrow a rule has to be before it is taken from anybody."""

from __future__ import annotations

from typing import Final, NamedTuple

from shellback.exec.policy.rules.carriers import name_of, runs_anything
from shellback.exec.policy.rules.rule import ANY, Rule

WORDS: Final = 64


class Objection(NamedTuple):
    """What is wrong with a rule: the key of it, the reason, the remedy."""

    key: str
    reason: str
    remedy: str


def objection(rule: Rule) -> Objection | None:
    """Why a rule is not taken; None where it is."""
    prefix = rule.match.prefix
    if len(prefix) > WORDS or any(not word or any(ord(char) < 32 for char in word) for word in prefix):
        return Objection(
            "prefix",
            f"more than {WORDS} words, or an empty one, or one with control characters",
            'write the first words of the command, as in ["git", "push"]',
        )
    if prefix and any(char.isspace() for char in prefix[0]):
        return Objection(
            "prefix", f"{prefix[0]!r} is one word with a blank in it", 'write a word each: ["git", "push"]'
        )
    if prefix[:1] == (ANY,):
        return Objection("prefix", "the program is any word", "name the program, or leave the prefix out")
    if rule.match.exact and not prefix:
        return Objection("exact", "there is no prefix", "give the prefix that it is about")
    return _too_wide(rule) if rule.effect == "allow" else None


def _too_wide(rule: Rule) -> Objection | None:
    match = rule.match
    if not match.prefix:
        if match.tier is not None and (match.backend is not None or match.profile is not None):
            return None
        return Objection(
            "effect",
            "an allow without a prefix would allow anything",
            "give it a prefix, or both a tier and a backend or profile",
        )
    name = name_of(match.prefix[0])
    if not match.exact and len(match.prefix) == 1 and runs_anything((name,)) is not None:
        return Objection("prefix", f"{name} alone would allow any code", "add the words that follow it")
    return None
