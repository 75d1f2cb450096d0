"""The examples of a rule, tried on it when it is loaded: with the real parser and the real matching."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.rules.facts import Facts
from shellback.exec.policy.rules.matching import Rules
from shellback.exec.policy.rules.rule import Rule

EXAMPLES: Final = 50


def contradiction(rule: Rule, examples: tuple[tuple[str, ...], tuple[str, ...]], base: Path) -> str | None:
    """Which example the rule does not do as it should; None where it does. Commands are judged as if run in `base`."""
    wanted, unwanted = examples
    if len(wanted) + len(unwanted) > EXAMPLES:
        return f"examples: there are {len(wanted) + len(unwanted)}, at most {EXAMPLES} are tried"
    for command in wanted:
        if not matches(rule, command, base):
            return f"examples: `{command}` should match, and the rule does not {rule.effect} it"
    for command in unwanted:
        if matches(rule, command, base):
            return f"examples: `{command}` should not match, and the rule does {rule.effect} it"
    return None


def matches(rule: Rule, command: str, base: Path) -> bool:
    """Whether this rule alone decides on a command that runs where the rule is about."""
    match = rule.match
    cwd = Path(match.cwd) if match.cwd is not None else base.resolve()
    around = Surroundings(cwd=cwd, allowed=(cwd,), secret=Secrets(), home=Path("/nonexistent"))
    facts = Facts(
        command=command,
        backend=match.backend or "host",
        profile=match.profile or "work",
        conversation_id=match.conversation_id or "example",
        agent=match.agent,
        cwd=cwd,
        now=float("-inf"),
    )
    hit = Rules((rule,)).decide(classify(command, around), facts)
    return hit is not None and hit.effect == rule.effect
