"""The sweep against every status that DBOS may have for the item of a claimed conversation."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from shellback.exec.core.model import Delivery, SessionId, SessionState
from shellback.storage.db import Database
from shellback.storage.session_rows import to_row
from shellback.storage.tables import conversations, hosts, mailbox, sessions, turns, workers
from shellback.work.approvals import approvals, asking, sending
from shellback.work.hosts import roster, sweep
from shellback.work.hosts.hosts import SILENT_S
from shellback.work.hosts.sweep import Sweep
from shellback.work.queue.items import WorkItem
from tests.items import HOST, PROPOSED, NotedEnqueuer, Talk, a_worker
from tests.sessions import EXITED, a_session
from tests.supervisors import raising

pytestmark = pytest.mark.anyio


@dataclass
class Found:
    workflow_id: str
    status: str
    executor_id: str | None = "w1"
    app_version: str | None = "v1"
    queue_name: str | None = f"wakes.{HOST}"


@dataclass
class FakeClient:
    """Answers for DBOS: what each work item is."""

    queue: NotedEnqueuer
    found: dict[str, Found] = field(default_factory=dict[str, Found])
    cancelled: list[str] = field(default_factory=list[str])

    def list_workflows(self, *, workflow_ids: list[str], **_: Any) -> list[Found]:
        later = {item.id: Found(item.id, "ENQUEUED", None, None) for item in self.queue.items if item.type != "CHAT"}
        found = later | self.found
        return [found[item] for item in workflow_ids if item in found]

    def cancel_workflow(self, workflow_id: str) -> None:
        self.cancelled.append(workflow_id)


@dataclass
class FakeProcesses:
    handed: list[str] = field(default_factory=list[str])
    abandoned: list[str] = field(default_factory=list[str])
    compared: list[bool] = field(default_factory=list[bool])

    async def reconcile(self, *, live: bool = True) -> None:
        self.compared.append(live)

    async def hand_over(self, session_id: SessionId) -> bool:
        self.handed.append(session_id)
        return True

    async def abandon(self, session_id: SessionId) -> None:
        self.abandoned.append(session_id)


class Bench(Talk):
    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.client = FakeClient(self.queue)
        self.processes = FakeProcesses()
        client: Any = self.client
        self.sweep = Sweep(db, self.queue, client, self.processes, HOST, ("me", "v9"))

    def claimed(self) -> WorkItem:
        """A conversation whose turn took its message and has been silent for a while."""
        item = self.send()
        self.begun(item)
        self.age()
        return item

    def age(self) -> None:
        def act(conn: sa.Connection) -> None:
            long_ago = time.time() - 100
            conn.execute(sa.update(conversations).values(claimed_at=long_ago))
            conn.execute(sa.update(mailbox).values(created_at=long_ago))
            conn.execute(sa.update(turns).where(turns.c.ended_at.is_not(None)).values(ended_at=long_ago))

        self.db.write_now(act)

    def worker(self, version: str = "v1") -> None:
        row = a_worker("w1", HOST, time.time(), version=version)
        self.db.write_now(lambda conn: conn.execute(sa.insert(workers).values(row)))

    def session(self, item: WorkItem, number: int, **more: Any) -> None:
        """One that the turn of this item waits for."""
        row = to_row(a_session(number, turn_id=item.id, epoch=1, host_id=HOST, delivery=Delivery.INLINE, **more))
        self.db.write_now(lambda conn: conn.execute(sa.insert(sessions).values(row)))

    def state(self) -> str:
        return self.conversation().state


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


async def test_a_sweep_of_a_database_at_rest_runs_one_statement(bench: Bench) -> None:
    await bench.sweep.once()
    statements: list[str] = []

    def noted(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            statements.append(statement)

    event.listen(sa.Engine, "before_cursor_execute", noted)
    try:
        await bench.sweep.once()
    finally:
        event.remove(sa.Engine, "before_cursor_execute", noted)
    assert len(statements) == 1
    assert bench.processes.compared == [False, False], "whether sessions live is not asked once more"


async def test_live_sessions_and_silent_hosts_are_looked_for_when_there_are_some(bench: Bench) -> None:
    met: list[str] = []

    async def meets() -> None:
        met.append("silent")

    bench.sweep.also = (({"silent"}, meets),)
    host = {"host_id": "other", "name": "other", "heartbeat_at": time.time()}
    bench.db.write_now(lambda conn: conn.execute(sa.insert(hosts).values(host)) and None)
    await bench.sweep.once()
    assert not met, "it was heard of"
    silent = sa.update(hosts).values(heartbeat_at=time.time() - SILENT_S - 10)
    bench.db.write_now(lambda conn: conn.execute(silent) and None)
    item = bench.claimed()
    bench.session(item, 1, state=SessionState.RUNNING)
    await bench.sweep.once()
    assert met == ["silent"]
    assert bench.processes.compared == [False, True]


async def test_a_repair_runs_until_it_has_succeeded_once_without_its_sign(bench: Bench) -> None:
    ran: list[str] = []

    async def repair() -> None:
        ran.append(bench.state())
        if len(ran) == 2:
            raise RuntimeError("not now")

    bench.sweep.also = (({"claimed"}, repair),)
    item = bench.send()
    await bench.sweep.once()
    assert not ran
    bench.begun(item)
    await bench.sweep.once()
    bench.db.write_now(lambda conn: conn.execute(sa.update(conversations).values(state="free")) and None)
    for _ in range(3):
        await bench.sweep.once()
    assert ran == ["claimed", "free", "free"]


@pytest.mark.parametrize("status", ["ERROR", "CANCELLED", "SUCCESS", None])
async def test_a_turn_that_is_over_without_closing_is_freed_and_tried_again(bench: Bench, status: str | None) -> None:
    item = bench.claimed()
    if status is not None:
        bench.client.found[item.id] = Found(item.id, status)
    await bench.sweep.once()
    assert bench.state() == "free"
    assert bench.queue.items[-1].type.value == "RETRY"
    kinds = bench.db.read_now(lambda conn: conn.execute(sa.select(mailbox.c.kind, mailbox.c.state)).all())
    assert [tuple(row) for row in kinds] == [("message", "unread"), ("turn_failed", "unread")]


@pytest.mark.parametrize("status", ["ENQUEUED", "PENDING"])
async def test_a_turn_that_a_living_worker_has_is_left_alone(bench: Bench, status: str) -> None:
    bench.worker()
    item = bench.claimed()
    bench.client.found[item.id] = Found(item.id, status)
    await bench.sweep.once()
    assert bench.state() == "claimed"


@pytest.mark.parametrize("status", ["ENQUEUED", "PENDING"])
async def test_a_turn_of_a_version_nobody_runs_is_cancelled_and_tried_again(bench: Bench, status: str) -> None:
    bench.worker("v2")
    item = bench.claimed()
    bench.client.found[item.id] = Found(item.id, status, app_version="v1")
    await bench.sweep.once()
    assert bench.client.cancelled == [item.id]
    assert bench.state() == "free"


async def test_a_turn_waits_for_no_worker_of_another_host_while_one_serves_its_own(bench: Bench) -> None:
    item = bench.claimed()
    bench.client.found[item.id] = Found(item.id, "ENQUEUED", app_version="v1")
    far = a_worker("far", "another", time.time(), version="v1")
    bench.db.write_now(lambda conn: conn.execute(sa.insert(workers).values(far)))
    bench.sweep.me = ("host", roster.NO_TURNS)
    await bench.sweep.once()
    assert bench.state() == "claimed", "nobody serves this host now, and one of this version may again"
    bench.worker("v2")
    await bench.sweep.once()
    assert bench.state() == "free"


async def test_unread_news_without_an_item_gets_one_and_with_one_does_not(bench: Bench) -> None:
    bench.worker()
    item = bench.send()
    bench.age()
    bench.client.found[item.id] = Found(item.id, "ENQUEUED", None, None)
    await bench.sweep.once()
    assert len(bench.queue.items) == 1
    del bench.client.found[item.id]
    await bench.sweep.once()
    assert [item.type.value for item in bench.queue.items] == ["CHAT", "FOLLOW_UP"]


async def test_conversations_whose_items_wait_do_not_hide_the_forgotten_ones_behind_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "BATCH", 2)
    for name in ("c1", "c2", "c3"):
        sent = bench.db.write_now(sending.send, bench.queue, name, "hello", host_id=HOST)
        bench.client.found[sent.item_id] = Found(sent.item_id, "ENQUEUED", None, None)
    bench.client.found.popitem()
    bench.age()
    for _ in range(3):
        await bench.sweep.once()
    assert [(item.type.value, item.conversation_id) for item in bench.queue.items[3:]] == [("FOLLOW_UP", "c3")]


async def test_a_request_expires_by_the_clock_of_its_own_host(bench: Bench) -> None:
    for name, host_id in (("ours", HOST), ("theirs", "host2")):
        sent = bench.db.write_now(sending.send, bench.queue, name, "hello", host_id=host_id)
        call = replace(PROPOSED, call_key=name)
        bench.db.write_now(asking.ask, name, sent.item_id, 1, [call], ttl_s=-1.0)
    await bench.sweep.once()
    states = {one.conversation_id: one.state for one in bench.db.read_now(approvals.find)}
    assert states == {"ours": "expired", "theirs": "pending"}


async def test_what_a_dead_turn_waited_for_is_handed_over_and_what_it_never_started_is_given_up(bench: Bench) -> None:
    item = bench.claimed()
    for number, state in ((1, SessionState.RUNNING), (2, SessionState.CLAIMED)):
        bench.session(item, number, state=state)
    await bench.sweep.once()
    bench.age()
    await bench.sweep.once()
    deliveries = bench.db.read_now(lambda conn: conn.execute(sa.select(sessions.c.delivery)).scalars().all())
    assert list(deliveries) == ["callback", "callback"]
    assert bench.processes.abandoned == ["s2"]


async def test_an_end_that_a_dead_turn_was_never_told_is_handed_over(bench: Bench) -> None:
    item = bench.claimed()
    bench.session(item, 1, state=EXITED.state, end=EXITED)
    await bench.sweep.once()
    bench.age()
    await bench.sweep.once()
    assert bench.processes.handed == ["s1"]


async def test_our_own_turns_are_those_of_a_living_worker_whatever_the_clock_says(bench: Bench) -> None:
    """No heartbeat of ours is young enough: the machine slept."""
    item = bench.claimed()
    bench.client.found[item.id] = Found(item.id, "PENDING", "me", "v9")
    await bench.sweep.once()
    assert bench.state() == "claimed"
    assert bench.client.cancelled == []


async def test_a_part_of_the_sweep_that_fails_does_not_keep_the_others_from_their_work(bench: Bench) -> None:
    item = bench.claimed()
    bench.client.found[item.id] = Found(item.id, "ERROR")

    bench.processes.reconcile = raising(ConnectionError("the supervisor is away"))
    await bench.sweep.once()
    assert bench.state() == "free"
