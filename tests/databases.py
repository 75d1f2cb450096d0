"""Databases for tests: SQLite files and a private Postgres, each test with a migrated one of its own.

Postgres is started from local binaries, as an unprivileged uid when we are root, on a unix socket only.
Missing binaries skip; with EXEC_TESTS_STRICT=1 they fail.
"""

from __future__ import annotations

import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import psycopg
import pytest
import sqlalchemy as sa

from shellback.exec.supervisor.process import procfs
from shellback.storage import schema
from shellback.storage.db import Database

START_TIMEOUT_S = 30.0
TEMPLATE = "shellback_template"
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

# The shell ends its own, unreaped child and tidies up when our end of the pipe closes, however we end.
KEEPER = 'directory=$1; shift; "$@" & read -r _; kill -QUIT $!; wait $!; rm -rf "$directory"'


@dataclass
class PostgresServer:
    """A private cluster; the socket's directory is its address. A `durable` one survives `kill`."""

    directory: Path
    binaries: Path
    durable: bool = False
    connections: int = 100
    identity: dict[str, Any] = field(default_factory=dict[str, Any])
    numbers: Iterator[int] = field(default_factory=itertools.count)
    keepers: list[subprocess.Popen[Any]] = field(default_factory=list[subprocess.Popen[Any]])

    def start(self) -> None:
        """Run it; returns when it answers."""
        options = [
            f"unix_socket_directories={self.directory}",
            "listen_addresses=",
            *(() if self.durable else ("fsync=off", "full_page_writes=off")),
            f"max_connections={self.connections}",
            "shared_buffers=32MB",
        ]
        command = [self.binaries / "postgres", "-D", self.directory / "data"]
        with (self.directory / "log").open("ab") as log:
            self.keepers.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", KEEPER, "sh", self.directory, *command, *(f"-c{option}" for option in options)],
                    cwd=self.directory,
                    env=ENVIRONMENT,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **self.identity,
                )
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    log = (self.directory / "log").read_text(errors="replace")
                    pytest.fail(f"Postgres does not answer ({error}):\n{log}", pytrace=False)
                time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Of the process that makes all others."""
        return int((self.directory / "data" / "postmaster.pid").read_text().split("\n", 1)[0])

    def kill(self) -> None:
        """Kill it and all its processes, as the loss of power would; `start` runs it again."""
        main = self.pid
        pidfd = os.pidfd_open(main)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)  # it makes no more of them
        children = [os.pidfd_open(pid) for pid in procfs.children(main)]
        for each in (*children, pidfd):
            signal.pidfd_send_signal(each, signal.SIGKILL)
        for each in (*children, pidfd):
            select.select([each], [], [])
            os.close(each)
        # A zombie to the shell that started it, and so a living holder of these to the next one.
        for held in (self.directory / "data" / "postmaster.pid", self.directory / ".s.PGSQL.5432.lock"):
            held.unlink(missing_ok=True)

    def stop(self) -> None:
        """End it; its directory goes."""
        for keeper in reversed(self.keepers):
            keeper.communicate(timeout=START_TIMEOUT_S)

    def url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.directory}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres", autocommit=True) as conn:
            conn.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def create(self, template: str = "template0") -> str:
        """The name of a new database."""
        name = f"test_{next(self.numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@dataclass
class Pooler:
    """A running pgbouncer; the directory is its address."""

    directory: Path
    process: subprocess.Popen[str]
    start: Callable[[], subprocess.Popen[str]]

    def kill(self) -> None:
        """Kill it; `restart` runs it again."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill it, and run it again at its address; returns when it serves."""
        self.kill()
        self.process = self.start()


def pgbouncer() -> str | None:
    """The program, if it is installed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pooling(server: PostgresServer, address: Path | None = None, *, workers: int = 1) -> Generator[Pooler]:
    """A pgbouncer that pools transactions to a database of `server`, or of what is at `address`.

    It does so on five connections for each of so many workers.
    """
    program = pgbouncer()
    if program is None:
        unavailable("pgbouncer is not installed")
    directory = Path(tempfile.mkdtemp(prefix="sbpb", dir="/tmp"))
    try:
        settings = f"""
