"""A stored conversation for people and exports: its messages as JSON, unparsed, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.tables import approvals, history_entries, history_records, sessions

PAGE: Final = 100
PARTS: Final = {"approvals": approvals, "sessions": sessions}

_entries: Final = history_entries.c


def summary(conn: sa.Connection, conversation_id: str) -> dict[str, Any] | None:
    """The record of a history, or None."""
    query = sa.select(history_records).where(history_records.c.conversation_id == conversation_id)
    row = conn.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def line(conn: sa.Connection, head_id: str | None, limit: int | None = None) -> list[str]:
    """Ids of the entries that lead to `head_id`, oldest first; all, or the last `limit`."""
    if head_id is None or limit == 0:
        return []
    return list(conn.execute(leading_to(head_id, limit)).scalars())


def leading_to(head_id: str, limit: int | None, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The entries up to `head_id`, oldest first, or the last `limit`: id, parent_id, `more`, and the depth from 1."""
    columns = (_entries.id, _entries.parent_id, *more)
    chain = sa.select(*columns, sa.literal(1).label("depth")).where(_entries.id == head_id).cte(recursive=True)
    before = sa.select(*columns, chain.c.depth + 1).join(chain, _entries.id == chain.c.parent_id)
    if limit is not None:
        before = before.where(chain.c.depth < limit)
    chain = chain.union_all(before)
    return sa.select(chain).order_by(chain.c.depth.desc())


def messages(conn: sa.Connection, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The messages of these entries, in this order; LookupError if an entry is not stored any more."""
    query = sa.select(_entries.id, _entries.message).where(_entries.id.in_(ids))
    found = {row.id: row.message for row in conn.execute(query)}
    missing = [entry_id for entry_id in ids if entry_id not in found]
    if missing:
        raise LookupError(f"history entry {missing[0]!r} is not stored")
    return [found[entry_id] for entry_id in ids]


def page(conn: sa.Connection, part: str, conversation_id: str, after: tuple[float, str]) -> list[dict[str, Any]]:
    """The next rows of a part of a conversation after (created_at, id), oldest first, at most `PAGE`."""
    table = PARTS[part]
    query = (
        sa.select(table)
        .where(
            table.c.conversation_id == conversation_id,
            sa.tuple_(table.c.created_at, table.c.id) > sa.tuple_(sa.literal(after[0]), sa.literal(after[1])),
        )
        .order_by(table.c.created_at, table.c.id)
        .limit(PAGE)
    )
    return [dict(row) for row in conn.execute(query).mappings()]
