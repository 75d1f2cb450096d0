"""Which rule decides on a command: deny before ask before allow, command by command, never wider than was said.

An allow decides only where every command of the line is one that an allow holds for or is read-only by itself, and
nothing of the line is outside the subset that is understood.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Judgement, Tier
from shellback.exec.policy.classify.syntax import Parsed, Simple
from shellback.exec.policy.rules import globs
from shellback.exec.policy.rules.commands import is_plain, moves, tier_of, words_of
from shellback.exec.policy.rules.facts import Facts, Hit
from shellback.exec.policy.rules.objecting import objects
from shellback.exec.policy.rules.rule import Rule, fits
from shellback.exec.policy.rules.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an operator's file and those saved. Immutable; the order of rules means nothing."""

    rules: tuple[Rule, ...] = ()
    tiers: Tiers = field(default_factory=Tiers)

    def plus(self, saved: Sequence[Rule]) -> Rules:
        """These rules and more of them."""
        return replace(self, rules=(*self.rules, *saved)) if saved else self

    def decide(self, judgement: Judgement, facts: Facts) -> Hit | None:
        """What the rules say to a judged command; None where they leave it to its class."""
        rules = [rule for rule in self.rules if _in_force(rule, facts)]
        if not rules:
            return None
        parsed = parse(facts.command)
        if not isinstance(parsed, Parsed):
            return None
        for effect in ("deny", "ask"):
            for rule in rules:
                if rule.effect == effect and objects(rule.match, parsed, judgement, facts):
                    return _hit([rule])
        return _allowed([rule for rule in rules if rule.effect == "allow"], parsed, judgement, facts)

    def withheld(self, path: Path, facts: Facts) -> str | None:
        """Why a search leaves a file out: a rule about files that denies or asks; None where there is none."""
        for rule in self.rules:
            about = rule.effect != "allow" and any(globs.fits(pattern, str(path)) for pattern in rule.match.paths)
            if about and _in_force(rule, facts):
                return f"rule {rule.source}: {rule.described()}"
        return None

    def required(self, judgement: Judgement) -> Tier:
        """The tier that a command takes, by its class and by what the operator says of its commands."""
        return self.tiers.required(judgement)


def _hit(rules: Sequence[Rule]) -> Hit:
    first = rules[0]
    by = f"{first.source} {first.id}" if first.saved else first.source
    return Hit(
        effect=first.effect,
        rule_id=first.id,
        reason=f"rule {by}: {first.described()}" + (f" ({first.note})" if first.note else ""),
        source=first.source,
        rule_ids=tuple(dict.fromkeys(rule.id for rule in rules if rule.saved)),
    )


def _in_force(rule: Rule, facts: Facts) -> bool:
    match = rule.match
    return (
        (rule.expires_at is None or rule.expires_at > facts.now)
        and match.backend in (None, facts.backend)
        and match.profile in (None, facts.profile)
        and match.conversation_id in (None, facts.conversation_id)
        and match.agent in (None, facts.agent)
        and match.cwd in (None, str(facts.cwd))
    )


def _allowed(rules: Sequence[Rule], parsed: Parsed, judgement: Judgement, facts: Facts) -> Hit | None:
    if facts.more or parsed.outside or judgement.verdict == "deny":
        return None
    if moves(parsed):  # what these say holds for a directory that it is not in by then
        rules = [rule for rule in rules if rule.match.cwd is None and not rule.match.paths]
    taken: list[Rule] = []
    for simple in parsed.commands:
        tier = tier_of(simple, judgement)
        rule = next((rule for rule in rules if tier is not None and _covers(rule, simple, tier, facts)), None)
        if rule is not None:
            taken.append(rule)
        elif tier is not Tier.READ_ONLY:
            return None
    return _hit(taken) if taken else None


def _covers(rule: Rule, simple: Simple, tier: Tier, facts: Facts) -> bool:
    match, words = rule.match, words_of(simple)
    if not is_plain(simple) or (simple.piped and not match.piped):
        return False
    if (match.tier is not None and tier > match.tier) or len(words) < len(match.prefix):
        return False
    if (match.exact and len(words) != len(match.prefix)) or not all(map(fits, match.prefix, words)):
        return False
    return not match.paths or _only_in(match.paths, words[max(1, len(match.prefix)) :], facts.cwd)


def _only_in(patterns: Sequence[str], words: Sequence[str], cwd: Path) -> bool:
    # An option may hide a file in its value, and which one does is not told here: the prefix has to have them.
    return bool(words) and all(
        not word.startswith("-")
        and any(globs.fits(pattern, os.path.realpath(os.path.join(cwd, word))) for pattern in patterns)
        for word in words
    )