[databases]
* = host={address or server.directory} user=postgres
[pgbouncer]
unix_socket_dir = {directory}
listen_addr =
listen_port = 5432
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = {5 * workers}
max_client_conn = 500
server_login_retry = 1
"""
        (directory / "ini").write_text(settings)
        if server.identity:
            os.chown(directory, server.identity["user"], server.identity["group"])
        start = partial(_pgbouncer, program, directory, server)
        pooler = Pooler(directory, start(), start)
        try:
            yield pooler
        finally:
            pooler.kill()  # a test may have stopped it
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _pgbouncer(program: str, directory: Path, server: PostgresServer) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [program, directory / "ini"],
        cwd=directory,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        **server.identity,
    )
    assert process.stderr is not None
    said = ""
    try:
        while "process up" not in said:
            said = process.stderr.readline()
            if not said:
                pytest.fail("pgbouncer does not start", pytrace=False)
    except BaseException:
        process.kill()
        raise
    threading.Thread(target=_emptied, args=(process.stderr,), daemon=True).start()  # so that it never waits for us
    return process


def _emptied(pipe: IO[str]) -> None:
    with pipe:
        pipe.read()


def wait_until_locked_out(database: Database, thread: threading.Thread) -> None:
    """Return when some connection to this Postgres database waits for a lock, or the thread has ended."""
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while thread.is_alive() and not database.read_now(lambda conn: conn.execute(query).scalar_one()):
        time.sleep(0.01)


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Run the actions at the same moment, each in a thread; what each returned or raised."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - the test judges it
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where nothing may be skipped."""
    if os.environ.get("EXEC_TESTS_STRICT") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def unless(refusal: str | None) -> None:
    """Go on where nothing refuses; else as `unavailable`."""
    if refusal is not None:
        unavailable(refusal)


def postgres_binaries() -> Path | None:
    """The newest directory that has initdb and postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


class NoPostgres(Exception):
    """Raised where no private Postgres can be started; says why."""


def unprivileged() -> dict[str, Any]:
    """How `subprocess` runs a program that refuses root."""
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError:
            raise NoPostgres(f"initdb needs a user name, and uid {os.geteuid()} has none") from None
        return {}
    try:
        account = pwd.getpwuid(65534)
    except KeyError:
        account = pwd.getpwnam("postgres")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A Postgres of this test process alone, its template database migrated; gone at the end."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(serving_postgres())
        except NoPostgres as error:
            unavailable(str(error))
        yield server


@contextmanager
def serving_postgres(*, durable: bool = False, connections: int = 100) -> Generator[PostgresServer]:
    """A private Postgres, its template database migrated; gone at the end.

    Raises:
        NoPostgres: Its programs are missing, or it cannot be run as this user.
    """
    binaries = postgres_binaries()
    if binaries is None:
        raise NoPostgres("no Postgres: neither /usr/lib/postgresql/*/bin nor PATH has initdb and postgres")
    server = PostgresServer(Path(), binaries, durable, connections, unprivileged())
    with _made(server, "initdb", "-A", "trust", "-E", "UTF8", "--locale=C"):
        server.execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        schema.migrate(server.url(TEMPLATE))
        yield server


@contextmanager
def following(primary: PostgresServer) -> Generator[PostgresServer]:
    """A standby of `primary`, which from now on commits nothing that the standby does not have; gone at the end."""
    standby = replace(primary, keepers=[])
    with _made(standby, "pg_basebackup", "-R", "-c", "fast", "-h", primary.directory):
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        yield standby


@contextmanager
def _made(server: PostgresServer, program: str, *options: str | Path) -> Generator[None]:
    """Run the server in a new directory, with the data that a program makes there."""
    # Short, because a unix socket's path has room for 107 bytes.
    server.directory = Path(tempfile.mkdtemp(prefix="sbpg", dir="/tmp"))
    try:
        if server.identity:
            os.chown(server.directory, server.identity["user"], server.identity["group"])
        subprocess.run(
            [server.binaries / program, "-D", server.directory / "data", "-U", "postgres", "--no-sync", *options],
            cwd=server.directory,
            env=ENVIRONMENT,
            check=True,
            stdout=subprocess.DEVNULL,
            **server.identity,
        )
        try:
            server.start()
            yield
        finally:
            server.stop()
    finally:
        shutil.rmtree(server.directory, ignore_errors=True)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    schema.migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite database of this test."""
    path = tmp_path / "shellback.db"
    shutil.copyfile(sqlite_template, path)
    path.chmod(0o600)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated Postgres database of this test, dropped after it."""
    name = postgres_server.create(TEMPLATE)
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A Postgres database without a table, dropped after the test."""
    name = postgres_server.create()
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test: the test runs on SQLite and on Postgres."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite database whose file does not exist yet."""
    return f"sqlite:///{tmp_path}/empty/shellback.db"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database without a table, of either kind."""
    return request.getfixturevalue(f"empty_{request.param}_url")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A `Database` on `database_url`, closed after the test."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    """As `database`, on SQLite only."""
    opened = Database(sqlite_url)
    yield opened
    opened.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    """As `database`, on Postgres only."""
    opened = Database(postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def pooled_url(postgres_url: str, postgres_server: PostgresServer) -> Iterator[str]:
    """As `postgres_url`, by way of a pgbouncer that pools transactions on five connections."""
    with pooling(postgres_server) as pooler:
        yield postgres_url.replace(str(postgres_server.directory), str(pooler.directory))
