"""A clock that is set by years: nothing is approved too late, waits for years, or is thrown away at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from shellback.exec.core.display import age
from shellback.exec.supervisor.loop import now
from shellback.exec.supervisor.process.job import Job
from shellback.storage.db import Database
from shellback.storage.tables import approvals as requests
from shellback.storage.tables import conversations, mailbox, turns, workers
from shellback.telemetry.telemetry import read_levels
from shellback.work.approvals import approvals, asking, uses
from shellback.work.elsewhere.holding import held_by
from shellback.work.hosts.sweep import Sweep
from shellback.work.notices import notices
from shellback.work.queue.items import ItemType, Priority, epoch_item
from shellback.work.turn import looks
from shellback.work.worker.retention import Ages, Retention
from tests.items import HOST, PROPOSED, Talk, a_worker

pytestmark = pytest.mark.anyio

YEARS = 10 * 365 * 86_400.0
TTL_S = 1000.0


class Clock:
    """The clock that people see, and the one that nobody sets, each as far ahead as a test says.

    Postgres sees the first one too, unless it is `apart`, on another machine.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.boot = 0.0
        self.apart = False
        wall, boot = time.time, time.clock_gettime
        monkeypatch.setattr(time, "time", lambda: wall() + self.wall)
        monkeypatch.setattr(time, "clock_gettime", lambda which: boot(which) + self.boot)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def told(self, _conn: object, _cursor: object, statement: str, values: object, *_: object) -> tuple[str, object]:
        """A statement as Postgres gets it."""
        ahead = 0.0 if self.apart else self.wall
        return statement.replace("clock_timestamp()", f"(clock_timestamp() + interval '{ahead} seconds')"), values


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock(monkeypatch)
    event.listen(sa.Engine, "before_cursor_execute", made.told, retval=True)
    yield made
    event.remove(sa.Engine, "before_cursor_execute", made.told)


def asked(talk: Talk) -> str:
    """The id of a request that waits in a conversation that is blocked for it."""
    item = talk.send()

    def act(conn: sa.Connection) -> str:
        asking.ask(conn, "c1", item.id, 1, [PROPOSED], ttl_s=TTL_S)
        conn.execute(sa.update(conversations).values(state="blocked", blocked_reason="approval"))
        return conn.execute(sa.select(requests.c.id)).scalar_one()

    return talk.db.write_now(act)


def approved(talk: Talk, request_id: str) -> str:
    return talk.db.write_now(approvals.decide, talk.queue, request_id, "approved", by="me", surface="test").state


def sweep(talk: Talk) -> Sweep:
    nobody: Any = Nobody()
    return Sweep(talk.db, talk.queue, nobody, nobody, HOST, ("me", "v1"))


class Nobody:
    """DBOS, where every item is one that worker w1 has begun, and an engine that knows of nothing."""

    def list_workflows(self, *, workflow_ids: list[str], **_: Any) -> list[Any]:
        begun = {"status": "PENDING", "executor_id": "w1", "app_version": "v1", "queue_name": None}
        return [SimpleNamespace(workflow_id=one, **begun) for one in workflow_ids]

    def cancel_workflow(self, workflow_id: str) -> None:
        pass

    async def reconcile(self, *, live: bool = True) -> None:
        pass


@pytest.mark.parametrize("leap", [YEARS, -YEARS, -400.0])
def test_a_request_is_expired_rather_than_approved_by_a_clock_that_leapt(talk: Talk, clock: Clock, leap: float) -> None:
    request = asked(talk)
    clock.wall += leap
    assert talk.db.read_now(approvals.left) == {request: 0.0}
    assert approved(talk, request) == "expired"


def test_a_request_that_was_made_while_the_clock_was_ahead_cannot_be_approved_for_years(
    talk: Talk, clock: Clock
) -> None:
    clock.wall = YEARS
    request = asked(talk)
    clock.wall = 0.0
    assert approved(talk, request) == "expired"


def test_clocks_that_are_a_little_apart_expire_nothing(talk: Talk, clock: Clock) -> None:
    request = asked(talk)
    clock.wall = -60.0
    assert approved(talk, request) == "approved"


async def test_a_clock_that_is_set_back_a_little_gives_no_request_more_time(talk: Talk, clock: Clock) -> None:
    request = asked(talk)
    looking = sweep(talk)
    await looking.once()
    clock.boot, clock.wall = TTL_S - 10, TTL_S - 300
    await looking.once()
    assert talk.db.read_now(approvals.get, request).state == "pending"
    clock.boot += 20
    await looking.once()
    assert talk.db.read_now(approvals.get, request).state == "expired"


async def test_what_a_worker_left_when_the_clock_was_ahead_is_swept_when_it_is_right(talk: Talk, clock: Clock) -> None:
    clock.wall = YEARS
    row = a_worker("w1", HOST, time.time())
    talk.db.write_now(lambda conn: conn.execute(sa.insert(workers).values(row)))
    talk.epoch(talk.send())
    clock.wall = 0.0
    await sweep(talk).once()
    assert talk.conversation().state == "free"
    assert ItemType.RETRY in {item.type for item in talk.queue.items}


