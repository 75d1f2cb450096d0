"""The name of a worker is a lease: one process holds it, and one that lost it does nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy as sa

from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable, ExecutorTaken, HostTaken
from shellback.storage.tables import hosts as host_rows
from shellback.storage.tables import workers
from shellback.work.hosts import hosts, placing, roster
from shellback.work.queue.queues import EVERYWHERE
from shellback.work.turn import claims
from shellback.work.turn.claims import NameLost, Wakes
from shellback.work.worker import worker as working
from shellback.work.worker.posts import Post, Posts
from shellback.work.worker.services import HEARTBEAT_S
from shellback.work.worker.worker import Worker, WorkerConfig
from tests.databases import at_once
from tests.items import HOST, Talk

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio

FIRST = WorkerConfig(executor_id="w", host_id=HOST, boot_id="b/1", system_database_url="", token="one")
SECOND = replace(FIRST, token="two")


@pytest.fixture(params=["postgres_url", "pooled_url"])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    opened = Database(request.getfixturevalue(request.param))
    yield opened
    opened.close()


def let_the_lease_end(db: Database, of: str = "w") -> None:
    ago = {"heartbeat_at": workers.c.heartbeat_at - roster.LEASE_S - 1}
    change = sa.update(workers).where(workers.c.executor_id == of).values(ago)
    db.write_now(lambda conn: conn.execute(change) and None)


def holder(db: Database) -> tuple[str, bool]:
    """The token of who holds the name, and whether it has stopped."""
    row = db.read_now(lambda conn: conn.execute(sa.select(workers.c.token, workers.c.stopped_at)).one())
    return row.token, row.stopped_at is not None


def test_a_second_holder_is_refused_by_process_and_host_until_the_first_ends_or_is_quiet_for_a_lease(
    db: Database,
) -> None:
    db.write_now(working._register, FIRST)
    with pytest.raises(ExecutorTaken, match=r"'w' is held by process \d+ on \S+: stop it"):
        db.write_now(working._register, SECOND)
    assert holder(db) == ("one", False)
    let_the_lease_end(db)
    db.write_now(working._register, SECOND)
    assert holder(db) == ("two", False)
    db.write_now(working._unregister, SECOND)
    db.write_now(working._register, FIRST)
    assert holder(db) == ("one", False)


def test_the_successor_of_a_process_that_is_known_to_have_ended_waits_for_nothing(db: Database) -> None:
    db.write_now(working._register, FIRST)
    db.write_now(working._register, replace(SECOND, before="one"))
    assert holder(db) == ("two", False)


def test_a_worker_of_a_version_without_leases_is_not_replaced_while_it_lives(db: Database) -> None:
    db.write_now(working._register, FIRST)
    db.write_now(lambda conn: conn.execute(sa.update(workers).values(token=None)) and None)
    with pytest.raises(ExecutorTaken):
        db.write_now(working._register, SECOND)


def test_one_machine_has_the_id_of_a_host_whatever_its_workers_are_named(db: Database) -> None:
    here = replace(FIRST, boot_id="boot/1")
    db.write_now(working._register, here)
    db.write_now(working._register, replace(here, executor_id="w2", boot_id="boot/2"))  # in a container beside it
    copy = replace(here, executor_id="w3", boot_id="boot%/1", token="three")
    with pytest.raises(HostTaken, match=r"that of process \d+ on \S+, on another machine: give each machine"):
        db.write_now(working._register, copy)
    assert db.write_now(working._heartbeat, here) == (True, False, {})
    db.write_now(working._register, replace(copy, host_id="another"))
    for name in ("w", "w2"):
        let_the_lease_end(db, name)
    db.write_now(working._register, copy)
    with pytest.raises(HostTaken):
        db.write_now(working._register, replace(here, executor_id="w2", boot_id="boot/2"))


def test_a_worker_that_was_dated_ahead_keeps_no_other_machine_out(db: Database) -> None:
    db.write_now(working._register, FIRST)
    ahead = {"heartbeat_at": workers.c.heartbeat_at + 3600.0}
    db.write_now(lambda conn: conn.execute(sa.update(workers).values(ahead)) and None)
    db.write_now(working._register, replace(FIRST, executor_id="w2", boot_id="another/1"))


async def test_after_a_restart_of_the_machine_the_leases_of_all_its_workers_are_waited_for(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 3):
        db.write_now(working._register, replace(FIRST, executor_id=f"w{number}", boot_id="before/1"))
    starting = asyncio.create_task(successor(db, monkeypatch)._take_name())
    for number in (2, 3):
        await asyncio.sleep(0.1)
        assert not starting.done()
        let_the_lease_end(db, f"w{number}")
    async with asyncio.timeout(30):
        await starting


async def test_a_worker_that_was_paused_stops_if_a_copy_of_its_host_began_meanwhile(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db.write_now(working._register, FIRST)
    beating = Beating(db, monkeypatch)
    let_the_lease_end(db)
    db.write_now(working._register, replace(FIRST, executor_id="w2", boot_id="another/1"))
    assert not await beating.beats(3600.0)
    assert "this worker stops: the id of this host is that of process" in caplog.text


class Taking:
    """What a dispatch is told."""

    def __init__(self) -> None:
        self.told: list[bool] = []

    def take(self, *, new: bool) -> None:
        self.told.append(new)


async def test_new_items_are_for_the_newest_version_of_a_host_that_lives(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.write_now(working._register, FIRST)
    beating, taking = Beating(db, monkeypatch), Taking()
    dispatch: Any = taking
    beating.post.dispatch = dispatch
    await beating.beats(5.0)
    db.write_now(working._register, replace(FIRST, executor_id="far", host_id="another", version="another"))
    await beating.beats(5.0)
    assert taking.told == [True, True], "another host's version is nothing to it"
    newer, same = replace(FIRST, executor_id="w2", version="another"), replace(FIRST, executor_id="w3")
    for config, new in ((newer, False), (same, True), (newer, False)):
        db.write_now(working._register, config)
        await beating.beats(5.0)
        assert taking.told.pop() is new
    let_the_lease_end(db, "w2")
    await beating.beats(5.0)
    assert taking.told.pop() is True


def test_a_worker_elsewhere_renews_no_lease_of_its_host_and_keeps_its_machine_from_nothing(db: Database) -> None:
    away = replace(FIRST, executor_id="away", boot_id="far/1", elsewhere=True)
    db.write_now(working._register, away)
    assert db.write_now(working._heartbeat, away) == (True, False, {})
    assert db.read_now(hosts.one, HOST).silent_s is None, "nothing was heard of the host itself"
    db.write_now(working._register, FIRST)
    ago = sa.update(host_rows).values(heartbeat_at=host_rows.c.heartbeat_at - 100.0, draining_at=1.0)
    db.write_now(lambda conn: conn.execute(ago) and None)
    assert db.write_now(working._heartbeat, away) == (True, True, {}), "it drains with its host"
    assert (db.read_now(hosts.one, HOST).silent_s or 0.0) > 99.0


def test_a_process_without_turns_has_no_version_that_items_wait_for(db: Database) -> None:
    db.write_now(working._register, FIRST)
    db.write_now(working._register, replace(FIRST, executor_id="host", version=roster.NO_TURNS))
    assert db.write_now(working._heartbeat, FIRST, [HOST]) == (True, False, {HOST: FIRST.version})


def test_the_newest_version_of_a_host_may_be_that_of_a_worker_of_many(db: Database) -> None:
    db.write_now(working._register, FIRST)
    many = replace(FIRST, executor_id="*.w", host_id=EVERYWHERE, elsewhere=True, version="newer", boot_id="far/1")
    db.write_now(working._register, many)
    found = db.write_now(working._heartbeat, many, [HOST, "other"])
    assert found == (True, False, {HOST: "newer", "other": "newer"})
    assert db.write_now(working._heartbeat, FIRST, [HOST])[2][HOST] == "newer"
    assert db.read_now(placing.rooms)[0].offer.slots == 0, "those of the newest version"
    (served,) = [one.serves for one in db.read_now(roster.look, HOST, everywhere=False) if one.elsewhere]
    assert served == [HOST, "other"]


def test_of_two_machines_with_the_id_of_a_host_that_start_at_once_one_is_refused(db: Database) -> None:
    def start(number: int) -> bool:
        config = replace(FIRST, executor_id=f"w{number}", boot_id=f"boot{number}/1", token=str(number))
        try:
            db.write_now(working._register, config)
        except HostTaken:
            return False
        return True

    for _ in range(5):
        db.write_now(lambda conn: conn.execute(sa.delete(workers)) and None)
        started = at_once(*(partial(start, number) for number in range(4)))
        assert sorted(started) == [False, False, False, True]


def test_a_late_write_of_a_worker_that_lost_its_name_is_refused(db: Database) -> None:
    item = Talk(db).send()
    db.write_now(working._register, FIRST)
    let_the_lease_end(db)
    db.write_now(working._register, SECOND)
    assert db.write_now(working._heartbeat, FIRST) == (False, False, {})
    with pytest.raises(ExecutorTaken):
        db.write_now(working._register, FIRST)
    db.write_now(working._unregister, FIRST)
    assert holder(db) == ("two", False)
    with pytest.raises(NameLost, match="another process holds the name of worker w"):
        db.write_now(claims.enter, item, executor_id="w", wakes=Wakes(), token="one")
    assert db.write_now(claims.enter, item, executor_id="w", wakes=Wakes(), token="two").epoch == 1


def successor(db: Database, patch: pytest.MonkeyPatch) -> Worker:
    """A worker of the same name that looks often whether the lease is renewed."""
    nobody: Any = None
    patch.setattr(working, "RENEWAL_LOOK_S", 0.01)
    return Worker(SECOND, db, nobody, nobody, nobody, nobody, nobody, nobody)


async def waiting(db: Database, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> asyncio.Task[None]:
    """The start of a second worker that has said that it waits for the lease of the first."""
    db.write_now(working._register, FIRST)
    start = asyncio.create_task(successor(db, patch)._take_name())
    while "held by process" not in caplog.text:
        assert not start.done()
        await asyncio.sleep(0.01)
    return start


async def test_a_start_after_a_restart_of_the_machine_waits_for_the_end_of_the_lease(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = await waiting(db, monkeypatch, caplog)
    assert holder(db) == ("one", False)
    let_the_lease_end(db)
    async with asyncio.timeout(30):
        await start
    assert holder(db) == ("two", False)
    assert caplog.text.count("held by process") == 1


async def test_a_start_is_refused_when_the_holder_of_its_name_renews_the_lease(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = await waiting(db, monkeypatch, caplog)
    assert db.write_now(working._heartbeat, FIRST) == (True, False, {})
    async with asyncio.timeout(30):
        with pytest.raises(ExecutorTaken):
            await start
    assert holder(db) == ("one", False)


class Beating:
    """A worker that registered at 100 s; its clock is ours."""

    def __init__(self, db: Any, patch: pytest.MonkeyPatch) -> None:
        nobody: Any = None
        self.now = 100.0
        patch.setattr(working, "since_boot", lambda: self.now)
        self.post, posts = Post(HOST, nobody, nobody), Posts("w", ())
        posts.add(self.post)
        self.worker = Worker(FIRST, db, nobody, nobody, posts, nobody, nobody, nobody)
        self.worker._renewed(self.now)

    async def beats(self, after_s: float) -> bool:
        """Whether the worker goes on."""
        self.now += after_s
        await self.worker._beat()
        return not self.worker.fallen.is_set()


async def test_a_worker_that_was_paused_goes_on_if_it_still_has_its_name_and_else_stops(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db.write_now(working._register, FIRST)
    beating = Beating(db, monkeypatch)
    let_the_lease_end(db)
    assert await beating.beats(3600.0)
    let_the_lease_end(db)
    db.write_now(working._register, SECOND)
    assert not await beating.beats(3600.0)
    assert "executor id w is no longer held: this worker stops: process" in caplog.text


async def test_each_renewal_is_noted_on_the_machine_of_the_host_and_none_that_failed(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.write_now(working._register, FIRST)
    beating, noted = Beating(db, monkeypatch), list[float]()
    beating.worker.renewed = noted.append
    for _ in range(2):
        await beating.beats(5.0)
    assert noted == [105.0, 110.0]
    beating.worker.database = cast("Database", Away(silent=False))
    await beating.beats(15.0)
    beating.worker.database, beating.worker.config = db, replace(FIRST, elsewhere=True)
    await beating.beats(5.0)
    assert noted == [105.0, 110.0]


class Away:
    """A Postgres that refuses, or does not answer."""

    dialect = "postgresql"

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent

    async def write(self, *_: object) -> None:
        if self.silent:
            await asyncio.Event().wait()
        raise DatabaseUnreachable("no connection")


async def test_a_worker_whose_lease_lapses_says_so_once_and_judges_nobody_until_it_is_renewed(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db.write_now(working._register, FIRST)
    beating, judged = Beating(Away(silent=False), monkeypatch), 0

    async def judge() -> None:
        nonlocal judged
        judged += 1

    with pytest.raises(DatabaseUnreachable):
        await beating.beats(5.0)
    for _ in range(3):
        assert await beating.beats(5.0)
        await beating.worker._if_held(judge)
    assert judged == 0
    assert caplog.text.count("was not renewed in time") == 1
    assert "(no connection)" in caplog.text
    beating.worker.database = db
    let_the_lease_end(db)
    assert await beating.beats(3600.0)
    await beating.worker._if_held(judge)
    assert judged == 1
    assert "executor id w is held again" in caplog.text


async def test_a_lease_lapses_by_the_clock_of_its_worker_before_it_ends_in_the_database(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beating = Beating(Away(silent=False), monkeypatch)
    await beating.beats(roster.LEASE_S - HEARTBEAT_S)
    assert "was not renewed in time" in caplog.text


async def test_a_worker_whose_name_was_taken_in_an_outage_stops(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    db.write_now(working._register, FIRST)
    beating = Beating(Away(silent=False), monkeypatch)
    assert await beating.beats(3600.0)
    let_the_lease_end(db)
    db.write_now(working._register, SECOND)
    beating.worker.database = db
    assert not await beating.beats(5.0)
    assert "is held again" not in caplog.text


async def test_a_renewal_without_an_answer_is_given_up_once_and_then_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(working, "HEARTBEAT_S", 0.01)
    beating = Beating(Away(silent=True), monkeypatch)
    beating.worker._held_until = 100.0
    assert await beating.beats(0.0)
    assert "others may take over its turns (TimeoutError)" in caplog.text
    assert beating.worker._patience_s(beating.now) is None
