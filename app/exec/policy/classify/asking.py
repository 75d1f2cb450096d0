"""The one way in which a command turns out not to be known as read-only."""

from __future__ import annotations

from shellback.exec.policy.classify.model import Tier


class Asks(Exception):
    """Why a command is not known to be read-only, in words that follow "because"; and how much it may do."""

    def __init__(self, reason: str, tier: Tier = Tier.READ_WRITE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tier = tier
