"""Through a pgbouncer that pools transactions: the main job goes on, also after the death of its worker."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import SessionState
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable
from shellback.work.hosts import roster
from tests.acceptance.test_two_workers import LEASE_S, Pair
from tests.commands import assert_refused, shellback, told
from tests.databases import TEMPLATE, NoPostgres, PostgresServer, following, pooling, serving_postgres, unavailable
from tests.stage import Stage, stage

LAPSED = "was not renewed in time"
COMMAND = "echo nonce >> nonce.txt; until [ -e go ]; do sleep 0.1; done; exit 7"


def said(loop: Stage) -> str:
    return (loop.home / "worker.log").read_text()


def test_a_process_wakes_its_agent_and_a_turn_outlives_its_worker(pooled_url: str) -> None:
    with stage(pooled_url, FOREGROUND_TIMEOUT="120") as loop:
        pair = Pair(loop)
        a = pair.hire("a")
        ended = loop.started("$ exit 3 &", "exit 3")
        loop.until("the end is told", lambda: "exit code 3" in "".join(loop.answers()))
        assert loop.callbacks() == [f"EXEC_CALLBACK:{ended.id}"]
        loop.send(f"$ {COMMAND}", "c2")
        loop.approve("c2")
        loop.session("exit 7")
        pair.hire("b")
        a.kill()
        item = "APPROVAL:c2:1"
        loop.until("b has the turn", lambda: pair.executor(item) == "b")
        pair.let_it_end()
        loop.until("it is answered", lambda: "exit code 7" in "".join(loop.answers(conversation="c2")))
        assert loop.ended(item)["executions"] == 2
        assert (loop.workspace / "nonce.txt").read_text() == "nonce\n"
        assert [one.state for one in loop.sessions()] == [SessionState.EXITED] * 2
        assert said(loop).count("is a pooler and DATABASE_DIRECT_URL is not set") == 2, (
            "each that listens for the host says it once"
        )


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
def test_a_busy_worker_has_at_most_five_connections(pooled: bool, request: pytest.FixtureRequest) -> None:
    direct = request.getfixturevalue("postgres_url")
    url = request.getfixturevalue("pooled_url") if pooled else direct
    theirs = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'")
    with stage(direct) as loop:
        loop.hire(DATABASE_URL=url, DATABASE_DIRECT_URL=direct if pooled else "", PGAPPNAME="worker")
        for number in range(40):
            loop.send(f"$ echo {number}", f"c{number}")
        found: list[int] = []

        def all_ask() -> bool:
            found.extend(loop.scalars(theirs))
            return len(loop.requests()) == 40

        loop.until("all turns are over", all_ask)
        assert 1 < max(found) <= 5


def test_tables_are_changed_on_postgres_itself(pooled_url: str, postgres_url: str) -> None:
    with stage(pooled_url) as loop:
        assert_refused(
            shellback(loop, "migrate"), "by way of the pooler", "name Postgres itself in DATABASE_DIRECT_URL"
        )
    with stage(pooled_url, DATABASE_DIRECT_URL=postgres_url) as loop:
        assert "current -> current" in told(loop, "migrate").stdout


@pytest.mark.parametrize("url", ["postgres_url", "pooled_url"])
def test_a_worker_that_was_paused_while_another_took_its_name_changes_nothing_and_stops(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LEASE_S", float(LEASE_S))
    with stage(request.getfixturevalue(url), FOREGROUND_TIMEOUT="120") as loop:
        pair = Pair(loop)
        first = pair.hire("a", LEASE_S)
        loop.send(f"$ {COMMAND}")
        loop.approve()
        loop.session("exit 7")
        # As in a copy of the state directory: no lock there says that the first one lives.
        (loop.home / "executors").rename(loop.home / "elsewhere")
        refused = pair.apply("a", LEASE_S)
        assert refused.process.wait(60) == 2
        assert (
            f"a worker with the name {loop.where.host_id + '.a'!r} is already running: process {first.process.pid}"
            in said(loop)
        )

        first.process.send_signal(signal.SIGSTOP)
        loop.until("its lease has ended", lambda: pair.standing()["a"] == "silent")
        second = pair.hire("a", LEASE_S)
        loop.until("its turn is begun again", lambda: (loop.turn("APPROVAL:c1:1") or {})["executions"] == 2)
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(60) == 2
        assert "is no longer held: this worker stops: process" in said(loop)
        pair.let_it_end()
        loop.until("it is answered", lambda: len(loop.answers()) == 1 and loop.at_rest())
        assert loop.ended("APPROVAL:c1:1")["executions"] == 2
        pair.assert_started_once()
        assert second.process.poll() is None
        assert list(pair.standing().values()) == ["alive"]


class Cluster:
    """A primary and a standby that has all that is committed; `address` leads to the primary."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, folder: Path) -> None:
        self.primary, self._standby = primary, standby
        self.name = primary.create(TEMPLATE)
        folder.chmod(0o755)
        self.address = folder / "primary"
        self.address.symlink_to(primary.directory)

    @property
    def both(self) -> str:
        """The URL that names both, the standby first."""
        return f"{self.url(self._standby.directory)}&host={self.primary.directory}"

    def url(self, directory: Path) -> str:
        return self.primary.url(self.name).replace(str(self.primary.directory), str(directory))

    def fail_over(self) -> None:
        self.promote()
        self.lead_to_the_standby()

    def promote(self) -> None:
        self._standby.execute("SELECT pg_promote()")

    def lead_to_the_standby(self) -> None:
        next_one = self.address.with_suffix(".next")
        next_one.symlink_to(self._standby.directory)
        next_one.rename(self.address)


