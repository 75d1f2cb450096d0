"""One function is one transaction, whatever breaks; migrations make what `tables.py` says: on both databases."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from shellback.storage import db, schema
from shellback.storage.db import ATTEMPTS, CONNECTIONS, Database
from shellback.storage.errors import (
    DatabaseLocked,
    DatabaseUnreachable,
    DatabaseUnsupported,
    OutcomeUnknown,
    SchemaBehind,
    SchemaTooNew,
)
from shellback.storage.rows import insert_new, lock_row
from shellback.storage.schema import SchemaState
from shellback.storage.tables import calls, conversations, metadata
from tests.databases import PostgresServer, at_once
from tests.supervisors import cancelled, run_to_end


def add_call(conn: sa.Connection, key: str) -> None:
    conn.execute(calls.insert().values(call_key=key, session_id="s", tool="t", created_at=1.0))


def add_conversation(conn: sa.Connection) -> None:
    conn.execute(conversations.insert().values(id="c1", host_id="h", created_at=1.0))


def call_keys(conn: sa.Connection) -> list[str]:
    return list(conn.execute(sa.select(calls.c.call_key).order_by(calls.c.call_key)).scalars())


def fail_after_adding(conn: sa.Connection, key: str) -> None:
    add_call(conn, key)
    raise OSError("the rest failed")


class Slow:
    """A write that goes on until it is told to end."""

    def __init__(self) -> None:
        self._running, self.go_on = threading.Event(), threading.Event()

    def _write(self, conn: sa.Connection) -> None:
        add_call(conn, "running")
        self._running.set()
        self.go_on.wait()

    async def begun(self, database: Database) -> asyncio.Task[None]:
        task = asyncio.create_task(database.write(self._write))
        await asyncio.to_thread(self._running.wait)
        return task


# One function, one transaction


def test_what_a_function_writes_is_committed_when_it_returns(database: Database) -> None:
    async def run() -> None:
        await database.write(add_call, "k1")
        assert await database.read(call_keys) == ["k1"]

    asyncio.run(run())
    database.write_now(add_call, "k2")
    assert database.read_now(call_keys) == ["k1", "k2"]


def test_a_function_that_raises_leaves_nothing_and_its_error_passes(database: Database) -> None:
    with pytest.raises(OSError, match="the rest failed"):
        asyncio.run(database.write(fail_after_adding, "k1"))
    with pytest.raises(OSError, match="the rest failed"):
        database.write_now(fail_after_adding, "k1")
    assert database.read_now(call_keys) == []


def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises((exc.DBAPIError, DatabaseUnreachable), match=r"(?i)read-?only"):
        database.read_now(add_call, "k1")
    assert database.read_now(call_keys) == []


def test_a_cancelled_write_that_runs_is_done_and_one_that_waits_is_never_begun(sqlite: Database) -> None:
    slow = Slow()

    async def run() -> None:
        first = await slow.begun(sqlite)
        second = asyncio.create_task(sqlite.write(add_call, "waiting"))
        await asyncio.sleep(0)
        for task in (first, second):
            await cancelled(task)
        slow.go_on.set()
        await sqlite.write(add_call, "after")

    asyncio.run(run())
    assert sqlite.read_now(call_keys) == ["after", "running"]


def test_closing_lets_a_running_transaction_end(database_url: str) -> None:
    database = Database(database_url)
    slow = Slow()

    async def run() -> None:
        task = await slow.begun(database)
        closing = asyncio.create_task(asyncio.to_thread(database.close))
        slow.go_on.set()
        await closing
        await task

    asyncio.run(run())
    again = Database(database_url)
    assert again.read_now(call_keys) == ["running"]
    again.close()


def test_closing_refuses_writes_that_wait_for_their_turn_and_later_ones(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    slow = Slow()

    async def run() -> None:
        first = await slow.begun(database)
        second = asyncio.create_task(database.write(add_call, "waiting"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(database.close))
        while True:
            try:
                await asyncio.wait_for(database.write(add_call, "late"), 0.01)
            except TimeoutError:
                continue  # not closing yet: it waited, and was taken back
            except RuntimeError:
                break
        slow.go_on.set()
        await closing
        await first
        with pytest.raises(RuntimeError, match="closed"):
            await second

    asyncio.run(run())
    again = Database(sqlite_url)
    assert again.read_now(call_keys) == ["running"]
    again.close()


def test_writes_of_several_loops_share_the_thread_and_see_their_own_context(sqlite: Database) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    def add_own(conn: sa.Connection, number: int) -> str:
        add_call(conn, f"{name.get()}{number}")
        return threading.current_thread().name

    async def run(own: str) -> set[str]:
        name.set(own)
        return set(await asyncio.gather(*(sqlite.write(add_own, number) for number in range(3))))

    threads: set[str] = set()

    def loop_of(own: str) -> None:
        threads.update(asyncio.run(run(own)))

    assert at_once(lambda: loop_of("a"), lambda: loop_of("b")) == [None] * 2
    assert threads == {"db-write"}
    assert sqlite.read_now(call_keys) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_two_that_read_then_write_the_same_row_lose_no_update(database: Database, database_url: str) -> None:
    other = Database(database_url)  # with locks of its own, as another process has

    def count_up(conn: sa.Connection) -> None:
        row = lock_row(conn, conversations, "c1")
        assert row is not None
        conn.execute(conversations.update().values(epoch=row["epoch"] + 1))

    def count_up_often() -> None:
        for _ in range(20):
            other.write_now(count_up)

    async def run() -> None:
        await asyncio.gather(*(database.write(count_up) for _ in range(40)))

    database.write_now(add_conversation)
    assert at_once(count_up_often, count_up_often, lambda: asyncio.run(run())) == [None] * 3
    other.close()
    row = database.read_now(lambda conn: conn.execute(sa.select(conversations.c.epoch)).scalar_one())
    assert row == 80


def test_a_row_is_new_once(database: Database) -> None:
    row = {"call_key": "k1", "session_id": "s", "tool": "t", "created_at": 1.0}
    assert database.write_now(insert_new, calls, row)
    assert not database.write_now(insert_new, calls, row | {"tool": "other"})


# SQLite


def test_a_sqlite_file_is_ours_alone_in_wal_mode_and_synced_in_full(tmp_path: Path) -> None:
    path = tmp_path / "state" / "shellback.db"
    database = Database(f"sqlite:///{path}")

    def pragmas(conn: sa.Connection) -> tuple[object, object]:
        return tuple(conn.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous"))  # type: ignore[return-value]

    assert database.write_now(pragmas) == ("wal", 2)
    assert database.read_now(pragmas) == ("wal", 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.close()


def test_a_file_that_was_moved_is_an_outage_until_it_is_back_and_gets_no_write(sqlite: Database) -> None:
    file = Path(str(sqlite.url.database))
    elsewhere = file.with_name("elsewhere")
    sqlite.write_now(add_call, "before")
    sqlite.read_now(call_keys)
    file.rename(elsewhere)
    with pytest.raises(DatabaseUnreachable, match="check the path"):
        sqlite.write_now(add_call, "meanwhile")
    with pytest.raises(DatabaseUnreachable, match="check the path"):
        sqlite.read_now(call_keys)
    assert not file.exists()
    elsewhere.rename(file)
    sqlite.write_now(add_call, "after")
    assert sqlite.read_now(call_keys) == ["after", "before"]


def test_readers_go_on_beside_an_open_write(sqlite: Database) -> None:

    def write(conn: sa.Connection) -> list[str]:
        add_call(conn, "k1")
        return sqlite.read_now(call_keys)

    assert sqlite.write_now(write) == []


# Postgres


def test_a_broken_connection_is_replaced_and_the_transaction_run_again(postgres: Database, postgres_url: str) -> None:
    runs: list[int] = []

    def write(conn: sa.Connection) -> None:
        add_call(conn, "k1")
        runs.append(1)
        if len(runs) == 1:
            end_backend(postgres_url, conn)
            add_call(conn, "k2")

    postgres.write_now(write)
    assert len(runs) == 2
    assert postgres.read_now(call_keys) == ["k1"]


def test_a_connection_that_breaks_in_the_commit_is_not_run_again(postgres: Database, postgres_url: str) -> None:
    runs: list[int] = []

    def write(conn: sa.Connection) -> None:
        runs.append(1)
        add_call(conn, "k1")
        end_backend(postgres_url, conn)

    with pytest.raises(OutcomeUnknown, match="not known"):
        postgres.write_now(write)
    assert len(runs) == 1
    postgres.write_now(add_call, "k2")


def test_idle_connections_that_broke_are_replaced_unnoticed(postgres: Database, postgres_url: str) -> None:
    postgres.write_now(lambda conn: end_backend(postgres_url, conn, later=True))
    postgres.write_now(add_call, "k1")
    assert postgres.read_now(call_keys) == ["k1"]


def test_a_server_that_ends_all_idle_connections_fails_no_transaction(postgres: Database, postgres_url: str) -> None:
    barrier = threading.Barrier(CONNECTIONS)

    def together(conn: sa.Connection) -> int:
        barrier.wait()
        return conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()

    async def all_of_them() -> set[int]:
        return set(await asyncio.gather(*(postgres.write(together) for _ in range(CONNECTIONS))))

    pids = asyncio.run(all_of_them())
    assert len(pids) == CONNECTIONS
    with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as other:
        for pid in pids:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    async def each() -> None:
        await asyncio.gather(*(postgres.write(add_call, f"k{number}") for number in range(CONNECTIONS)))

    asyncio.run(each())
    assert len(postgres.read_now(call_keys)) == CONNECTIONS


@pytest.fixture
def pinged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A ping for each item."""
    pings: list[object] = []
    ping = PGDialect_psycopg.do_ping

    def counted(self: PGDialect_psycopg, raw: Any) -> bool:
        pings.append(raw)
        return ping(self, raw)

    monkeypatch.setattr(PGDialect_psycopg, "do_ping", counted)
    return pings


