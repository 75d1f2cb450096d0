"""Which workers count as dead, whose turns are given on, and which item is not executed again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.host import process_space
from shellback.storage.tables import mailbox, notices, turns, workers
from shellback.work.hosts import roster
from shellback.work.hosts.hosts import heard_of
from shellback.work.hosts.loads import loads
from shellback.work.hosts.takeover import BETWEEN_S, GRACE_S, WATCHED_S, Takeover
from shellback.work.notices.notices import Outbox
from shellback.work.queue import stream
from shellback.work.queue.items import ItemType, Priority, WorkItem
from shellback.work.queue.mailbox import Letter
from shellback.work.queue.queues import queues_of
from shellback.work.turn import claims
from shellback.work.turn.claims import RECOVERIES, Entry, Wakes
from shellback.work.turn.closing import Begun, Closed, close
from shellback.work.turn.turn import TurnRunner
from shellback.work.worker.dispatch import Dispatch
from shellback.work.worker.posts import Post, Posts
from tests.databases import wait_until_locked_out
from tests.items import HOST, Talk, a_worker, unrung

VERSION = "v1"
NO_PID = 2**22 - 1
pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Item:
    workflow_id: str
    executor_id: str
    app_version: str = VERSION
    queue_name: str = f"wakes.{HOST}"
    status: str = "PENDING"


@dataclass
class FakeClient:
    """Answers for DBOS, and notes what is resumed and on which queue."""

    items: list[Item] = field(default_factory=list[Item])
    resumed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def list_workflows(self, *, status: str, queue_name: list[str], executor_id: str | None, **_: Any) -> list[Item]:
        return [
            item
            for item in self.items
            if item.status == status and item.queue_name in queue_name and executor_id in {None, item.executor_id}
        ]

    def open_items(self, _conn: sa.Connection, queues: Sequence[str]) -> set[tuple[str, str]]:
        return {(item.queue_name, item.status) for item in self.items if item.queue_name in queues}

    def resume_workflows(self, ids: list[str], *, queue_name: str) -> None:
        self.resumed += [(item, queue_name) for item in ids]
        self.items = [replace(item, status="ENQUEUED") if item.workflow_id in ids else item for item in self.items]


class Bench:
    """Workers as rows; `b` is the one that looks."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.client = FakeClient()
        self.running: set[str] = set()
        self.locks: dict[tuple[str, str], bool] = {}
        """Whether each lock, by executor id and token, is known to be free."""
        self.takeover = self.of("b")

    def of(self, name: str, version: str = VERSION, watched_s: float = 0.0) -> Takeover:
        client: Any = self.client
        return Takeover(
            self.db,
            client,
            HOST,
            (name, version),
            self.running,
            unrung,
            self.ended,
            self.client.open_items,
            watched_s=watched_s,
        )

    def ended(self, executor_id: str, token: str) -> bool:
        return self.locks.get((executor_id, token), False)

    def worker(
        self,
        name: str,
        *,
        quiet_s: float = 0.0,
        lives: bool = True,
        version: str = VERSION,
        stopped: bool = False,
        space: str = "",
        elsewhere: bool = False,
    ) -> None:
        process = {
            "elsewhere": elsewhere,
            "pid": os.getpid() if lives else NO_PID,
            "boot_id": space or process_space(),
            "token": f"token of {name}",
        }

        def act(conn: sa.Connection) -> None:
            then = rows.now(conn) - quiet_s
            row = a_worker(name, HOST, then, version, stopped_at=then if stopped else None)
            conn.execute(sa.insert(workers).values(row | process))

        self.db.write_now(act)

    def at(self, executor_id: str, **more: Any) -> None:
        self.client.items.append(Item(f"i{len(self.client.items) + 1}", executor_id, **more))


@pytest.fixture
def bench(postgres: Database) -> Bench:
    made = Bench(postgres)
    made.worker("b")
    return made


async def test_a_living_worker_keeps_its_turns_among_hundreds_that_were_heard_of_later(bench: Bench) -> None:
    bench.worker("a", quiet_s=4.0)
    bench.at("a")
    for number in range(210):
        bench.worker(f"w{number}")
    await bench.of("w209").once()
    assert bench.client.resumed == []
    bench.db.write_now(heard_of, HOST)
    assert [one.workers for one in bench.db.read_now(loads, HOST)] == [212]


