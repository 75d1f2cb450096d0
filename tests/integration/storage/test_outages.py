"""What waits for a database that was away goes on once it is back, however far off its own next try is."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, SessionId
from shellback.exec.core.threads import cancelled
from shellback.exec.engine import ends as recording
from shellback.exec.engine.ends import Ends
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.watching import watcher as watching
from shellback.exec.watching.watcher import Watcher
from shellback.storage import outage as module
from shellback.storage.db import Database
from shellback.storage.outage import Outage
from shellback.storage.rows import insert_new
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import calls
from shellback.storage.watches import SqlWatchStore, find
from shellback.work.notices import notifier as notifying
from shellback.work.notices.notices import Outbox
from shellback.work.notices.notifier import Notifier
from shellback.work.worker.services import every
from tests.databases import TEMPLATE, NoPostgres, serving_postgres, unavailable
from tests.execs import GATE, launch, let_go, origin
from tests.sessions import EXITED, a_session
from tests.supervisors import SOON, until
from tests.watches import Fired

pytestmark = pytest.mark.anyio

NEVER_S = 3600.0


@dataclass
class Absent:
    """A database that can be taken away."""

    db: Database
    away: Callable[[], object]
    back: Callable[[], object]

    async def beat(self) -> None:
        """Commit something else, as a heartbeat does."""
        await self.db.write(_noted)


def _noted(conn: sa.Connection) -> None:
    insert_new(conn, calls, {"call_key": uuid.uuid4().hex, "session_id": "s", "tool": "t", "created_at": 1.0})


@pytest.fixture
def absent_sqlite(sqlite: Database) -> Absent:
    file = Path(str(sqlite.url.database))
    elsewhere = file.with_name("elsewhere")
    return Absent(sqlite, lambda: file.rename(elsewhere), lambda: elsewhere.rename(file))


@pytest.fixture
def absent_postgres() -> Generator[Absent]:
    try:
        with serving_postgres(durable=True) as server:
            db = Database(server.url(server.create(TEMPLATE)))
            try:
                yield Absent(db, server.kill, server.start)
            finally:
                db.close()
    except NoPostgres as error:
        unavailable(str(error))


@pytest.fixture(params=["sqlite", "postgres"])
def absent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Absent:
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    return request.getfixturevalue(f"absent_{request.param}")


async def test_a_hit_that_an_outage_kept_is_told_once_the_database_is_back(
    absent: Absent, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "FIRST_DELAY_S", NEVER_S)
    fired = Fired()
    watcher = Watcher(engine, SqlWatchStore(absent.db, sink=fired))
    session = await launch(engine, f"{GATE}; echo listening; sleep 600")
    await watcher.place(session, origin(), pattern="listening")
    absent.away()
    let_go(engine)
    await until(lambda: "cannot be evaluated" in caplog.text)
    absent.back()
    await absent.beat()
    await fired.times(1)
    await watcher.stop()


async def test_an_end_that_an_outage_kept_is_recorded_once_the_database_is_back(
    absent: Absent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "FIRST_DELAY_S", NEVER_S)
    store, session = SqlSessionStore(absent.db), a_session(delivery=Delivery.SETTLED)
    await store.claim(session)
    acknowledged = asyncio.Event()

    async def acknowledge(_: SessionId) -> None:
        acknowledged.set()

    ends = Ends(store, ExecRegistry(store), acknowledge)
    absent.away()
    ends.received(session.id, EXITED)
    await until(lambda: "is not recorded yet" in caplog.text)
    absent.back()
    await absent.beat()
    async with asyncio.timeout(SOON):
        await acknowledged.wait()


async def test_notices_and_repeated_work_that_an_outage_kept_go_on_once_the_database_is_back(
    absent_sqlite: Absent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    monkeypatch.setattr(notifying, "IDLE_S", NEVER_S)
    sent, swept, db = asyncio.Event(), asyncio.Event(), absent_sqlite.db

    class Target:
        async def send(self, payload: dict[str, Any]) -> None:
            sent.set()

    async def sweep() -> None:
        await db.read(find)
        swept.set()

    db.write_now(Outbox(host="here", on=True).put, "alarm", "c1", "k1", "look here")
    absent_sqlite.away()
    works = (Notifier(db, Target()).run(), every(NEVER_S, "sweep", sweep, db.pause, first_s=0.0))
    running = [asyncio.create_task(work) for work in works]
    await until(lambda: "sweep failed" in caplog.text and "notices wait" in caplog.text)
    absent_sqlite.back()
    await absent_sqlite.beat()
    async with asyncio.timeout(SOON):
        await sent.wait()
        await swept.wait()
    await cancelled(running)


async def waiting(outage: Outage, since: float) -> asyncio.Task[None]:
    task = asyncio.create_task(outage.pause(NEVER_S, since=since))
    await asyncio.sleep(0)
    return task


async def test_what_failed_before_an_outage_ended_is_repeated_at_once_and_what_failed_later_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    outage, began = Outage(), time.monotonic()
    outage.failed()
    outage.committed()
    async with asyncio.timeout(SOON):
        await outage.pause(NEVER_S, since=began)
    later = await waiting(outage, math.inf)
    outage.committed()
    await asyncio.sleep(0)
    assert not later.done()
    await cancelled([later])


async def test_failures_among_commits_and_reads_that_succeed_wake_nobody(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_S", NEVER_S)
    outage = Outage()
    task = await waiting(outage, time.monotonic())
    outage.failed()
    outage.committed()
    await asyncio.sleep(0)
    assert not task.done()
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    monkeypatch.setattr(sqlite, "_outage", outage)
    outage.failed()
    await sqlite.read(find)
    assert not task.done()
    await sqlite.write(find)
    async with asyncio.timeout(SOON):
        await task
