"""What the database says about work items, for the demo."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shellback.storage.tables import mailbox, turns


def turn(conn: sa.Connection, turn_id: str, *, ended: bool) -> dict[str, Any] | None:
    """The row of one work item; None until there is one, or, with `ended`, until it has an outcome."""
    query = sa.select(turns).where(turns.c.id == turn_id)
    if ended:
        query = query.where(turns.c.outcome.is_not(None))
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def last_answered(conn: sa.Connection, conversation: str, item_id: str) -> str | None:
    """The answer of the newest turn that ended after the item was put, and is not older than it."""
    asked = conn.execute(sa.select(turns.c.created_at).where(turns.c.id == item_id)).scalar_one()
    heard = conn.execute(sa.select(mailbox.c.state).where(mailbox.c.dedupe_key == item_id)).scalar_one()
    query = (
        sa.select(turns.c.answer)
        .where(turns.c.conversation_id == conversation, turns.c.answer.is_not(None), turns.c.ended_at >= asked)
        .order_by(turns.c.ended_at.desc())
        .limit(1)
    )
    return conn.execute(query).scalar_one_or_none() if heard == "heard" else None


def running(conn: sa.Connection, ids: list[str]) -> int:
    """How many of these items are being worked on."""
    query = sa.select(sa.func.count()).where(
        turns.c.id.in_(ids), turns.c.started_at.is_not(None), turns.c.outcome.is_(None)
    )
    return conn.execute(query).scalar_one()


def at_rest(conn: sa.Connection, conversation: str) -> bool:
    """Whether every item of a conversation has an outcome and all its news has been heard."""
    mine = turns.c.conversation_id == conversation
    unread = sa.and_(mailbox.c.conversation_id == conversation, mailbox.c.state != "heard")
    return not conn.execute(
        sa.select(sa.or_(sa.exists().where(mine, turns.c.outcome.is_(None)), sa.exists().where(unread)))
    ).scalar_one()


def items(conn: sa.Connection) -> list[dict[str, Any]]:
    """Every work item, in the order in which they started."""
    query = sa.select(turns).order_by(turns.c.started_at)
    return [
        {
            "id": row.id,
            "type": row.item_type,
            "priority": row.priority,
            "conversation": row.conversation_id,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
            "outcome": row.outcome,
            "answer": row.answer,
        }
        for row in conn.execute(query)
    ]
