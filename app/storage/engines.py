"""How connections are made: a writing and a reading engine for each of the two databases."""

from __future__ import annotations

import os
import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

from shellback.storage.errors import DatabaseUnreachable

_WAL_ATTEMPTS: Final = 100
_CONNECT_TIMEOUT_S: Final = 5
_IDLE_MS: Final = 15_000
"""A process that is paused inside a transaction loses its locks after this, so that others can go on for it."""


def sqlite_engines(url: sa.URL, *, readers: int, lock_timeout_s: float) -> tuple[sa.Engine, sa.Engine]:
    """One connection that writes, `readers` that only read."""
    path = str(url.database)
    writer = _sqlite_engine(url, partial(_connect_writer, path, lock_timeout_s), 1, lock_timeout_s)
    reader = _sqlite_engine(url, partial(_connect_reader, path, lock_timeout_s), readers, lock_timeout_s)
    event.listen(writer, "begin", partial(_begin, "BEGIN IMMEDIATE"))
    event.listen(reader, "begin", partial(_begin, "BEGIN"))
    return writer, reader


def postgres_engines(url: sa.URL, *, connections: int, lock_timeout_s: float) -> tuple[sa.Engine, sa.Engine]:
    """Two views of one pool; what the second begins is READ ONLY."""
    engine = sa.create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=lock_timeout_s,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        connect_args={"connect_timeout": _CONNECT_TIMEOUT_S},
    )
    event.listen(engine, "connect", partial(_set_timeouts, int(lock_timeout_s * 1000)))
    return engine, engine.execution_options(postgresql_readonly=True)


def _sqlite_engine(url: sa.URL, creator: Any, size: int, timeout_s: float) -> sa.Engine:
    return sa.create_engine(
        url,
        creator=creator,
        poolclass=sa.QueuePool,
        pool_size=size,
        max_overflow=0,
        pool_timeout=timeout_s,
        hide_parameters=True,
    )


def _connect_sqlite(path: str, timeout_s: float) -> sqlite3.Connection:
    # isolation_level None: the module begins nothing by itself, the engine's `begin` event does.
    conn = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    conn.execute("PRAGMA foreign_keys = ON")
    conn.execute("PRAGMA synchronous = FULL")
    return conn


def _connect_writer(path: str, timeout_s: float) -> sqlite3.Connection:
    _create_file(path)
    conn = _connect_sqlite(path, timeout_s)
    try:
        _use_wal(conn)
    except sqlite3.Error:
        conn.close()
        raise
    return conn


def _connect_reader(path: str, timeout_s: float) -> sqlite3.Connection:
    _create_file(path)
    conn = _connect_sqlite(path, timeout_s)
    conn.execute("PRAGMA query_only = ON")
    return conn


def _create_file(path: str) -> None:
    # Never opened when it exists: closing a descriptor of it would drop the locks SQLite holds in this process.
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise DatabaseUnreachable(
            f"{path} cannot be created: {error.strerror}; check the path and its owner"
        ) from error


def _use_wal(conn: sqlite3.Connection) -> None:
    # The mode is kept in the file. Changing it answers "locked" at once, without the busy timeout.
    for attempt in range(_WAL_ATTEMPTS):
        try:
            conn.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                raise
            time.sleep(0.02)
        else:
            return


def _begin(statement: str, conn: sa.Connection) -> None:
    # Past SQLAlchemy's statement machinery: this is paid by every transaction.
    raw: Any = conn.connection.dbapi_connection
    raw.execute(statement)


def _set_timeouts(lock_timeout_ms: int, raw: Any, _record: object) -> None:
    with raw.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {lock_timeout_ms}")
        cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
    raw.commit()
