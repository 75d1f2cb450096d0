"""The transfer of a database at rest into an empty one: every row of ours, and the items that wait."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.errors import MigrationFailed
from shellback.storage.tables import conversations, metadata
from shellback.storage.url import shown
from shellback.work.hosts import roster
from shellback.work.queue.items import WorkItem
from shellback.work.queue.queues import Enqueuer

if TYPE_CHECKING:
    from dbos import DBOSClient

_BATCH: Final = 500


def transfer(source: Database, client: DBOSClient, target: Database, enqueuer: Enqueuer, here: str) -> dict[str, int]:
    """Copy `source`, which `client` of DBOS reads too, into `target` in one transaction; returns the rows by table.

    Items that wait are enqueued again by `enqueuer`. Steps of turns are not copied, so no turn may be under way.
    `source` is only read. `here` is this host, which knows its own dead workers.

    Raises:
        MigrationFailed: A worker lives, a turn is under way, or the target has rows; nothing was changed.
    """

    def read(conn: sa.Connection) -> dict[str, int]:
        if alive := [one for one in roster.look(conn, here) if one.state == "alive"]:
            raise MigrationFailed(
                f"worker {alive[0].executor_id} (process {alive[0].pid}) uses {shown(source.url)}: stop it, then "
                "repeat; stop `serve` and `mcp` too"
            )
        waiting = _waiting(client, source)
        return target.write_now(_filled, conn, waiting, enqueuer)

    return source.read_now(read)


def _waiting(client: DBOSClient, source: Database) -> list[WorkItem]:
    """The items that no turn has taken, oldest first."""
    found = client.list_workflows(status=["ENQUEUED", "DELAYED", "PENDING"], load_output=False)
    if cut := [one.workflow_id for one in found if one.status == "PENDING"]:
        raise MigrationFailed(
            f"{len(cut)} turn(s) of {shown(source.url)} are under way, such as {cut[0]}: start its worker, let them "
            "end, stop it, then repeat"
        )
    return [WorkItem.from_json(one.input["args"][0]) for one in found if one.input is not None]


def _filled(
    target: sa.Connection, source: sa.Connection, waiting: Sequence[WorkItem], enqueuer: Enqueuer
) -> dict[str, int]:
    rows.lock_name(target, "shellback migrate")
    for table in metadata.sorted_tables:
        if found := rows.count(target, table):
            raise MigrationFailed(
                f"{shown(target.engine.url)} is not empty: {table.name} has {found} row(s). Name an empty database in "
                "DATABASE_URL, create its tables with `shellback migrate`, then repeat"
            )
    copied = {table.name: _copied(source, target, table) for table in metadata.sorted_tables}
    hosts = {row.id: row.host_id for row in target.execute(sa.select(conversations.c.id, conversations.c.host_id))}
    for item in waiting:
        enqueuer.put(target, item, host_id=hosts[item.conversation_id])
    return copied


def _copied(source: sa.Connection, target: sa.Connection, table: sa.Table) -> int:
    documents = [one for one in table.columns if isinstance(one.type, sa.JSON)]
    # As text, because SQL's NULL and JSON's null are one value in Python.
    texts = [sa.type_coerce(one, sa.Text).label(one.name) for one in documents]
    read = sa.select(*(one for one in table.columns if one not in documents), *texts)
    kinds = {one.name: sa.JSON(none_as_null=True) for one in documents}
    insert = sa.insert(table).values(
        {one.name: sa.bindparam(one.name, type_=kinds.get(one.name, one.type)) for one in table.columns}
    )
    count = 0
    for batch in source.execute(read).mappings().partitions(_BATCH):
        target.execute(insert, [row | {name: _document(row[name]) for name in kinds} for row in map(dict, batch)])
        count += len(batch)
    key = table.autoincrement_column
    if count and key is not None and target.dialect.name != "sqlite":
        sequence = sa.func.pg_get_serial_sequence(table.name, key.name)
        target.execute(sa.select(sa.func.setval(sequence, sa.select(sa.func.max(key)).scalar_subquery())))
    return count


def _document(text: str | None) -> Any:
    if text is None:
        return None
    found = json.loads(text)
    return sa.JSON.NULL if found is None else found
