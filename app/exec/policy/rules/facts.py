"""What the rules are asked about, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shellback.exec.policy.rules.rule import Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was judged and where it would run. `command` is the whole line, `cwd` its directory, symlinks resolved.

    `more` says that the call brings what no rule names (environment, input, a terminal): then no allow decides.
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
    """What the rules say to a command, and which one says it. `rule_ids` are all saved ones that it took."""

    effect: Effect
    rule_id: str
    reason: str
    source: str
    rule_ids: tuple[str, ...] = ()
