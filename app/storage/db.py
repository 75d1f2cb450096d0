"""The database: one function is one transaction, run in a thread, on SQLite and Postgres.

SQLite has one writer: one thread, one connection, and transactions begun IMMEDIATE, because a deferred transaction that
reads first fails if another process writes meanwhile. `synchronous` is FULL: in WAL mode NORMAL may lose the last
commits at a power failure, and a lost claim would start its command twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import random
import select
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event, exc

from shellback.storage import rows
from shellback.storage.errors import DatabaseLocked, DatabaseUnreachable, OutcomeUnknown
from shellback.storage.failures import failure_of
from shellback.storage.outage import Outage
from shellback.storage.url import normalised, shown

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

READERS: Final = 4
CONNECTIONS: Final = 4
"""Connections of a process to Postgres, DBOS's among them, and threads that use them. One more may listen."""
ATTEMPTS: Final = 5
"""Attempts at a transaction that Postgres aborts or whose connection breaks before the commit."""
LOCK_TIMEOUT_S: Final = 30.0


class Database:
    """A bounded pool of threads and connections to one database.

    `dbos_engine` is a view of the pool for DBOS; None on SQLite, where DBOS has one of its own.

    It opens nothing before the first transaction. A SQLite file that is missing then is created 0600, its directory
    0700. One that is moved later is an outage, which ends when it is back: nothing is written where nobody looks.

    Raises:
        DatabaseUnsupported: The URL is malformed or names an unsupported database.
    """

    def __init__(self, url: str, *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.url: Final = normalised(url)
        self.noted: Callable[[], object] = _nobody
        """Called after a transaction that has added events, by `tell_after`."""
        self._outage = Outage()
        if self.dialect == "sqlite":
            self._file: SqliteFile | None = SqliteFile(str(self.url.database))
            self._writer, self._reader = sqlite_engines(
                self.url, self._file, readers=READERS, lock_timeout_s=lock_timeout_s
            )
            self._kept: KeptConnection | None = KeptConnection(self._writer, timeout_s=lock_timeout_s)
            self._write_thread: Writer | None = Writer("db-write")
            self._threads = ThreadPoolExecutor(READERS, "db-read")
            self.dbos_engine: sa.Engine | None = None
        else:
            self._file = None
            self._writer, self._reader, self.dbos_engine = _postgres_engines(self.url, lock_timeout_s)
            self._kept = None
            self._write_thread = None
            self._threads = ThreadPoolExecutor(CONNECTIONS, "db")

    def __repr__(self) -> str:
        return f"Database({shown(self.url)!r})"

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.url.get_backend_name()

    async def write(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(conn, *args)` in one transaction, commit it and return the result.

        `fn` may run again after a rollback, so it must change only `conn`. If it raises, all is rolled back.
        A cancelled transaction is done or not begun: a running one continues to its end in its thread.

        Raises:
            DatabaseUnreachable: No connection; OutcomeUnknown when it broke during the commit.
            DatabaseLocked: A lock was not free in time.
            DatabaseFull: The disk is full.
        """
        run = self._pooled if self._write_thread is None else self._write_thread.run
        return await run(lambda: self.write_now(fn, *args, **kwargs))

    async def read(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `fn(conn, *args)` in a read-only transaction; raises as `write` does."""
        return await self._pooled(lambda: self.read_now(fn, *args, **kwargs))

    def write_now(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`write` in the calling thread, for the command line and for threads of DBOS."""
        return self._retried(self._kept or self._writer, lambda conn: fn(conn, *args, **kwargs))

    def read_now(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`read` in the calling thread."""
        return self._retried(self._reader, lambda conn: fn(conn, *args, **kwargs))

    async def pause(self, seconds: float, *, since: float) -> None:
        """Wait before a repeat: `seconds`, or until an outage ends; not at all if one has ended `since` (monotonic)."""
        await self._outage.pause(seconds, since=since)

    def close(self) -> None:
        """Wait for running transactions, then close every thread and connection. Queued transactions never begin."""
        if self._write_thread is not None:
            self._write_thread.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._kept is not None:
            self._kept.close()
        self._writer.dispose()
        self._reader.dispose()

    async def _pooled(self, fn: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, fn)

    def _retried(self, source: sa.Engine | KeptConnection, fn: Callable[[sa.Connection], T]) -> T:
        attempt = 1
        while True:
            try:
                result = self._once(source, fn)
            except Exception as error:
                failure = failure_of(error, self.url)
                if failure is None:
                    if isinstance(error, OutcomeUnknown):
                        self._outage.failed()
                    raise
                if not failure.passing or attempt == ATTEMPTS:
                    self._outage.failed()
                    raise failure.error from error
            else:
                if source is not self._reader:
                    self._outage.committed()
                return result
            time.sleep(random.uniform(0.5, 1.0) * 0.02 * 2**attempt)  # noqa: S311 - jitter
            attempt += 1

    def _once(self, source: sa.Engine | KeptConnection, fn: Callable[[sa.Connection], T]) -> T:
        try:
            with source if isinstance(source, KeptConnection) else source.connect() as conn:
                if self._file is not None and conn.info[_FILE] != self._file.identity():
                    conn.invalidate()  # and what follows connects to what is there now
                conn.begin()
                conn.info.pop(_AFTER, None)
                conn.info[_NOTED] = self.noted
                result = fn(conn)  # leaving the block without a commit rolls back
                self._commit(conn)
                after: dict[tuple[object, ...], Callable[[], object]] = conn.info.pop(_AFTER, {})
        except exc.TimeoutError as error:
            raise DatabaseLocked(
                f"all connections to {shown(self.url)} were busy for too long: a transaction hangs, "
                "or one was opened inside another"
            ) from error
        for act in after.values():
            try:
                act()
            except Exception:
                # The transaction is committed, so its caller must not take it for failed.
                log.exception("what was to be told after a transaction was not told")
        return result

    def _commit(self, conn: sa.Connection) -> None:
        try:
            conn.commit()
        except exc.DBAPIError as error:
            if error.connection_invalidated:
                raise OutcomeUnknown(
                    f"the connection to {shown(self.url)} broke during a commit, so it is not known whether "
                    "it took place; check that the server runs, then repeat"
                ) from error
            raise


_AFTER: Final = "after commit"
_NOTED: Final = "noted"
_FILE: Final = "file"


def _nobody() -> None:
    pass


def tell_after(conn: sa.Connection) -> None:
    """Call `noted` of the `Database` after it has committed this transaction, which adds events."""
    after_commit(conn, conn.info.get(_NOTED, _nobody))


def after_commit(conn: sa.Connection, fn: Callable[..., object], *args: object) -> None:
    """Call `fn(*args)` after a `Database` has committed this transaction; equal calls once. An error is only logged."""
    conn.info.setdefault(_AFTER, {})[(fn, *args)] = partial(fn, *args)


class KeptConnection:
    """A connection that stays checked out between transactions, which take turns; after an error it is returned.

    Checking a connection out and in costs as much as an insert.
    """

    def __init__(self, engine: sa.Engine, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        self._conn: sa.Connection | None = None

    def __enter__(self) -> sa.Connection:
        if not self._turn.acquire(timeout=self._timeout_s):
            raise exc.TimeoutError("the connection was not free in time")
        try:
            if self._conn is None:
                self._conn = self._engine.connect()
        except BaseException:
            self._turn.release()
            raise
        return self._conn

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        try:
            if kind is not None:
                self._give_back()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Wait for the current transaction, then close the connection."""
        with self._turn:
            self._give_back()

    def _give_back(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()


class Writer:
    """Runs functions in one thread, in the given order.

    `run_in_executor` would take 0.07 ms more, because it uses two futures; a short command pays that twice. The first
    call starts the thread. It is a daemon, so a process without `close` can exit; that rolls back its transaction.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._giving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn()` in the caller's context. A cancelled `fn` is done or not begun.

        Raises:
            RuntimeError: The writer was closed before `fn` began.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._giving:
            if self._closed:
                _refuse()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(partial(self._perform, result, contextvars.copy_context(), fn))
        return await result

    def close(self) -> None:
        """Wait for the running function; queued functions never begin."""
        with self._giving:
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # and with it the result

    def _perform(self, result: asyncio.Future[Any], context: contextvars.Context, fn: Callable[[], Any]) -> None:
        if result.cancelled():
            return
        try:
            tell = partial(result.set_result, context.run(_refuse if self._closed else fn))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            tell = partial(result.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            result.get_loop().call_soon_threadsafe(_unless_done, result, tell)


def _unless_done(result: asyncio.Future[Any], tell: Callable[[], None]) -> None:
    if not result.done():
        tell()


def _refuse() -> NoReturn:
    raise RuntimeError("the database is closed")


_WAL_ATTEMPTS: Final = 100
CONNECTING: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "target_session_attrs": "read-write",
}
"""So that a server that lost power is noticed after 25 s; its connections would look alive for many minutes. A standby
at the address is an outage, because with connections to it each write would fail until they end."""
_PREPARED_AFTER: Final = 5
"""So many executions of a statement on a connection; psycopg's own default."""
_IDLE_MS: Final = 15_000
"""After this time a process that is paused inside a transaction loses its locks."""


class SqliteFile:
    """The file of a SQLite database. It is created once; later its absence is an outage, no reason for a new one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._made = False

    def identity(self) -> tuple[int, int] | None:
        """What tells it from another file at its path; None if nothing is there."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def connect(self, timeout_s: float, prepare: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
        """A connection, created with what `prepare` does to it.

        Raises:
            DatabaseUnreachable: The file cannot be created.
            sqlite3.Error: It cannot be opened.
        """
        if not self._made:
            _create_file(self._path)
            self._made = True
        # isolation_level None: the engine's `begin` event begins transactions, not the module.
        there = f"{Path(self._path).absolute().as_uri()}?mode=rw"
        conn = sqlite3.connect(there, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        try:
            conn.execute("PRAGMA foreign_keys = ON")
            conn.execute("PRAGMA synchronous = FULL")
            conn.create_function(rows.WALL_CLOCK, 0, lambda: time.time())  # noqa: PLW0108 - tests set that clock
            prepare(conn)
        except sqlite3.Error:
            conn.close()
            raise
        return conn

    def note(self, _raw: object, record: Any) -> None:
        """Note for a new connection which file it has open."""
        record.info[_FILE] = self.identity()


def sqlite_engines(
    url: sa.URL, file: SqliteFile, *, readers: int, lock_timeout_s: float
) -> tuple[sa.Engine, sa.Engine]:
    """The engines of one writing connection and of `readers` read-only connections."""
    writer = _sqlite_engine(url, partial(file.connect, lock_timeout_s, _use_wal), 1, lock_timeout_s)
    reader = _sqlite_engine(url, partial(file.connect, lock_timeout_s, _only_read), readers, lock_timeout_s)
    event.listen(writer, "begin", partial(_begin, "BEGIN IMMEDIATE"))
    event.listen(reader, "begin", partial(_begin, "BEGIN"))
    for engine in (writer, reader):
        event.listen(engine, "connect", file.note)
    return writer, reader


def _postgres_engines(url: sa.URL, timeout_s: float) -> tuple[sa.Engine, sa.Engine, sa.Engine]:
    """Three views of one pool: of transactions that write, of READ ONLY ones, and of DBOS.

    Its connections keep no state between transactions: a pooler may give each to another server process. So each
    transaction has its settings in the message that begins it, and statements are prepared only where no pooler is.

    A ping before each use would be a transaction of its own. A connection is pinged only if there is something to read
    from it, as the end that the server sent, and replaced if it is broken. What breaks later is repeated.
    """
    engine = sa.create_engine(
        url,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=timeout_s,
        isolation_level="AUTOCOMMIT",  # `begin` begins transactions, not the driver
        hide_parameters=True,
        connect_args={**CONNECTING, "prepare_threshold": None},
    )
    event.listen(engine, "connect", _prepare_without_pooler)
    event.listen(engine, "checkout", partial(_ping_if_doubtful, engine.dialect))
    event.listen(engine, "begin", _begin_on_postgres)
    writer = engine.execution_options(lock_timeout_ms=int(timeout_s * 1000))
    return writer, writer.execution_options(postgresql_readonly=True), engine


def pooled(conn: sa.Connection) -> bool:
    """Whether a pooler stands before Postgres: it shows clients another process than the one that serves them."""
    return _lent(conn.connection.dbapi_connection)


def _lent(raw: Any) -> bool:
    return raw.execute("SELECT pg_backend_pid()").fetchone() != (raw.info.backend_pid,)


def _prepare_without_pooler(raw: Any, _record: object) -> None:
    if not _lent(raw):
        raw.prepare_threshold = _PREPARED_AFTER


def _begin_on_postgres(conn: sa.Connection) -> None:
    options = conn.get_execution_options()
    level = options.get("isolation_level")
    if level == "AUTOCOMMIT":  # one statement of DBOS, which needs no transaction
        return
    begin = [f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}"]
    if (lock_ms := options.get("lock_timeout_ms")) is not None:
        begin.insert(0, f"SET LOCAL lock_timeout = {lock_ms}")
    if level is None:
        access = "ONLY" if options.get("postgresql_readonly") else "WRITE"
        begin.insert(0, f"BEGIN ISOLATION LEVEL READ COMMITTED READ {access}")
    conn.exec_driver_sql("; ".join(begin))


def _ping_if_doubtful(dialect: sa.Dialect, raw: Any, _record: object, _proxy: object) -> None:
    try:
        if _readable(raw.fileno()):
            dialect.do_ping(raw)
    except dialect.loaded_dbapi.Error as error:
        raise exc.DisconnectionError(str(error)) from error


def _readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


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


def _only_read(conn: sqlite3.Connection) -> None:
    conn.execute("PRAGMA query_only = ON")


def _create_file(path: str) -> None:
    # Never open an existing file: closing its descriptor would drop this process's SQLite locks.
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
    # The file stores the mode. Changing it fails with "locked" at once, without the busy timeout.
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
    # Without SQLAlchemy's statement machinery, because every transaction pays for it.
    raw: Any = conn.connection.dbapi_connection
    raw.execute(statement)
