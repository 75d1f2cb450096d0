"""The lock of an executor id: a file lock for SQLite, an advisory lock in Postgres. Both end with their process."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable, ExecutorTaken
from shellback.storage.failures import failure_of

_NAMESPACE: Final = 0x5B5B
_HELD: Final = sa.text(
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = :space AND objsubid = 2 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_NOTICED: Final = sa.text(
    "SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), "
    "set_config('tcp_keepalives_count', '3', false)"
)
# Servers before Postgres 14 have no such setting.
_KEPT: Final = sa.text("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'")
_ASKED_EVERY_S: Final = 30.0
_HOLDER: Final = re.compile(r"shellback (\d+)@(.+)")

_FIND_HOLDER: Final = sa.text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = :space AND objid = :key AND objsubid = 2 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def hold_executor(name: str, *, home: Path, database: Database) -> _FileLock | _ServerLock:
    """Hold the executor id until `release`, which may be repeated, or the end of this process.

    A broken connection to Postgres also releases it; `still_held` tells.

    Raises:
        ExecutorTaken: Another process holds it; the message names host and pid.
        DatabaseUnreachable: No connection to Postgres.
    """
    if database.dialect == "sqlite":
        return _FileLock(name, home)
    return _ServerLock(name, database.url)


def unheld(conn: sa.Connection, names: Iterable[str]) -> set[str]:
    """The given executor ids whose lock is free in this Postgres, because the connection of their worker has ended."""
    held = set(conn.execute(_HELD, {"space": _NAMESPACE}).scalars())
    return {name for name in names if _key(name) not in held}


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


class _FileLock:
    def __init__(self, name: str, home: Path) -> None:
        directory = home / "executors"
        directory.mkdir(mode=0o700, exist_ok=True)
        # Hashed, because an id may contain characters that a file name cannot.
        path = directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
        self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            self.release()
            raise ExecutorTaken(name, "this host", int(pid) if pid.isdecimal() else None) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def still_held(self) -> bool:
        return self._descriptor is not None

    def release(self) -> None:
        # The file stays: after an unlink two processes could lock two files of one name.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _ServerLock:
    def __init__(self, name: str, url: sa.URL) -> None:
        # A separate connection: a pooled one could be given to other code or recycled.
        self._engine = sa.create_engine(
            url,
            poolclass=sa.NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "connect_timeout": 5,
                "application_name": f"shellback {os.getpid()}@{socket.gethostname()}"[:63],
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
        )
        key = {"space": _NAMESPACE, "key": _key(name)}
        try:
            self._conn = self._engine.connect()
        except exc.DBAPIError as error:
            failure = failure_of(error, url)
            raise (
                DatabaseUnreachable("no connection for the executor's lock") if failure is None else failure.error
            ) from error
        # Keepalives of the server too: a machine that lost power closes nothing, and its lock would stay for hours.
        self._conn.execute(_NOTICED)
        self._conn.execute(_KEPT)
        self._asked_at = time.monotonic()
        if not self._conn.execute(sa.text("SELECT pg_try_advisory_lock(:space, :key)"), key).scalar_one():
            found = self._conn.execute(_FIND_HOLDER, key).scalar()
            self.release()
            holder = _HOLDER.fullmatch(str(found))
            raise ExecutorTaken(
                name, holder[2] if holder else "a host that is not known", int(holder[1]) if holder else None
            )

    def still_held(self) -> bool:
        if self._conn.closed:
            return False
        try:
            # A proxy may end a connection that is silent for too long, and answer the keepalives of one that it lost.
            if self._told_nothing() and time.monotonic() - self._asked_at < _ASKED_EVERY_S:
                return True
            self._conn.execute(sa.text("SELECT 1"))
            self._asked_at = time.monotonic()
        except exc.DBAPIError:
            # SQLAlchemy would reconnect without the lock. Locking again is not enough: a turn that ran while the server
            # refused connections has ended in DBOS's memory but is pending in its table, until the process restarts.
            self.release()
            return False
        return True

    def _told_nothing(self) -> bool:
        """Whether the connection is as silent as an idle one: its end, also by keepalives, makes it readable."""
        raw: Any = self._conn.connection.dbapi_connection
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN)
        return not poll.poll(0)

    def release(self) -> None:
        self._conn.close()
        self._engine.dispose()