@pytest.fixture
def of_dbos(postgres: Database) -> sa.Engine:
    assert postgres.dbos_engine is not None
    return postgres.dbos_engine


def backend(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()


def test_the_pool_of_dbos_pings_no_connection_that_was_just_used(of_dbos: sa.Engine, pinged: list[object]) -> None:
    assert len({backend(of_dbos) for _ in range(5)}) == 1
    assert not pinged


def test_the_pool_of_dbos_replaces_connections_that_the_server_ended(of_dbos: sa.Engine, postgres_url: str) -> None:
    with of_dbos.connect() as one, of_dbos.connect() as two:
        pids = {conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one() for conn in (one, two)}
    with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as other:
        for pid in pids:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with of_dbos.connect() as one, of_dbos.connect() as two:
        now = {conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one() for conn in (one, two)}
    assert not pids & now


def test_transactions_bring_their_settings_and_leave_nothing_in_a_session_that_a_pooler_lends(pooled_url: str) -> None:
    def look(conn: sa.Connection) -> tuple[str, ...]:
        names = ("lock_timeout", "idle_in_transaction_session_timeout")
        return tuple(conn.execute(sa.text(f"SHOW {name}")).scalar_one() for name in names)

    some = [Database(pooled_url), Database(pooled_url)]
    of_dbos = some[0].dbos_engine
    assert of_dbos is not None
    for _ in range(10):
        for one in some:
            assert one.read_now(look) == one.write_now(look) == ("30s", "15s")
        with of_dbos.begin() as conn:
            assert look(conn) == ("0", "15s")
    with psycopg.connect(pooled_url, prepare_threshold=None, autocommit=True) as other:
        for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
            assert other.execute(f"SHOW {name}").fetchone() == ("0",)
        assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    for one in some:
        one.close()


def test_connections_end_when_their_server_is_gone_without_a_word(postgres: Database) -> None:
    def look(conn: sa.Connection) -> dict[str, str]:
        return conn.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]

    used = postgres.read_now(look)
    assert {name: used.get(name) for name in db.CONNECTING} == {name: str(it) for name, it in db.CONNECTING.items()}


