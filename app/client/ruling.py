"""Saves and revokes rules for a person, each with an entry of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shellback.exec.core.errors import InvalidCommand
from shellback.storage import rules
from shellback.wiring.wiring import a_doorbell
from shellback.work.approvals import audit
from shellback.work.approvals.denying import CHANGED
from shellback.work.errors import InvalidRequest

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.exec.policy.rules.rule import Rule
    from shellback.storage.rules import Saved
    from shellback.wiring.wiring import Place


def keep(
    conn: sa.Connection,
    made: Sequence[Rule],
    *,
    by: str,
    surface: str,
    conversation: str | None,
    request_id: str | None = None,
) -> Sequence[Rule]:
    """Save rules; returns them with their ids.

    Raises:
        LimitReached: Too many would be in force; none is saved.
    """
    saved = rules.add(conn, made)
    for rule in saved:
        entry = audit.Entry(
            event="rule_added", conversation_id=conversation, request_id=request_id, rule=rule.id, done_by=by,
            surface=surface, reason=rule.described(),
        )  # fmt: skip
        audit.note(conn, entry)
    return saved


def revoke(conn: sa.Connection, rule_id: str, *, by: str, surface: str) -> Saved:
    """Revoke the saved rule whose id begins with `rule_id`, for good.

    Raises:
        InvalidRequest: No rule has this id, or more than one begins with it.
    """
    try:
        ended = rules.revoke(conn, rule_id, by=by)
    except InvalidCommand as error:
        raise InvalidRequest(str(error)) from None
    entry = audit.Entry(
        event="rule_revoked", conversation_id=ended.rule.match.conversation_id, rule=ended.rule.id, done_by=by,
        surface=surface, reason=ended.rule.described(),
    )  # fmt: skip
    audit.note(conn, entry)
    return ended


def tell(where: Place, rule: Rule) -> None:
    """Have a rule about hosts that was saved or has ended hold for the next connection."""
    if rule.match.connect is not None:
        a_doorbell(where).ring_all(CHANGED)