async def test_a_worker_of_many_hosts_asks_once_for_the_items_of_all_and_rings_where_they_wait(bench: Bench) -> None:
    asked, rung, nobody = list[list[str]](), list[tuple[str, str]](), cast("Any", None)

    def open_items(conn: sa.Connection, queues: Sequence[str]) -> set[tuple[str, str]]:
        asked.append(list(queues))
        return bench.client.open_items(conn, queues)

    def ring(host_id: str, queue: str) -> None:
        rung.append((host_id, queue))

    posts = Posts("b", ())
    for host_id in (HOST, "host2"):
        takeover = replace(bench.takeover, host_id=host_id, open_items=open_items, ring=ring)
        posts.add(post := Post(host_id, nobody, takeover))
        post.dispatch = Dispatch("b", nobody, {})
    bench.at("", queue_name="turns.host2", status="ENQUEUED")
    await posts.look()
    assert asked == [[*queues_of(HOST), *queues_of("host2")]]
    assert rung == [("host2", "turns.host2")]


async def test_turns_of_a_worker_whose_process_is_gone_go_on_each_on_its_own_queue(bench: Bench) -> None:
    bench.worker("a", lives=False, quiet_s=GRACE_S + 1)
    bench.at("a")
    bench.at("a", queue_name=f"turns.{HOST}")
    bench.at("a", queue_name="wakes.host2")
    await bench.takeover.once()
    assert sorted(bench.client.resumed) == [("i1", f"wakes.{HOST}"), ("i2", f"turns.{HOST}")]


async def test_a_worker_elsewhere_is_gone_by_its_lease_alone(bench: Bench) -> None:
    for name, quiet_s in ("away", roster.LEASE_S - 1), ("silent", roster.LEASE_S + 1):
        bench.worker(name, quiet_s=quiet_s, lives=False, elsewhere=True)
        bench.locks[name, f"token of {name}"] = True
        bench.at(name)
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i2"]


async def test_a_worker_in_a_container_of_its_own_is_gone_when_its_lock_is_free_and_by_its_lease_alone_if_not(
    bench: Bench,
) -> None:
    for name in ("freed", "held", "here", "moment"):
        quiet_s = GRACE_S - 2 if name == "moment" else GRACE_S + 1
        bench.worker(name, quiet_s=quiet_s, lives=name == "here", space="" if name == "here" else "boot/other")
        bench.locks[name, f"token of {name}"] = name != "held"
        bench.at(name)
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i1"]


async def test_a_worker_may_take_a_moment_to_be_restarted(bench: Bench) -> None:
    bench.worker("a", lives=False, quiet_s=GRACE_S - 2)
    bench.at("a")
    await bench.takeover.once()
    assert bench.client.resumed == []


async def test_turns_of_a_worker_that_lives_are_left_to_it_until_its_lease_is_over(bench: Bench) -> None:
    bench.worker("alive", quiet_s=roster.LEASE_S - 5)
    bench.worker("paused", quiet_s=roster.LEASE_S + 1)
    bench.at("alive")
    bench.at("paused")
    bench.at("b")
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i2"]


async def test_a_silence_is_watched_before_it_counts_because_the_database_may_have_been_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1000.0
    monkeypatch.setattr("shellback.work.hosts.takeover.time", SimpleNamespace(monotonic=lambda: at))
    takeover = bench.of("b", watched_s=WATCHED_S)
    bench.worker("a", quiet_s=roster.LEASE_S + 1)
    bench.worker("c", quiet_s=roster.LEASE_S + 1)
    bench.at("a")
    bench.at("c")
    for later in (0.0, 5.0, BETWEEN_S + 1, 5.0):
        # The third look comes late: this worker was away itself, so the watch begins again.
        at += later
        await takeover.once()
        assert bench.client.resumed == []
    bench.db.write_now(lambda conn: rows.change(conn, workers, "c", heartbeat_at=rows.now(conn)) and None)
    at += WATCHED_S
    await takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i1"]