def test_what_postgres_itself_is_asked_often_is_prepared(postgres: Database) -> None:
    prepared = sa.text("SELECT count(*) FROM pg_prepared_statements")
    for _ in range(20):
        postgres.read_now(lambda conn: conn.execute(sa.select(1)).scalar_one())
    assert postgres.read_now(lambda conn: conn.execute(prepared).scalar_one()) > 0


def test_a_deadlock_is_run_again(postgres: Database) -> None:
    barrier = threading.Barrier(2)
    runs: list[str] = []

    def cross(conn: sa.Connection, first: str, second: str) -> None:
        runs.append(first)
        lock_row(conn, conversations, first)
        if len(runs) <= 2:
            barrier.wait()
        lock_row(conn, conversations, second)
        conn.execute(conversations.update().values(epoch=conversations.c.epoch + 1))

    both = [{"id": key, "host_id": "h", "created_at": 1.0} for key in ("a", "b")]
    postgres.write_now(lambda conn: conn.execute(conversations.insert(), both))
    other = threading.Thread(target=postgres.write_now, args=(cross, "a", "b"))
    other.start()
    postgres.write_now(cross, "b", "a")
    other.join()
    assert len(runs) == 3
    epochs = postgres.read_now(lambda conn: conn.execute(sa.select(conversations.c.epoch)).scalars().all())
    assert epochs == [2, 2]


