"""Items whose bell rings are taken without a poll; a look finds items whose ring was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from dbos import DBOSClient

from shellback.exec.wire import layout
from shellback.storage.db import Database
from shellback.work.approvals import sending
from shellback.work.queue import doorbell
from shellback.work.queue.doorbell import Doorbell, Notifications
from shellback.work.queue.queues import TOKENS, DbosEnqueuer, decisions_queue, queues_of
from tests.items import unrung
from tests.stage import Stage, stage

NEVER_S = 3600.0
PATIENCE_S = 30.0


def without_polls(on: Stage) -> None:
    """Have the worker's queues polled at rings only."""
    client = DBOSClient(system_database_url=on.settings.database_url, application_name="shellback")
    doorbell = Doorbell(on.home, on.where.host_id, on.where.database)
    try:
        for name in queues_of(on.where.host_id):
            queue = client.retrieve_queue(name)
            assert queue is not None
            queue.set_polling_interval_sec(NEVER_S)
            doorbell.ring(on.where.host_id, name)  # the queue's thread reads the interval after a poll
    finally:
        client.destroy()


@pytest.fixture
def on(database_url: str) -> Generator[Stage]:
    with stage(database_url, TURN_SLOTS="1", WAKE_SLOTS="1") as made:
        made.hire()
        yield made


@pytest.mark.anyio
async def test_a_ring_removes_what_a_crash_left_of_a_listener_that_never_returns(
    tmp_path: Path, database: Database
) -> None:
    queue = decisions_queue("host")
    for once in (True, False):
        dead, doorbell = Doorbell(tmp_path, "host", database), Doorbell(tmp_path, "host", database)
        await dead.listen("dead", {queue: lambda: None}, once=once)
        (left,) = (tmp_path / layout.BELLS).iterdir()
        kept = left.with_name("kept")
        left.rename(kept)
        await dead.close()
        kept.rename(left)
        doorbell.ring("host", queue)
        assert left.exists() is not once, "a worker that starts may just have bound its name again"


@pytest.mark.anyio
async def test_a_ring_for_all_is_heard_on_this_host_and_by_postgres_on_every_other(
    tmp_path: Path, database: Database
) -> None:
    heard = asyncio.Event()
    listener, here = Doorbell(tmp_path / "a", "a", database), Doorbell(tmp_path / "a", "a", database)
    (tmp_path / "a").mkdir()
    await listener.listen("server", {TOKENS: heard.set}, once=True)
    try:
        if database.dialect != "sqlite":
            await asyncio.wait_for(heard.wait(), PATIENCE_S)  # it listens, and looks for what it has missed
            heard.clear()
            await asyncio.to_thread(Doorbell(tmp_path / "b", "b", database).ring_all, TOKENS)
            await asyncio.wait_for(heard.wait(), PATIENCE_S)
            heard.clear()
        await asyncio.to_thread(here.ring_all, TOKENS)
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
    finally:
        await listener.close()


def sent_unrung(on: Stage, text: str) -> str:
    client = DBOSClient(system_database_url=on.settings.database_url, application_name="shellback")
    try:
        enqueuer = DbosEnqueuer(client, unrung)
        return on.write(sending.send, enqueuer, "c1", text, host_id=on.where.host_id, by="test").item_id
    finally:
        client.destroy()


def begun(on: Stage, item: str) -> bool:
    turn = on.turn(item)
    return turn is not None and turn["started_at"] is not None


def test_a_message_and_an_end_ring_and_a_slot_that_becomes_free_takes_the_next_item(on: Stage) -> None:
    without_polls(on)
    items = [on.send("hello", conversation=f"c{number}") for number in range(5)]
    assert [on.ended(item)["outcome"] for item in items] == ["answered"] * 5
    session = on.started("$ true &", "true")
    on.until("the process has ended", lambda: on.turn(f"EXEC_CALLBACK:{session.id}"))
    assert on.ended(f"EXEC_CALLBACK:{session.id}")["outcome"] in {"answered", "nothing"}, "the turn may have heard it"


def test_items_beyond_the_slots_of_one_worker_run_at_another_at_once(postgres_url: str) -> None:
    with stage(postgres_url, TURN_SLOTS="1", WAKE_SLOTS="1", OFFLINE_SECONDS="3") as on:
        for number in range(3):
            on.hire(WORKER_NAME=f"w{number}")
        without_polls(on)
        for again in range(3):
            items = [on.send("hello", conversation=f"c{again}{number}") for number in range(3)]
            turns = [on.ended(item) for item in items]
            assert max(turn["started_at"] for turn in turns) < min(turn["ended_at"] for turn in turns)


def test_a_wake_begins_at_once_though_ordinary_items_have_all_slots_and_more_of_them_wait(database_url: str) -> None:
    with stage(database_url, TURN_SLOTS="1", WAKE_SLOTS="1") as on:
        worker = on.hire()
        session = on.started("$ until [ -e go ]; do sleep 0.05; done &", "-e go", rest=True)
        worker.stop()
        items = [on.send("hello", f"ordinary{number}", waiting=False) for number in range(3)]
        on.hire(OFFLINE_SECONDS="60")
        running = on.until("one runs", lambda: next((item for item in items if begun(on, item)), None))
        (on.workspace / "go").touch()
        on.until("the wake begins", lambda: begun(on, f"EXEC_CALLBACK:{session.id}"))
        turns = {item: on.turn(item) or {} for item in items}
        assert turns.pop(running)["outcome"] is None
        assert [turn["started_at"] for turn in turns.values()] == [None, None]


def test_an_item_whose_ring_was_lost_is_found_by_a_look(on: Stage) -> None:
    assert on.ended(sent_unrung(on, "hello"))["outcome"] == "answered"