async def test_a_dead_worker_whose_last_heartbeat_is_in_the_future_is_silent(bench: Bench) -> None:
    bench.worker("a", quiet_s=-100.0)
    bench.worker("c", quiet_s=-1.0)
    bench.at("a")
    bench.at("c")
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i1"], "the database's clock was set back by 100 s"


async def test_what_a_stopped_worker_and_one_nobody_knows_left_goes_on(bench: Bench) -> None:
    bench.worker("stopped", lives=False, stopped=True, quiet_s=GRACE_S + 1)
    bench.at("stopped")
    bench.at("forgotten")
    await bench.takeover.once()
    assert sorted(item for item, _ in bench.client.resumed) == ["i1", "i2"]


async def test_a_turn_goes_to_a_living_worker_of_its_version_or_to_none(bench: Bench) -> None:
    bench.worker("old", version="v0")
    bench.worker("renewed", version="v2")
    bench.at("renewed", app_version="v0")
    bench.at("renewed", app_version="v9")
    bench.at("renewed", app_version="v2")
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i1"]


async def test_a_worker_that_lives_is_known_however_many_came_after_it_and_went(bench: Bench) -> None:
    bench.worker("alive")
    started = {"started_at": workers.c.started_at - 1000.0}
    bench.db.write_now(lambda conn: conn.execute(sa.update(workers).values(started)) and None)

    def come_and_go(conn: sa.Connection) -> None:
        then = rows.now(conn) - 100
        conn.execute(sa.insert(workers), [a_worker(f"w{n}", HOST, then, stopped_at=then) for n in range(201)])

    bench.db.write_now(come_and_go)
    bench.at("alive")
    bench.at("w7")
    await bench.takeover.once()
    assert [item for item, _ in bench.client.resumed] == ["i2"]


async def test_two_that_look_at_once_give_a_turn_on_once_and_a_restart_waits_for_them(bench: Bench) -> None:
    bench.worker("a", lives=False, quiet_s=GRACE_S + 1)
    bench.worker("c")
    bench.at("a")
    inside, go = threading.Event(), threading.Event()
    resume = bench.client.resume_workflows

    def slowly(ids: list[str], *, queue_name: str) -> None:
        inside.set()
        go.wait(30)
        resume(ids, queue_name=queue_name)

    setattr(bench.client, "resume_workflows", slowly)  # noqa: B010
    found: list[Any] = []

    def take(takeover: Takeover) -> None:
        found.append(bench.db.write_now(takeover._take, "a"))  # pyright: ignore[reportPrivateUsage]

    first = threading.Thread(target=take, args=(bench.takeover,))
    second = threading.Thread(target=take, args=(bench.of("c"),))
    first.start()
    assert inside.wait(30)
    second.start()
    wait_until_locked_out(bench.db, second)
    assert second.is_alive()
    go.set()
    first.join(30)
    second.join(30)
    assert bench.client.resumed == [("i1", f"wakes.{HOST}")]
    assert sum(bool(taken) for _why, taken in found) == 1


async def test_a_worker_whose_own_lease_has_ended_judges_nobody(bench: Bench) -> None:
    bench.worker("a", lives=False, quiet_s=GRACE_S + 1)
    bench.worker("c", quiet_s=roster.LEASE_S + 1)
    bench.at("a")
    await bench.of("c").once()
    assert bench.client.resumed == []


async def test_the_conversation_says_who_lost_its_turn(bench: Bench) -> None:
    sent = Talk(bench.db).send()
    bench.worker("a", lives=False, quiet_s=GRACE_S + 1)
    bench.client.items.append(Item(sent.id, "a"))
    await bench.takeover.once()
    told = [event for event in bench.db.read_now(stream.after, "c1", 0) if event.kind == roster.TAKEN_OVER]
    assert "worker a is dead (last heard of 6 s ago)" in told[0].payload["text"]
    assert bench.db.read_now(roster.lost_turns) == {"a": 1}


