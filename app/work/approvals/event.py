"""What a row of the audit can tell. Apart from the rows, so that a command offers the names without a database."""

from __future__ import annotations

from typing import Final, Literal, get_args

Event = Literal[
    "asked", "auto_approved", "rule", "changed", "approved", "denied", "expired", "superseded", "used", "refused",
    "rule_added", "rule_revoked", "typed",
]  # fmt: skip
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
