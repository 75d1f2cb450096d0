"""The migrations make what `tables.py` says, on both databases, beside DBOS's own tables."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from shellback.storage import schema
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable, SchemaBehind, SchemaTooNew
from shellback.storage.schema import SchemaState
from shellback.storage.tables import conversations, metadata

ROOT = Path(__file__).parents[3]


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


def add_conversation(conn: sa.Connection) -> None:
    conn.execute(conversations.insert().values(id="c1", host_id="h", created_at=1.0))


def stamp(conn: sa.Connection, revision: str) -> None:
    conn.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def shape(conn: sa.Connection) -> dict[str, Any]:
    """What a database says of our tables."""
    inspector = sa.inspect(conn)
    return {
        name: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted((str(index["name"]), tuple(index["column_names"])) for index in inspector.get_indexes(name)),
            sorted(tuple(unique["column_names"]) for unique in inspector.get_unique_constraints(name)),
        )
        for name in sorted(metadata.tables)
    }


def test_a_migrated_database_differs_in_nothing_from_the_tables(database: Database) -> None:
    def differences(conn: sa.Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(conn, opts=schema.alembic_options()), metadata)

    assert database.read_now(differences) == []


def test_the_tables_of_dbos_are_there_and_unknown_to_us(database: Database) -> None:
    def tables(conn: sa.Connection) -> set[str]:
        return set(sa.inspect(conn).get_table_names(schema=None if conn.dialect.name == "sqlite" else "dbos"))

    found = database.read_now(tables)
    assert {"workflow_status", "queues", "dbos_migrations"} <= found
    assert not {"workflow_status", "queues", "dbos_migrations"} & set(metadata.tables)


def test_migrating_again_changes_nothing(empty: Database, empty_url: str) -> None:
    assert schema.check(empty) is SchemaState.BEHIND
    schema.migrate(empty_url)
    assert schema.check(empty) is SchemaState.CURRENT
    empty.write_now(add_conversation)
    before = empty.read_now(shape)
    schema.migrate(empty_url)
    assert empty.read_now(shape) == before
    assert empty.read_now(lambda conn: conn.execute(sa.select(conversations.c.id)).scalars().all()) == ["c1"]
    schema.require_current(empty)


MIGRATE = """
import sys
from shellback.storage import schema
import dbos
print("ready", flush=True)
sys.stdin.readline()
schema.migrate(sys.argv[1])
"""


def test_two_processes_may_migrate_at_once(empty: Database, empty_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATE, empty_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert schema.check(empty) is SchemaState.CURRENT


def test_checking_creates_no_file(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/shellback.db")
    assert schema.check(database) is SchemaState.BEHIND
    with pytest.raises(SchemaBehind, match="shellback migrate"):
        schema.require_current(database)
    assert list(tmp_path.iterdir()) == []
    database.close()


def test_tables_of_a_newer_program_are_refused_and_left_alone(database: Database, database_url: str) -> None:
    database.write_now(stamp, "9999")
    before = database.read_now(shape)
    assert schema.check(database) is SchemaState.TOO_NEW
    with pytest.raises(SchemaTooNew, match="newer version"):
        schema.require_current(database)
    with pytest.raises(SchemaTooNew, match="newer version"):
        schema.migrate(database_url)
    assert database.read_now(shape) == before


@pytest.mark.parametrize("number", ["0001", "0009"])
def test_tables_of_before_the_first_release_are_refused_and_left_alone(
    database: Database, database_url: str, number: str
) -> None:
    database.write_now(stamp, number)
    before = database.read_now(shape)
    assert schema.check(database) is SchemaState.TOO_OLD
    with pytest.raises(SchemaBehind, match=r"finish what is under way with that version.*DATABASE_URL"):
        schema.require_current(database)
    with pytest.raises(SchemaBehind, match="cannot be upgraded"):
        schema.migrate(database_url)
    assert database.read_now(shape) == before


def test_our_tables_without_those_of_dbos_are_behind(database: Database) -> None:
    if database.dialect == "sqlite":
        database.write_now(lambda conn: conn.execute(sa.text("DROP TABLE dbos_migrations")))
    else:
        database.write_now(lambda conn: conn.execute(sa.text("DROP SCHEMA dbos CASCADE")))
    assert schema.check(database) is SchemaState.BEHIND


def test_a_migration_that_fails_leaves_no_table(
    empty: Database, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic.operations import Operations

    create = Operations.create_table

    def fail_at_sessions(self: Operations, name: str, *args: Any, **options: Any) -> Any:
        if name == "sessions":
            raise OSError("no more tables")
        return create(self, name, *args, **options)

    monkeypatch.setattr(Operations, "create_table", fail_at_sessions)
    with pytest.raises(OSError, match="no more tables"):
        schema.migrate(empty_url)
    assert empty.read_now(lambda conn: sa.inspect(conn).get_table_names()) == []
    monkeypatch.undo()
    schema.migrate(empty_url)
    assert schema.check(empty) is SchemaState.CURRENT


def test_a_database_that_is_not_there_is_named(empty_postgres_url: str) -> None:
    url = empty_postgres_url.replace("/test_", "/missing_")
    with pytest.raises(DatabaseUnreachable, match="missing_"):
        schema.migrate(url)


def test_migrating_leaves_logging_as_it_was(empty_url: str) -> None:
    root = logging.getLogger()
    before = (
        root.level,
        list(root.handlers),
        logging.getLogger("alembic").level,
        logging.getLogger("shellback").disabled,
    )
    schema.migrate(empty_url)
    after = (
        root.level,
        list(root.handlers),
        logging.getLogger("alembic").level,
        logging.getLogger("shellback").disabled,
    )
    assert after == before


def test_the_tables_can_be_taken_back(database: Database, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-x", f"url={database_url}", "downgrade", "base"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not set(metadata.tables) & set(database.read_now(lambda conn: sa.inspect(conn).get_table_names()))
    assert schema.check(database) is SchemaState.BEHIND