async def test_an_item_is_executed_a_bounded_number_of_times_and_then_set_aside_with_an_alarm(talk: Talk) -> None:
    item = talk.send()

    def enter(one: WorkItem) -> Entry:
        return talk.db.write_now(claims.enter, one, executor_id="w", wakes=Wakes(), outbox=Outbox(on=True))

    epochs = [enter(item).epoch for _ in range(RECOVERIES)]
    assert epochs == [*range(1, RECOVERIES + 1)]
    refused = enter(item)
    assert (refused.epoch, refused.outcome) == (None, "failed")
    assert "set aside" in str(refused.alarm)

    def look(conn: sa.Connection) -> Any:
        kept = conn.execute(sa.select(mailbox.c.kind, mailbox.c.state).order_by(mailbox.c.id)).all()
        turn = conn.execute(sa.select(turns.c.outcome).where(turns.c.id == item.id)).scalar_one()
        return [tuple(one) for one in kept], turn, conn.execute(sa.select(notices.c.kind)).scalars().all()

    kept, outcome, alarms = talk.db.read_now(look)
    row = talk.conversation()
    assert kept == [("message", "unread"), ("turn_failed", "unread")]
    assert (row.state, row.blocked_reason, outcome, alarms) == ("blocked", "set_aside", "failed", ["set_aside"])
    assert enter(item) == Entry(outcome="failed")
    assert enter(talk.send("again")).epoch == RECOVERIES + 1


async def test_a_turn_of_our_own_that_nothing_executes_any_more_goes_on_at_the_second_look(database: Database) -> None:
    client: Any = FakeClient([Item("dropped", "b"), Item("executed", "b"), Item("beginning", "b")])
    running = {"executed"}
    takeover = Takeover(
        database, client, HOST, ("b", VERSION), running, unrung, lambda _name, _token: False, client.open_items
    )
    await takeover.once()
    assert client.resumed == []
    running.add("beginning")
    await takeover.once()
    assert client.resumed == [("dropped", f"wakes.{HOST}")]
    await takeover.once()
    assert len(client.resumed) == 1


async def test_an_item_that_is_executed_twice_is_executed_until_both_have_ended() -> None:
    """One that was taken over and came back: its first execution, fenced out, ends before the second."""
    ends = [asyncio.Event(), asyncio.Event()]
    left = iter(ends)

    class Entering:
        async def write(self, *_: object, **_how: object) -> tuple[Entry, None]:
            await next(left).wait()
            return Entry(outcome="nothing"), None

    anything: Any = Entering()
    runner = TurnRunner(
        database=anything, enqueuer=anything, agent=anything, propose=anything, gate=lambda: True, executor_id="b"
    )
    item = WorkItem(id="i1", type=ItemType.CHAT, priority=Priority.NORMAL, conversation_id="c1")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(runner.run(item.to_json()))
        group.create_task(runner.run(item.to_json()))
        await asyncio.sleep(0)
        ends[0].set()
        await first
        assert "i1" in runner.running
        ends[1].set()
    assert "i1" not in runner.running


@pytest.mark.parametrize("leaving", [True, False])
async def test_what_fails_for_want_of_threads_while_the_worker_leaves_is_no_answer(leaving: bool) -> None:
    """DBOS's threads are gone before its turns are: the turn is replayed."""
    closed: list[Any] = []
    without_threads = RuntimeError("cannot schedule new futures after shutdown")
    letter = Letter(id=1, kind="message", payload={"text": "hello"})

    class Anything:
        async def write(self, act: Callable[..., object], *given: object, **_how: object) -> object:
            if act is close:
                closed.append(given)
                return Closed("failed")
            return Entry(epoch=1), Begun(gate=False, look=False, record=None, letters=[letter])

        async def run(self, *_: object, **_how: object) -> None:
            raise without_threads

    anything: Any = Anything()
    runner = TurnRunner(
        database=anything, enqueuer=anything, agent=anything, propose=anything, gate=lambda: False, executor_id="b"
    )
    item = WorkItem(id="i1", type=ItemType.CHAT, priority=Priority.NORMAL, conversation_id="c1")
    if leaving:
        runner.leaving.set()
        with pytest.raises(RuntimeError) as caught:
            await runner.run(item.to_json())
        assert caught.value is without_threads
    else:
        assert await runner.run(item.to_json()) == {"outcome": "failed"}
    assert bool(closed) is not leaving
