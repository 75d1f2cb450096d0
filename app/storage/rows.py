"""Small statements for both databases."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

NAMED: Final = 5
"""So many ids are named to a person who has to choose."""
WALL_CLOCK: Final = "wall_clock"
"""The name of `time.time` in statements on SQLite."""


class _Clock(FunctionElement[float]):
    type = sa.Float()
    inherit_cache = True


@compiles(_Clock)
def _of_server(_element: _Clock, _compiler: object, **_: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(_Clock, "sqlite")
def _of_machine(_element: _Clock, _compiler: object, **_: Any) -> str:
    return f"{WALL_CLOCK}()"


CLOCK: Final = _Clock()
"""`now` as a value of a statement. No index finds what is compared with it on Postgres, because it advances."""
_NOW: Final = sa.select(CLOCK)


@cache
def _locking(table: sa.Table) -> sa.Select[Any]:
    # Built once: building a statement costs more than running it.
    (column,) = table.primary_key.columns
    return sa.select(table).where(column == sa.bindparam("key")).with_for_update()


def lock_row(conn: sa.Connection, table: sa.Table, key: object) -> sa.RowMapping | None:
    """The row with this primary key, locked until the transaction ends, or None. SQLite locks whole transactions."""
    return conn.execute(_locking(table), {"key": key}).mappings().one_or_none()


@cache
def _inserting(table: sa.Table, dialect: str) -> sa.Insert:
    # Loading a dialect costs a short command a tenth of its time.
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert
    # Not by rowcount, which psycopg's dialect leaves unknown here.
    return insert(table).on_conflict_do_nothing().returning(sa.literal(1))


def insert_new(conn: sa.Connection, table: sa.Table, values: dict[str, Any]) -> bool:
    """Insert a row unless its key exists; whether it was inserted. Waits for a concurrent insert of the key."""
    return conn.execute(_inserting(table, conn.dialect.name), values).first() is not None


@cache
def _changing(table: sa.Table, *names: str) -> sa.Update:
    (column,) = table.primary_key.columns
    return (
        sa.update(table).where(column == sa.bindparam("the_key")).values({name: sa.bindparam(name) for name in names})
    )


def change(conn: sa.Connection, table: sa.Table, key: object, **values: Any) -> bool:
    """Change the row with this primary key; whether it exists."""
    plain = {name: value for name, value in values.items() if not isinstance(value, sa.ClauseElement)}
    statement = _changing(table, *plain)
    if len(plain) < len(values):
        statement = statement.values({name: value for name, value in values.items() if name not in plain})
    return conn.execute(statement, {"the_key": key, **plain}).rowcount == 1


def put(conn: sa.Connection, table: sa.Table, key: object, **values: Any) -> None:
    """Insert the row with this primary key, or change it."""
    (column,) = table.primary_key.columns
    if not insert_new(conn, table, {column.name: key, **values}):
        change(conn, table, key, **values)


def literal(value: str) -> sa.ColumnClause[str]:
    """A value of ours as it stands in the text of a statement, so that the planner knows it.

    With a parameter SQLite uses no partial index, and Postgres plans a prepared statement to read whole tables.
    """
    return sa.literal_column(f"'{value}'", sa.String)


def change_some(conn: sa.Connection, table: sa.Table, *which: sa.ColumnElement[bool], **values: Any) -> int:
    """Change the rows that match all of `which`; returns how many."""
    return conn.execute(sa.update(table).where(*which).values(values)).rowcount


def count(conn: sa.Connection, table: sa.FromClause, *which: sa.ColumnElement[bool]) -> int:
    """The number of rows that match all of `which`."""
    return conn.execute(sa.select(sa.func.count()).select_from(table).where(*which)).scalar_one()


def exists(conn: sa.Connection, query: sa.Select[Any]) -> bool:
    """Whether a query has a row."""
    return conn.execute(query.limit(1)).first() is not None


def names(
    conn: sa.Connection,
    column: sa.Column[str],
    prefix: str,
    *which: sa.ColumnElement[bool],
    newest: sa.Column[float] | None = None,
    limit: int,
) -> list[str]:
    """Values of `column` that begin with `prefix`, in rows that match `which`; in order, or the `newest` first."""
    query = sa.select(column).where(column.startswith(prefix, autoescape=True), *which).limit(limit)
    query = query.distinct().order_by(column) if newest is None else query.order_by(newest.desc())
    return list(dict.fromkeys(conn.execute(query).scalars()))


def begun(
    conn: sa.Connection, key: sa.Column[str], prefix: str, *which: sa.ColumnElement[bool]
) -> Sequence[sa.RowMapping]:
    """Rows whose `key` begins with `prefix`, only the one that has it if there is one; enough for `candidates`."""
    if not prefix:
        return []
    # In order, so that a key that is the whole prefix comes first.
    query = sa.select(key.table).where(key.startswith(prefix, autoescape=True), *which).order_by(key).limit(NAMED + 1)
    found = conn.execute(query).mappings().all()
    return found[:1] if found and found[0][key.name] == prefix else found


def candidates(prefix: str, what: str, found: Collection[str]) -> str:
    """The text of an error about the beginning of several ids."""
    some = ", ".join(sorted(found)[:NAMED]) + (" and others" if len(found) > NAMED else "")
    return f"{prefix!r} is the beginning of several {what}, {some}: give more of it"


def given(*wanted: tuple[sa.ColumnElement[Any], object]) -> list[sa.ColumnElement[bool]]:
    """Conditions that each column has its value; a None adds none."""
    return [column == value for column, value in wanted if value is not None]


def now(conn: sa.Connection) -> float:
    """Seconds by the database's clock, which all hosts share; it advances within a transaction."""
    if conn.dialect.name == "sqlite":
        return time.time()
    return float(conn.execute(_NOW).scalar_one())


def lock_name(conn: sa.Connection, name: str) -> None:
    """Hold the lock of this name until the transaction ends (Postgres)."""
    if conn.dialect.name != "sqlite":
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(name, 0))))


def lock_name_shared(conn: sa.Connection, name: str) -> None:
    """Hold the lock of this name, shared, until the transaction ends (Postgres)."""
    if conn.dialect.name != "sqlite":
        conn.execute(_SHARED, {"name": name})


_SHARED: Final = sa.select(sa.func.pg_advisory_xact_lock_shared(sa.func.hashtextextended(sa.bindparam("name"), 0)))
