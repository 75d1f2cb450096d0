"""The events of the audit. In a module of their own, so that commands list them without loading SQLAlchemy."""

from __future__ import annotations

from typing import Final, Literal, get_args

Event = Literal[
    "asked", "auto_approved", "rule", "changed", "approved", "denied", "expired", "superseded", "used", "refused",
    "rule_added", "rule_revoked", "token_added", "token_revoked", "typed", "revealed", "secrets",
    "account_added", "account_link", "account_removed", "logged_in", "logged_out",
    "connected", "not_connected",
]  # fmt: skip
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
