"""The schema: checks and migrates our tables (by Alembic) and those of DBOS (by DBOS, in the same database).

DBOS's tables are in schema `dbos` on Postgres, and in the same file on SQLite. Alembic ignores them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

import shellback
from shellback.storage.db import Database, pooled
from shellback.storage.errors import MigrationFailed, SchemaBehind, SchemaTooNew
from shellback.storage.rows import lock_name
from shellback.storage.tables import metadata
from shellback.storage.url import shown

_alembic = threading.Lock()  # its context is one per process
_MIGRATIONS: Final = Path(str(shellback.__file__)).parent / "migrations"
_UNRELEASED: Final = frozenset({*(f"{number:04}" for number in range(1, 10)), "0001_schema"})
"""Revisions from before the first release, which were merged into one."""
_APPLIED: Final = sa.table("alembic_version", sa.column("version_num"))


class SchemaState(StrEnum):
    """The state of the tables, compared with this program."""

    CURRENT = "current"
    BEHIND = "behind"
    TOO_NEW = "too_new"
    TOO_OLD = "too_old"


def migrate(url: str, direct_url: str = "") -> None:
    """Create or upgrade our tables and DBOS's. A repeat changes nothing, and two processes may do it at once.

    Our tables are changed in one transaction: a failed upgrade leaves them unchanged. `direct_url` leads to the same
    database if a pooler is behind `url`: DBOS holds a lock of its session while it migrates.

    Raises:
        SchemaTooNew: A newer program has migrated this database; nothing was changed.
        SchemaBehind: A program from before the first release made them; nothing was changed.
        DatabaseUnreachable: No connection.
        MigrationFailed: The upgrade failed, or only a pooler is named; the message has the reason.
        DatabaseLocked: Another process migrated or locked the database for too long.
    """
    with contextlib.closing(Database(direct_url or url)) as database, _said(database, "our tables"):
        if not direct_url and database.dialect != "sqlite" and database.read_now(pooled):
            raise MigrationFailed(
                f"cannot migrate by way of the pooler {shown(database.url)}: name Postgres itself in "
                "DATABASE_DIRECT_URL, then run `shellback migrate`"
            )
        database.write_now(_upgrade)
    from dbos import DBOS

    with _said(database, "the tables of DBOS"):
        DBOS.migrate(database.url.render_as_string(hide_password=False))


@contextlib.contextmanager
def _said(database: Database, what: str) -> Generator[None]:
    """Turn errors of SQLAlchemy and Alembic into `MigrationFailed`; our own errors pass."""
    from alembic.util import CommandError

    try:
        yield
    except (exc.SQLAlchemyError, CommandError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        first = next(iter(str(cause).splitlines()), type(cause).__name__)
        raise MigrationFailed(
            f"cannot migrate {what} in {shown(database.url)}: {first}. Name an empty database, grant the user of"
            " DATABASE_URL the right to change tables, or restore a backup; then run `shellback migrate`"
        ) from error


def check(database: Database) -> SchemaState:
    """The state of the tables; changes nothing, and creates no SQLite file; may raise DatabaseUnreachable."""
    if database.dialect == "sqlite" and not Path(str(database.url.database)).exists():
        return SchemaState.BEHIND
    return database.read_now(_state)


def require_current(database: Database) -> None:
    """Require that the tables fit this program.

    Raises:
        SchemaBehind: They are older or missing.
        SchemaTooNew: They are newer.
        DatabaseUnreachable: No connection.
    """
    state = check(database)
    if state is SchemaState.BEHIND:
        raise SchemaBehind(f"the tables of {shown(database.url)} are missing or old: run `shellback migrate`")
    _refuse(state, database.url)


def alembic_options() -> dict[str, Any]:
    """The options of Alembic, for every way to run it."""
    return {
        "target_metadata": metadata,
        "include_name": _is_ours,
        "compare_type": True,
        "compare_server_default": True,
        "render_as_batch": True,
        "transactional_ddl": True,
    }


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or name in metadata.tables


def _upgrade(conn: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    lock_name(conn, "shellback migrate")
    _refuse(_state(conn), conn.engine.url)
    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    with _alembic:
        command.upgrade(config, "head")


def _state(conn: sa.Connection) -> SchemaState:
    inspector = sa.inspect(conn)
    if not inspector.has_table(_APPLIED.name):
        return SchemaState.BEHIND
    applied = set(conn.execute(sa.select(_APPLIED.c.version_num)).scalars())
    known = revisions()
    if not applied <= set(known):
        return SchemaState.TOO_OLD if applied <= _UNRELEASED else SchemaState.TOO_NEW
    dbos: Final = None if conn.dialect.name == "sqlite" else "dbos"
    if applied != {known[-1]} or not inspector.has_table("dbos_migrations", schema=dbos):
        return SchemaState.BEHIND
    return SchemaState.CURRENT


def revisions() -> list[str]:
    """Every revision that this program knows, oldest first, from the file names. Importing Alembic is slow."""
    return sorted(path.stem for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _refuse(state: SchemaState, url: sa.URL) -> None:
    """Raise if no upgrade can make the tables fit."""
    if state is SchemaState.TOO_NEW:
        raise SchemaTooNew(
            f"a newer version of Shellback has migrated {shown(url)}: run that version, or another database"
        )
    if state is SchemaState.TOO_OLD:
        raise SchemaBehind(
            f"a version of Shellback before its first release made the tables of {shown(url)}, and they cannot be "
            "upgraded: finish what is under way with that version, then name a new state directory (SHELLBACK_HOME) "
            "and a new database (DATABASE_URL)"
        )