@contextmanager
def cluster() -> Generator[Cluster]:
    try:
        with (
            serving_postgres(durable=True) as primary,
            following(primary) as standby,
            TemporaryDirectory(prefix="sbpg", dir="/tmp") as folder,  # its path is part of a socket's
        ):
            yield Cluster(primary, standby, Path(folder))
    except NoPostgres as error:
        unavailable(str(error))


@pytest.mark.parametrize("way", ["direct", "pooled", "both named"])
def test_a_worker_goes_on_after_a_failover_that_takes_longer_than_its_lease(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LEASE_S", float(LEASE_S))
    with cluster() as postgres, ExitStack() as stack:
        url = postgres.both if way == "both named" else postgres.url(postgres.address)
        loop = stack.enter_context(stage(url, FOREGROUND_TIMEOUT="120"))
        if way == "pooled":
            pooler = stack.enter_context(pooling(postgres.primary, postgres.address))
            loop.environ["DATABASE_URL"] = postgres.url(pooler.directory)
        pair = Pair(loop)
        a = pair.hire("a", LEASE_S)
        background = loop.started(f"$ {COMMAND} &", "exit 7", rest=True)
        loop.send(f"$ {COMMAND.replace('nonce', 'waited').replace('7', '8')}", "c2")
        loop.approve("c2")
        loop.session("exit 8")
        postgres.primary.kill()
        loop.until("its lease has lapsed", lambda: LAPSED in said(loop))
        pair.let_it_end()
        loop.until("the ends wait for the database", lambda: said(loop).count("is not recorded yet") >= 2)
        postgres.fail_over()
        loop.until("the end wakes its agent", lambda: len(loop.answers()) == 2)
        assert loop.callbacks() == [f"EXEC_CALLBACK:{background.id}"]
        assert "exit code 8" in loop.until("c2 is answered", lambda: loop.answers(conversation="c2"))[0]
        loop.until("all is at rest", loop.at_rest)
        assert loop.ended("APPROVAL:c2:1")["executions"] == 1
        for file in ("nonce", "waited"):
            assert (loop.workspace / f"{file}.txt").read_text() == f"{file}\n"
        loop.until("it has its name again", lambda: pair.standing() == {"a": "alive"})
        assert a.process.poll() is None
        assert said(loop).count(LAPSED) == 1


def test_a_standby_at_the_address_is_an_outage_until_it_is_promoted() -> None:
    with cluster() as postgres:
        database = Database(postgres.url(postgres.address))
        database.write_now(standing)
        postgres.lead_to_the_standby()
        postgres.primary.kill()
        with pytest.raises(DatabaseUnreachable, match="read-only"):
            database.write_now(standing)
        postgres.promote()
        database.write_now(standing)
        database.close()


def standing(conn: sa.Connection) -> None:
    conn.execute(sa.text("UPDATE alembic_version SET version_num = version_num"))


def test_a_worker_that_was_cut_off_while_another_took_its_turn_over_changes_nothing_and_serves_on(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "LEASE_S", float(LEASE_S))
    with pooling(postgres_server) as pooler, stage(postgres_url, FOREGROUND_TIMEOUT="120") as loop:
        pair = Pair(loop)
        by_pooler = postgres_url.replace(str(postgres_server.directory), str(pooler.directory))
        a = pair.hire("a", LEASE_S, DATABASE_URL=by_pooler)
        loop.started(f"$ {COMMAND}", "exit 7")
        b = pair.hire("b", LEASE_S)
        pooler.process.send_signal(signal.SIGSTOP)
        pair.taken_over_by("b")
        assert LAPSED in said(loop)
        pair.let_it_end()
        loop.until("b answers", lambda: len(loop.answers()) == 1 and loop.at_rest())
        asked = pair.asked()
        pooler.process.send_signal(signal.SIGCONT)
        loop.until("a is back", lambda: "is held again" in said(loop))
        b.kill()
        item = loop.send("are you well?", "c2")
        loop.until("a answers", lambda: loop.answers(conversation="c2"))
        assert pair.executor(item) == "a"
        assert a.process.poll() is None
        assert pair.asked() == [*asked, "a"]
        assert loop.ended("APPROVAL:c1:1")["executions"] == 2
        assert len(loop.answers()) == 1
        pair.assert_started_once()