def test_a_queue_that_was_deleted_is_registered_again_and_its_items_are_taken(on: Stage) -> None:
    assert on.ended(on.send("hello"))["outcome"] == "answered"
    client = DBOSClient(system_database_url=on.settings.database_url, application_name="shellback")
    doorbell = Doorbell(on.home, on.where.host_id, on.where.database)
    try:
        for name in queues_of(on.where.host_id):
            client.delete_queue(name)
            doorbell.ring(on.where.host_id, name)  # the queue's thread notices after a poll
        for name in queues_of(on.where.host_id):
            on.until("the queue is there again", lambda name=name: client.retrieve_queue(name))
    finally:
        client.destroy()
    assert on.ended(on.send("hello again"))["outcome"] == "answered"


def test_an_item_rings_when_it_is_committed_and_not_before(database_url: str) -> None:
    rung: list[tuple[str, str]] = []

    def send(conn: sa.Connection) -> None:
        sending.send(conn, enqueuer, "c1", "hello", host_id="here", by="test")
        assert rung == []

    with stage(database_url) as on:
        client = DBOSClient(system_database_url=on.settings.database_url, application_name="shellback")
        enqueuer = DbosEnqueuer(client, lambda host, queue: rung.append((host, queue)))
        on.write(send)
        client.destroy()
    ((host, queue),) = rung
    assert host == "here"
    assert queue in queues_of("here")


@pytest.mark.parametrize("by_pooler", [False, True])
def test_another_host_rings_through_postgres(
    postgres_url: str, by_pooler: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # The driver refuses a password with a space in a URL; this database trusts us, whatever the password is.
    direct = sa.make_url(postgres_url).set(password="two words").render_as_string(hide_password=False)
    url = request.getfixturevalue("pooled_url") if by_pooler else direct

    async def listens_and_hears() -> None:
        database, rung = Database(url), asyncio.Queue[None]()
        here = Doorbell(
            tmp_path, "here", database, Notifications(tmp_path, "here", database, direct if by_pooler else "")
        )
        elsewhere = Doorbell(tmp_path, "elsewhere", database)
        await here.listen("here.w", {"turns.here": lambda: rung.put_nowait(None)})
        try:
            await asyncio.wait_for(rung.get(), 60)  # it listens
            await asyncio.to_thread(elsewhere.ring, "here", "turns.here")
            await asyncio.wait_for(rung.get(), 60)
        finally:
            await here.close()
            database.close()

    asyncio.run(listens_and_hears())


CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
)
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"


@pytest.mark.parametrize("of_one_process", [True, False])
def test_a_host_hears_of_others_by_one_connection_and_one_worker_is_woken(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_one_process: bool
) -> None:
    monkeypatch.setattr(doorbell, "RETRY_S", 0.05)

    async def hear() -> None:
        database, rung = Database(postgres_url), asyncio.Queue[str]()
        (tmp_path / "c").mkdir()
        shared = Notifications(tmp_path, "a", database)
        first, second = (Doorbell(tmp_path, "a", database, shared if of_one_process else None) for _ in range(2))
        elsewhere = Doorbell(tmp_path / "c", "c", database)

        async def heard() -> str:
            return await asyncio.wait_for(rung.get(), 60)

        async def ring(*queues: str) -> None:
            for queue in queues:
                await asyncio.to_thread(elsewhere.ring, "a", queue)

        try:
            await first.listen("first", {"turns.a": lambda: rung.put_nowait("first")}, once=True)
            assert await heard() == "first"  # it listens
            both = {"turns.a": lambda: rung.put_nowait("second"), TOKENS: lambda: rung.put_nowait("token")}
            await second.listen("second", both, once=True)
            assert [await heard(), await heard()] == ["second", "token"]
            found = list[str]()
            for queues in (["turns.b", "turns.a"], ["turns.a"], [TOKENS]):
                await ring(*queues)  # two at once may be heard as one
                found.append(await heard())
            assert {*found[:2]} <= {"first", "second"}
            assert found[2] == "token", "each of the others woke one"
            assert await database.read(lambda conn: conn.execute(sa.text(LISTENING)).scalar_one()) == 1
            await first.close()
            if not of_one_process:
                assert {await heard(), await heard()} == {"second", "token"}, "it listens now"
            await ring("turns.a")
            assert await heard() == "second"
            assert rung.empty()
        finally:
            await first.close()
            await second.close()
            database.close()

    asyncio.run(hear())


def test_all_of_a_host_look_when_one_of_them_begins_to_listen(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "RETRY_S", 0.05)

    async def hear() -> None:
        database, rung = Database(postgres_url), asyncio.Queue[str]()
        listens, other = (Doorbell(tmp_path, "a", database) for _ in range(2))

        async def heard() -> str:
            return await asyncio.wait_for(rung.get(), 60)

        try:
            await listens.listen("one", {"turns.a": lambda: rung.put_nowait("one")})
            assert await heard() == "one"
            await other.listen("two", {"turns.a": lambda: rung.put_nowait("two")})
            assert await heard() == "two"
            await database.read(lambda conn: conn.execute(sa.text(CUT)).all())
            assert {await heard(), await heard()} == {"one", "two"}, "items may have come while nobody listened"
        finally:
            await listens.close()
            await other.close()
            database.close()

    asyncio.run(hear())


def test_a_ring_that_the_database_does_not_take_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Database(f"postgresql://nobody@/none?host={tmp_path}")
    Doorbell(tmp_path, "here", nowhere).ring("another", "turns.another")
    nowhere.close()
    assert "its next look finds the item" in caplog.text
