"""What an operator grants: a tier by default, other tiers for commands by their first words (spec 002)."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shellback.exec.policy.classify.model import Judgement, Segment, Tier
from shellback.exec.policy.rules.commands import commands_in, simples, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The tier that is granted, and the directories. `rules` are pairs: globs of a command's first words, its tier."""

    default: Tier = Tier.READ_WRITE
    strict: bool = False
    allowed_paths: tuple[Path, ...] = ()
    strict_path_enforcement: bool = False
    rules: tuple[tuple[tuple[str, ...], Tier], ...] = ()

    def required(self, judgement: Judgement) -> Tier:
        """The tier that a command takes, by its class and by what the operator says of its commands."""
        judged = max((segment.tier for segment in judgement.segments), default=Tier.READ_ONLY)
        beside = [judgement.tier] if judgement.tier > judged else []  # of what is in no segment
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
