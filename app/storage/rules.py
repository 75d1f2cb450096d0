"""Saved rules, until they expire or are revoked. Times are of the database's clock."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.errors import CommandDenied, InvalidCommand, LimitReached
from shellback.exec.policy.classify.model import Tier
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.storage import rows
from shellback.storage.tables import rules

SAVED: Final = 500
"""Rules in force at once."""
KEPT_S: Final = 30 * 86_400.0
"""How long an ended rule stays listed."""
_ID: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A saved rule and its state: `active`, `expired` or `revoked`."""

    rule: Rule
    state: str
    used_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None


def add(conn: sa.Connection, wanted: Sequence[Rule]) -> list[Rule]:
    """Save rules and return them with their ids. An equal rule in force is kept, with the later expiry.

    Raises:
        LimitReached: More than `SAVED` rules would be in force; none is saved.
    """
    rows.lock_name(conn, "shellback rules")
    now = rows.now(conn)
    conn.execute(sa.delete(rules).where(sa.or_(rules.c.revoked_at < now - KEPT_S, rules.c.expires_at < now - KEPT_S)))
    there = list(live(conn, None))
    found: list[Rule] = []
    for rule in wanted:
        twin = next((one for one in there if (one.effect, one.match) == (rule.effect, rule.match)), None)
        if twin is not None:
            found.append(_prolonged(conn, twin, rule.expires_at))
            continue
        if len(there) >= SAVED:
            raise LimitReached(f"{SAVED} rules are in force; revoke one first: `shellback rules list`")
        saved = replace(rule, id=f"r{uuid.uuid4().hex[: _ID - 1]}", created_at=now, source="saved", saved=True, uses=0)
        conn.execute(sa.insert(rules).values(_values(saved)))
        there.append(saved)
        found.append(saved)
    return found


def live(conn: sa.Connection, conversation_id: str | None) -> tuple[Rule, ...]:
    """The rules in force for this conversation; with None all of them."""
    query = sa.select(rules).where(
        rules.c.revoked_at.is_(None), sa.or_(rules.c.expires_at.is_(None), rules.c.expires_at > rows.CLOCK)
    )
    if conversation_id is not None:
        query = query.where(sa.or_(rules.c.conversation_id.is_(None), rules.c.conversation_id == conversation_id))
    return tuple(_rule(row) for row in conn.execute(query.order_by(rules.c.created_at, rules.c.id)))


def find(conn: sa.Connection, *, everything: bool = False) -> list[Saved]:
    """The active rules, oldest first; with `everything` also those that have ended lately."""
    now = rows.now(conn)
    found = [_saved(row, now) for row in conn.execute(sa.select(rules).order_by(rules.c.created_at, rules.c.id))]
    return [one for one in found if everything or one.state == "active"]


def revoke(conn: sa.Connection, rule_id: str, *, by: str) -> Saved:
    """Revoke the rule whose id begins with `rule_id`. A repeat changes nothing.

    Raises:
        InvalidCommand: No rule has this id, or more than one begins with it.
    """
    matches = rows.begun(conn, rules.c.id, rule_id)
    if not matches:
        raise InvalidCommand(f"no saved rule has the id {rule_id!r}; `shellback rules list` shows them")
    if len(matches) > 1:
        raise InvalidCommand(rows.candidates(rule_id, "rules", [row["id"] for row in matches]))
    key = matches[0]["id"]
    now = rows.now(conn)
    rows.change_some(conn, rules, rules.c.id == key, rules.c.revoked_at.is_(None), revoked_at=now, revoked_by=by)
    return _saved(conn.execute(sa.select(rules).where(rules.c.id == key)).one(), now)


def use(conn: sa.Connection, rule_ids: Sequence[str]) -> None:
    """Count a use of each rule, in the transaction that claims the session.

    Raises:
        CommandDenied: A rule was revoked or has expired since it was read. Roll back.
    """
    for rule_id in sorted(set(rule_ids)):  # in one order, to avoid deadlocks
        row = rows.lock_row(conn, rules, rule_id)
        now = rows.now(conn)
        if row is None or row["revoked_at"] is not None:
            raise CommandDenied(f"rule {rule_id} was revoked meanwhile; nothing was started, propose the call again")
        if row["expires_at"] is not None and row["expires_at"] <= now:
            raise CommandDenied(f"rule {rule_id} has expired meanwhile; nothing was started, propose the call again")
        rows.change(conn, rules, rule_id, uses=rules.c.uses + 1, used_at=now)


def _prolonged(conn: sa.Connection, rule: Rule, expires_at: float | None) -> Rule:
    if rule.expires_at is None or (expires_at is not None and expires_at <= rule.expires_at):
        return rule
    rows.change(conn, rules, rule.id, expires_at=expires_at)
    return replace(rule, expires_at=expires_at)


def _values(rule: Rule) -> dict[str, Any]:
    match = {key: value for key, value in asdict(rule.match).items() if value and key != "conversation_id"}
    if rule.match.tier is not None:
        match["tier"] = str(rule.match.tier)
    return {
        "id": rule.id,
        "effect": rule.effect,
        "match": match,
        "conversation_id": rule.match.conversation_id,
        "note": rule.note,
        "owner": rule.owner[:100],
        "created_at": rule.created_at,
        "expires_at": rule.expires_at,
    }


def _rule(row: sa.Row[Any]) -> Rule:
    match: dict[str, Any] = dict(row.match)
    for key in ("prefix", "paths"):
        match[key] = tuple(match.get(key, ()))
    if "tier" in match:
        match["tier"] = Tier[match["tier"].upper()]
    return Rule(
        effect=row.effect,
        match=Match(**match, conversation_id=row.conversation_id),
        id=row.id,
        note=row.note,
        owner=row.owner,
        created_at=row.created_at,
        expires_at=row.expires_at,
        uses=row.uses,
        saved=True,
    )


def _saved(row: sa.Row[Any], now: float) -> Saved:
    ended = row.expires_at is not None and row.expires_at <= now
    state = "revoked" if row.revoked_at is not None else "expired" if ended else "active"
    return Saved(
        rule=_rule(row), state=state, used_at=row.used_at, revoked_at=row.revoked_at, revoked_by=row.revoked_by
    )
