"""One living worker for each executor id: a file lock beside SQLite, an advisory lock in Postgres.

Both end with their holder, so that a restart is immediate and a double is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

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
_HOLDER: Final = re.compile(r"shellback (\d+)@(.+)")

_FIND_HOLDER: Final = sa.text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = :space AND objid = :key AND objsubid = 2 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class ExecutorLock(Protocol):
    """A held executor id; made by `hold_executor`."""

    def still_held(self) -> bool:
        """Whether it is ours yet; a broken connection to Postgres gives it up."""
        ...

    def release(self) -> None:
        """Give it up; again changes nothing."""
        ...


def hold_executor(name: str, *, home: Path, database: Database) -> ExecutorLock:
    """Hold the executor id until `release` or the end of this process.

    Raises:
        ExecutorTaken: Another process holds it; names its host and pid.
        DatabaseUnreachable: No connection to Postgres.
    """
    if database.dialect == "sqlite":
        return _FileLock(name, home)
    return _ServerLock(name, database.url)


def unheld(conn: sa.Connection, names: Iterable[str]) -> set[str]:
    """Those of these executor ids that nobody holds in this Postgres: their worker is gone, and its connection too."""
    held = set(conn.execute(_HELD, {"space": _NAMESPACE}).scalars())
    return {name for name in names if _key(name) not in held}


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


class _FileLock:
    def __init__(self, name: str, home: Path) -> None:
        directory = home / "executors"
        directory.mkdir(mode=0o700, exist_ok=True)
        # Hashed, because an id may hold what a file name may not.
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
        # The file stays: unlinked, two could hold locks on two files of one name.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _ServerLock:
    def __init__(self, name: str, url: sa.URL) -> None:
        # A connection of its own: one from a pool could be handed to others or recycled.
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
        # The server's end, too: a machine that lost its power closes nothing, and would be refused for hours.
        self._conn.execute(_NOTICED)
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
            self._conn.execute(sa.text("SELECT 1"))
        except exc.DBAPIError:
            # SQLAlchemy would reconnect by itself, without the lock. Taking it again is not enough: a turn that
            # met a server that refuses connections is over in DBOS's memory and pending in its table, for as long
            # as this process lives. The next one recovers it.
            self.release()
            return False
        return True

    def release(self) -> None:
        self._conn.close()
        self._engine.dispose()
