"""The rules that "remember this" would save: the narrowest rule for each command of an approved line."""

from __future__ import annotations

from typing import Final

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.classify.model import Surroundings, Tier
from shellback.exec.policy.classify.syntax import Parsed, Simple
from shellback.exec.policy.rules.carriers import runs_anything
from shellback.exec.policy.rules.commands import is_plain, moves, tier_of, words_of
from shellback.exec.policy.rules.matching import Facts
from shellback.exec.policy.rules.rule import Match, Rule, literal
from shellback.exec.policy.tools import Tool

DAYS: Final = 30
DAYS_MAX: Final = 365
DAY_S: Final = 86_400.0


def rules_for(
    tool: Tool, facts: Facts, around: Surroundings, *, owner: str, everywhere: bool = False, days: int = DAYS
) -> tuple[Rule, ...]:
    """The rules, without ids, that would allow this call again; they begin at `facts.now`.

    Each matches one whole command in the same directory, backend and profile, and in the same conversation unless
    `everywhere`. A read-only command needs no rule if a sandbox exists.

    Raises:
        InvalidCommand: The call starts no command that ends by itself, or the named command cannot be remembered.
    """
    if not tool.rule:
        raise InvalidCommand(f"a call of {tool.name} cannot be remembered, only a command; approve it each time")
    if not 1 <= days <= DAYS_MAX:
        raise InvalidCommand(f"a rule holds for 1 to {DAYS_MAX} days, not for {days}")
    judgement = classify(facts.command, around)
    parsed = parse(facts.command)
    if not isinstance(parsed, Parsed) or judgement.verdict == "deny":
        raise InvalidCommand(f"this cannot be remembered: {judgement.reason}; nothing may allow it")
    if parsed.outside:
        part = parsed.outside[0]
        raise InvalidCommand(
            f"this cannot be remembered: `{part.text}` is not understood ({part.reason}); approve it each time"
        )
    brings = "it comes with environment, input or a terminal, which no rule names; approve it each time"
    leaves = (
        "it changes the directory, and a rule holds for one; approve it each time, or have it called there with cwd"
    )
    if facts.more or moves(parsed):
        raise InvalidCommand(f"this cannot be remembered: {brings if facts.more else leaves}")
    found: dict[tuple[str, ...], Rule] = {}
    for simple in parsed.commands:
        tier = tier_of(simple, judgement)
        why = _unfit(simple, tier)
        if tier is Tier.READ_ONLY and (why is not None or around.sandboxed):
            continue
        if why is not None:
            raise InvalidCommand(f"`{simple.text}` cannot be remembered: {why}; approve it each time")
        words = words_of(simple)
        found[words] = Rule(
            effect="allow",
            match=Match(
                prefix=tuple(map(literal, words)),
                exact=True,
                cwd=str(facts.cwd),
                backend=facts.backend,
                profile=facts.profile,
                conversation_id=None if everywhere else facts.conversation_id,
            ),
            owner=owner,
            created_at=facts.now,
            expires_at=facts.now + days * DAY_S,
            saved=True,
        )
    return tuple(found.values())


def rule_for_host(
    connect: str, *, owner: str, conversation_id: str | None, now: float, days: int = DAYS
) -> tuple[Rule, ...]:
    """The rule, without an id, that would allow connections to this host and port; without a conversation, of all."""
    match = Match(connect=connect, conversation_id=conversation_id)
    end = now + days * DAY_S
    return (Rule(effect="allow", match=match, owner=owner, created_at=now, expires_at=end, saved=True),)


def _unfit(simple: Simple, tier: Tier | None) -> str | None:
    if not is_plain(simple):
        return "it sets variables, redirects, or has words that stand for others, which no rule names"
    if simple.piped:
        return "what comes through the pipe is not part of a rule"
    if tier is None or tier is Tier.ADMIN:
        return "it is of tier admin"
    return runs_anything(words_of(simple))
