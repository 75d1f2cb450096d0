"""Finds the rule that decides on a line: deny before ask before allow, command by command.

An allow decides only if every command of the line is allowed by a rule or is read-only, and the whole line is in the
understood subset.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Judgement, Segment, Tier
from shellback.exec.policy.classify.syntax import Parsed, Simple
from shellback.exec.policy.rules.carriers import name_of
from shellback.exec.policy.rules.commands import MOVES, commands_in, is_plain, moves, simples, tier_of, words_of
from shellback.exec.policy.rules.loose import read
from shellback.exec.policy.rules.rule import Effect, Match, Rule, fits, path_fits
from shellback.exec.wire.hosts import entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The judged line and where it would run. `command` is the whole line, `cwd` its directory without symlinks.

    `more`: the call has parts that no rule names (environment, input, a terminal), so no allow decides.
    """

    command: str
    backend: str
    profile: str
    conversation_id: str
    cwd: Path
    agent: str | None = None
    more: bool = False
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """The decision of the rules on a command. `rule_ids` are all saved rules that it needed."""

    effect: Effect
    reason: str
    source: str
    rule_ids: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What decided, for records."""
        return " ".join(("rule", *self.rule_ids)) if self.rule_ids else f"policy {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The granted tier, and the directories. `rules` are pairs: globs of a command's first words, and its tier."""

    default: Tier = Tier.READ_WRITE
    strict: bool = False
    allowed_paths: tuple[Path, ...] = ()
    strict_path_enforcement: bool = False
    rules: tuple[tuple[tuple[str, ...], Tier], ...] = ()

    def required(self, judgement: Judgement) -> Tier:
        """The tier that a line needs, by its classification and the operator's pairs."""
        judged = max((segment.tier for segment in judgement.segments), default=Tier.READ_ONLY)
        beside = [judgement.tier] if judgement.tier > judged else []  # of parts outside all segments
        return max([*beside, *(self._of(segment) for segment in judgement.segments)], default=judgement.tier)

    def _of(self, segment: Segment) -> Tier:
        if not self.rules:
            return segment.tier
        found: list[Tier] = []
        for simple in simples(segment.text)[:1]:
            direct, *inner = commands_in(words_of(simple)) or [()]
            found += [tier for patterns, tier in self.rules if _begins(patterns, direct)] or [segment.tier]
            found += [tier for patterns, tier in self.rules if any(_begins(patterns, one) for one in inner)]
        return max(found, default=segment.tier)


def _begins(patterns: Sequence[str], words: Sequence[str]) -> bool:
    return len(patterns) <= len(words) and all(map(fnmatch.fnmatchcase, words, patterns))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the operator's file and the saved rules. Immutable; their order has no meaning."""

    rules: tuple[Rule, ...] = ()
    tiers: Tiers = field(default_factory=Tiers)

    def plus(self, saved: Sequence[Rule]) -> Rules:
        """These rules and more."""
        return replace(self, rules=(*self.rules, *saved)) if saved else self

    def decide(self, judgement: Judgement, facts: Facts) -> Hit | None:
        """The decision of the rules on a judged line; None if no rule decides."""
        rules = [rule for rule in self.rules if rule.match.connect is None and _in_force(rule, facts)]
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

    def connection(self, host: str, port: int, conversation_id: str, now: float) -> Hit | None:
        """The decision of the rules on a connection to a host, as `canonical` writes it; None if no rule decides."""
        about = [
            rule
            for rule in self.rules
            if rule.match.connect is not None
            and rule.match.conversation_id in (None, conversation_id)
            and (rule.expires_at is None or rule.expires_at > now)
            and entry(rule.match.connect).matches(host, port)
        ]
        found = [rule for effect in ("deny", "ask", "allow") for rule in about if rule.effect == effect]
        return _hit(found[:1]) if found else None

    def denials(self) -> list[tuple[Rule, Hit]]:
        """The rules that deny connections, and what each decides."""
        about = (rule for rule in self.rules if rule.match.connect is not None and rule.effect == "deny")
        return [(rule, _hit([rule])) for rule in about]

    def withheld(self, path: Path, facts: Facts) -> str | None:
        """The reason why a search leaves a file out: a rule that denies or asks; None without such a rule."""
        for rule in self.rules:
            about = rule.effect != "allow" and any(path_fits(pattern, str(path)) for pattern in rule.match.paths)
            if about and _in_force(rule, facts):
                return f"rule {rule.source}: {rule.described()}"
        return None


def _hit(rules: Sequence[Rule]) -> Hit:
    first = rules[0]
    by = f"{first.source} {first.id}" if first.saved else first.source
    return Hit(
        effect=first.effect,
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
    if moves(parsed):  # the rules hold for a directory that the line has left
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
    # An option's value may be a file, and rules do not know which: so the prefix must contain the options.
    return bool(words) and all(
        not word.startswith("-")
        and any(path_fits(pattern, os.path.realpath(os.path.join(cwd, word))) for pattern in patterns)
        for word in words
    )


_VARIABLE: Final = re.compile(r"\$\{\w+\}")


def objects(match: Match, parsed: Parsed, judgement: Judgement, facts: Facts) -> bool:
    """Whether any part of the line could match a rule that denies or asks.

    The match is as wide as possible: through wrappers and nested shells, other spellings of the program, options in
    between, symlinks, and parts outside the understood subset.
    """
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
        # A path with a slash at its end is everything below it, so a pattern for files below it matches too.
        below = [
            pattern for pattern in match.paths if any(pattern.startswith(path) for path in paths if path[-1] == "/")
        ]
        written = [redirect.target.text for redirect in simple.redirects if redirect.target is not None]
        targets = [*written, *paths, *below]
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
    words = [word for words in commands for word in words]
    files = [*targets, *(part for word in words for part in (word, word.partition("=")[2]))]
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
            return False  # neither an option nor an option's value
    return wanted == len(prefix)


def _may_fit(pattern: str, word: str) -> bool:
    return fits(pattern, word) or _VARIABLE.search(word) is not None


def _touches(patterns: Sequence[str], text: str, cwds: Sequence[str]) -> bool:
    if not text or "\0" in text:
        return False
    named = [os.path.join(cwd, text) for cwd in cwds]
    paths = {path for one in named for path in (os.path.realpath(one), os.path.normpath(one))}
    return any(path_fits(pattern, path) for pattern in patterns for path in paths)
