"""Which history entries nobody reaches any more, after a conversation is deleted.

Every stored entry is reached by some record. So an entry that led to the deleted one stays in use exactly
when another record ends at it, or an entry that stays points at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from shellback.storage.rows import lock_name
from shellback.storage.tables import history_entries as entries
from shellback.storage.tables import history_records as records

DELETING: Final = "shellback history"
"""Name of the lock that keeps a fork from sharing an entry which is being deleted."""
_BATCH: Final = 500
"""Values in one statement; every database has a bound for them."""


def delete_histories(conn: sa.Connection, conversation_ids: Sequence[str]) -> None:
    """Delete the histories of these conversations, where they have any; their entries that others share stay."""
    lock_name(conn, DELETING)
    gone = conn.execute(
        records.delete()
        .where(records.c.conversation_id.in_(conversation_ids))
        .returning(records.c.head_id, records.c.branches)
    ).all()
    tips = [tip for record in gone for tip in (record.head_id, *record.branches) if tip is not None]
    if tips:
        delete_unreachable(conn, tips)


def delete_unreachable(conn: sa.Connection, tips: Sequence[str]) -> None:
    """Delete the entries that lead to `tips`, the ends of a deleted record's histories, unless still in use."""
    line = sa.select(entries.c.id, entries.c.parent_id).where(entries.c.id.in_(tips)).cte(recursive=True)
    line = line.union(sa.select(entries.c.id, entries.c.parent_id).join(line, entries.c.id == line.c.parent_id))
    doomed: dict[str, str | None] = {row.id: row.parent_id for row in conn.execute(sa.select(line))}
    children = conn.execute(sa.select(entries.c.id, entries.c.parent_id).join(line, entries.c.parent_id == line.c.id))
    in_use = {child.parent_id for child in children if child.id not in doomed}
    for record in conn.execute(sa.select(records.c.head_id, records.c.branches)):
        in_use |= {record.head_id, *record.branches}
    for entry_id in in_use:
        spared: str | None = entry_id
        while spared is not None and spared in doomed:
            spared = doomed.pop(spared)
    ids = list(doomed)
    for start in range(0, len(ids), _BATCH):
        conn.execute(entries.delete().where(entries.c.id.in_(ids[start : start + _BATCH])))
