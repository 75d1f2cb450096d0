"""Histories in the database, as Pydantic AI's conversation store; entries are only appended.

The functions take a connection, so that the closing transaction of a turn can include them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from pydantic import TypeAdapter
from pydantic_ai import DeferredToolRequests, ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.usage import RunUsage

from shellback.storage.db import Database
from shellback.storage.retention import DELETING, delete_histories
from shellback.storage.rows import count, insert_new, lock_name_shared
from shellback.storage.tables import history_entries as entries
from shellback.storage.tables import history_records as records
from shellback.storage.transcript import leading_to

_usage: Final = TypeAdapter(RunUsage)
_deferred: Final = TypeAdapter(DeferredToolRequests)

# As text: only Pydantic's own JSON parser reads base64 and the like back.
_MESSAGE: Final = sa.cast(entries.c.message, sa.Text).label("message")


class SqlConversationStore(ConversationStore):
    """A `ConversationStore` on a `Database`; deleting a conversation also deletes entries that no other one shares."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await self._database.read(read_record_in, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        return await self._database.read(read_records_in, scope=scope, limit=limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        await self._database.write(write_record_in, record, new_entries, expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await self._database.write(delete_record_in, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self._database.read(read_history_in, entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        return await self._database.read(read_history_in, head_id, limit=limit)


def read_record_in(conn: sa.Connection, conversation_id: str) -> ConversationRecord | None:
    """The record, or None."""
    row = conn.execute(_RECORD, {"id": conversation_id}).mappings().one_or_none()
    return None if row is None else _record(row)


_RECORD: Final = sa.select(records).where(records.c.conversation_id == sa.bindparam("id"))  # of every turn: built once


def read_records_in(
    conn: sa.Connection, *, scope: str | None = None, limit: int | None = None
) -> list[ConversationRecord]:
    """The records, or those of a scope, last saved first, at most `limit`."""
    query = sa.select(records).order_by(records.c.updated_at.desc()).limit(limit)
    if scope is not None:
        query = query.where(records.c.scope == scope)
    return [_record(row) for row in conn.execute(query).mappings()]


def read_history_in(conn: sa.Connection, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
    """The entries up to `head_id`, oldest first, or the last `limit` of them, in one query.

    Raises:
        LookupError: An entry of the chain is not stored.
    """
    if head_id is None or limit == 0:
        return []
    rows = conn.execute(leading_to(head_id, limit, _MESSAGE)).all()
    if not rows or (rows[0].parent_id is not None and rows[0].depth != limit):
        missing = rows[0].parent_id if rows else head_id
        raise LookupError(f"history entry {missing!r} is not stored")
    return [ConversationEntry(id=row.id, parent_id=row.parent_id, message=_message(row.message)) for row in rows]


def write_record_in(
    conn: sa.Connection,
    record: ConversationRecord,
    new_entries: Sequence[ConversationEntry],
    expected_revision: str | None,
) -> None:
    """Store the record and its new entries, replacing the record that has `expected_revision`.

    Raises:
        ConversationConflict: Another revision is stored, or an entry that the record needs is gone. Roll back.
    """
    lock_name_shared(conn, DELETING)
    values = _row(record)
    if expected_revision is None:
        written = insert_new(conn, records, values)
    else:
        update = records.update().where(
            records.c.conversation_id == record.conversation_id, records.c.revision == expected_revision
        )
        written = conn.execute(update.values(values)).rowcount == 1
    if not written or not _hangs_together(conn, record, new_entries):
        raise ConversationConflict(record.conversation_id)
    if new_entries:
        created_at = record.updated_at.timestamp()
        conn.execute(entries.insert(), [_entry_row(entry, created_at) for entry in new_entries])


def delete_record_in(conn: sa.Connection, conversation_id: str, expected_revision: str) -> None:
    """Delete the record, and the entries that no other record shares.

    Raises:
        ConversationConflict: No record with this revision is stored.
    """
    which = (records.c.conversation_id == conversation_id, records.c.revision == expected_revision)
    if not delete_histories(conn, *which):
        raise ConversationConflict(conversation_id)


def _hangs_together(conn: sa.Connection, record: ConversationRecord, new_entries: Sequence[ConversationEntry]) -> bool:
    new = {entry.id for entry in new_entries}
    root = new_entries[0].parent_id if new_entries else None
    needed = {entry_id for entry_id in (record.head_id, root) if entry_id is not None} - new
    return not needed or count(conn, entries, entries.c.id.in_(needed)) == len(needed)


def _message(text: str) -> ModelMessage:
    (message,) = ModelMessagesTypeAdapter.validate_json(f"[{text}]")
    return message


def _entry_row(entry: ConversationEntry, created_at: float) -> dict[str, Any]:
    (message,) = json.loads(ModelMessagesTypeAdapter.dump_json([entry.message]))
    return {"id": entry.id, "parent_id": entry.parent_id, "message": message, "created_at": created_at}


def _row(record: ConversationRecord) -> dict[str, Any]:
    deferred = record.deferred_tool_requests
    return {
        "conversation_id": record.conversation_id,
        "head_id": record.head_id,
        "revision": record.revision,
        "usage": json.loads(_usage.dump_json(record.usage)),
        "deferred": None if deferred is None else json.loads(_deferred.dump_json(deferred)),
        "scope": record.scope,
        "forked_from": record.forked_from,
        "forked_at": record.forked_at,
        "branches": list(record.branches),
        "updated_at": record.updated_at.timestamp(),
    }


def _record(row: sa.RowMapping) -> ConversationRecord:
    values: dict[str, Any] = dict(row)
    deferred = values.pop("deferred")
    values["usage"] = _usage.validate_json(json.dumps(values["usage"]))
    values["deferred_tool_requests"] = None if deferred is None else _deferred.validate_json(json.dumps(deferred))
    values["updated_at"] = datetime.fromtimestamp(values["updated_at"], UTC)
    return ConversationRecord(**values)