def test_a_transaction_that_keeps_being_aborted_ends_after_bounded_attempts(postgres: Database) -> None:
    runs: list[int] = []

    def abort(conn: sa.Connection) -> None:
        runs.append(1)
        conn.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")

    with pytest.raises(DatabaseLocked):
        postgres.write_now(abort)
    assert len(runs) == ATTEMPTS


def test_a_lock_that_is_never_free_is_named(postgres: Database, postgres_url: str) -> None:
    database = Database(postgres_url, lock_timeout_s=0.2)

    def hold(conn: sa.Connection) -> None:
        lock_row(conn, conversations, "c1")
        with pytest.raises(DatabaseLocked, match="too long"):
            database.write_now(lock_row, conversations, "c1")

    database.write_now(add_conversation)
    postgres.write_now(hold)
    database.close()


def end_backend(url: str, conn: sa.Connection, *, later: bool = False) -> None:
    """Break the connection from the server's side; `later`: as soon as its transaction has ended."""
    pid = conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    if later:
        conn.execute(sa.text("SET SESSION idle_session_timeout = 1"))
        return
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


# Errors that people read


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://u:hunter2@h/d", "sqlite://", "sqlite:///:memory:", "postgresql://u:hunter2@h:port/d"],
)
def test_a_url_that_we_cannot_use_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(DatabaseUnsupported) as caught:
        Database(url)
    assert "hunter2" not in str(caught.value)
    assert "sqlite:///" in str(caught.value)


def test_a_statement_that_fails_does_not_show_its_values(database: Database) -> None:
    database.write_now(add_call, "a-secret")
    with pytest.raises(exc.IntegrityError) as caught:
        database.write_now(add_call, "a-secret")
    assert "'a-secret'" not in str(caught.value)


# The state directory


ROOT = Path(__file__).parents[3]


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


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


@pytest.mark.parametrize("password", ["", ":hush-wrong"])
def test_a_rejected_login_says_so_without_the_password(postgres_server: PostgresServer, password: str) -> None:
    access = postgres_server.directory / "data/pg_hba.conf"
    before = access.read_text()
    postgres_server.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        access.write_text(f"local all guarded scram-sha-256\n{before}")
        postgres_server.execute("SELECT pg_reload_conf()")
        url = f"postgresql://guarded{password}@/postgres?host={postgres_server.directory}"
        with pytest.raises(
            DatabaseUnreachable, match=r"^Postgres rejected the login to .*check user and password"
        ) as caught:
            schema.check(Database(url))
        assert "hush" not in str(caught.value)
    finally:
        access.write_text(before)
        postgres_server.execute("SELECT pg_reload_conf()")
        postgres_server.execute("DROP ROLE guarded")


def test_migrating_leaves_logging_as_it_was(empty_url: str) -> None:
    def logs() -> object:
        root, alembic, ours = map(logging.getLogger, ("", "alembic", "shellback"))
        return root.level, list(root.handlers), alembic.level, ours.disabled

    before = logs()
    schema.migrate(empty_url)
    assert logs() == before


def test_the_tables_can_be_taken_back(database: Database, database_url: str) -> None:
    done = run_to_end(sys.executable, "-m", "alembic", "-x", f"url={database_url}", "downgrade", "base", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not set(metadata.tables) & set(database.read_now(lambda conn: sa.inspect(conn).get_table_names()))
    assert schema.check(database) is SchemaState.BEHIND