async def test_wakes_of_a_time_to_come_do_not_wear_a_conversation_out(talk: Talk, clock: Clock) -> None:
    sent = talk.send()

    def act(conn: sa.Connection) -> None:
        conn.execute(sa.update(mailbox).values(kind="exit"))
        conn.execute(sa.update(turns).where(turns.c.id == sent.id).values(outcome="answered"))
        for number in range(3):
            kind = epoch_item(ItemType.FOLLOW_UP, "c1", number, priority=Priority.NORMAL)
            talk.queue.put(conn, kind, host_id=HOST)
            conn.execute(sa.update(turns).where(turns.c.id == kind.id).values(started_at=time.time() + YEARS))

    talk.db.write_now(act)
    woken = epoch_item(ItemType.FOLLOW_UP, "c1", 9, priority=Priority.NORMAL)
    talk.db.write_now(talk.queue.put, woken, host_id=HOST)
    assert clock.wall == 0.0
    assert talk.enter(woken, per_hour=3).epoch is not None


def test_a_notice_that_was_put_when_the_clock_was_ahead_is_sent_now(database: Database, clock: Clock) -> None:
    clock.wall = YEARS
    outbox = notices.Outbox(on=True)
    database.write_now(outbox.put, "alarm", "c1", "k1", "something")
    clock.wall = 0.0
    assert database.read_now(notices.next_due) == 0.0
    assert [due.kind for due in database.write_now(notices.take, limit=5, lease_s=60.0)] == ["alarm"]
    assert database.write_now(notices.take, limit=5, lease_s=60.0) == []


async def test_nothing_is_pruned_by_a_clock_that_has_just_been_set(
    talk: Talk, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    nobody: Any = Nobody()
    ages = Ages(rows=86_400.0, logs=86_400.0, conversations=86_400.0)
    retention = Retention(talk.db, nobody, lambda _: True, HOST, ages)
    talk.send()
    talk.db.write_now(lambda conn: conn.execute(sa.update(mailbox).values(state="heard", heard_at=time.time())))
    assert (await retention.once())["mailbox"] == 0
    clock.wall = YEARS
    assert await retention.once() == {}
    clock.wall = 0.0
    assert await retention.once() == {}
    assert len(caplog.records) == 2
    clock.boot = 86_000.0
    clock.wall = 86_000.0
    assert await retention.once() == {}
    clock.boot = clock.wall = 2 * 86_400.0
    assert (await retention.once())["mailbox"] == 1


@pytest.fixture
def machines(postgres: Database, clock: Clock) -> Talk:
    """A conversation whose database is on another machine, whose clock is right."""
    clock.apart = True
    return Talk(postgres)


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_a_turn_has_the_same_time_left_on_a_machine_whose_clock_is_off(
    machines: Talk, clock: Clock, off: float
) -> None:
    item = machines.send()
    first = machines.begin(item)
    clock.wall = off
    begun = machines.begin(item)
    epoch = machines.conversation().epoch
    look = machines.db.write_now(looks.look, "c1", item.id, epoch, 1)
    assert begun.at == first.at <= look.at <= first.at + 60
    assert 0 <= begun.ago < 60
    asked = {"conversation": "c1", "turn": item.id, "epoch": epoch}
    assert 40 < machines.db.read_now(held_by, HOST, asked, 100.0).left() <= 100
    machines.finish(item, epoch)
    (ended_at,) = machines.db.read_now(lambda conn: conn.execute(sa.select(turns.c.ended_at)).one())
    assert look.at <= ended_at <= first.at + 60


@pytest.mark.parametrize(("one", "other"), [(3600.0, 0.0), (-3600.0, 0.0), (0.0, 3600.0), (0.0, -3600.0)])
async def test_approvals_and_notices_hold_between_machines_whose_clocks_differ(
    machines: Talk, clock: Clock, one: float, other: float
) -> None:
    clock.wall = one
    request = asked(machines)
    machines.db.write_now(notices.Outbox(on=True).put, "alarm", "c1", "k1", "something")
    clock.wall = other
    await sweep(machines).once()
    assert machines.db.read_now(approvals.waiting, request)[1] > TTL_S - 60
    assert machines.db.read_now(notices.next_due) == 0.0
    assert len(machines.db.write_now(notices.take, limit=5, lease_s=60.0)) == 1
    clock.wall = one
    assert approved(machines, request) == "approved"
    clock.wall = other
    machines.db.write_now(uses.consume, request, "me", PROPOSED.digest, conversation_id="c1")


@pytest.mark.parametrize(("sender", "worker"), [(3600.0, 0.0), (-3600.0, 0.0), (0.0, 3600.0), (0.0, -3600.0)])
def test_a_waiting_item_has_the_age_that_the_database_knows_whoever_sent_it_and_asks(
    machines: Talk, clock: Clock, sender: float, worker: float
) -> None:
    before = time.time()
    clock.wall = sender
    machines.send()
    clock.wall = worker
    ages = machines.db.read_now(read_levels, HOST, "w1", 1).queue_age_s
    assert 0 < max(ages.values()) <= time.time() - worker - before
    made = (conversations.c.created_at, mailbox.c.created_at, turns.c.created_at)
    found = machines.db.read_now(lambda conn: [conn.execute(sa.select(at)).scalar_one() for at in made])
    assert before - 1 <= min(found) <= max(found) <= time.time() - worker + 1


def test_durations_are_by_a_clock_that_nobody_sets(clock: Clock) -> None:
    job = Job("a", {"began": now(), "started_at": time.time()})
    clock.wall = -YEARS
    record = job.end("boot", state="exited", exit_code=0)
    assert 0 <= record["duration_s"] < 60
    assert age(record["ended_at"] - time.time() - YEARS) == "0s"
