"""What is old goes, in an order that holds wherever it is cut off; what lives, waits or is unheard stays."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from dbos import DBOSClient
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelRequest
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import Act, CallKey, Delivery, SessionId
from shellback.exec.engine.ends import Ends
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import remove_session
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.exec.wire import crashpoints
from shellback.storage import history, retention, rules, sessions
from shellback.storage import tables as t
from shellback.storage.db import Database
from shellback.work.approvals import approvals, sending
from shellback.work.hosts.sweep import undelivered
from shellback.work.queue import mailbox
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.items import ItemType, Priority, WorkItem, callback_item
from shellback.work.queue.queues import DbosEnqueuer
from shellback.work.turn import claims, closing, looks
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing
from shellback.work.worker.posts import Posts
from shellback.work.worker.retention import DAY_S, Ages, Retention
from shellback.work.worker.worker import Worker, WorkerConfig
from tests.items import PROPOSED, unrung
from tests.sessions import EXITED, a_session
from tests.stage import stage
from tests.supervisors import crash_points

HOST = "host1"
PAYLOADS = ("workflow_input", "workflow_output", "operation_outputs")
POINTS = [point for point in crash_points() if point.startswith("retention.")]
numbers = itertools.count(1)
pytestmark = pytest.mark.anyio


class World:
    """Conversations whose turns are carried out by hand, through the functions that the worker uses."""

    def __init__(self, db: Database, url: str, root: Path) -> None:
        self.db = db
        self.client = DBOSClient(system_database_url=url, application_name="shellback")
        self.queue = DbosEnqueuer(self.client, unrung)
        self.directories = root / "sessions"
        self.links = LogLinks(root, self.directories)
        self.schema = "" if db.dialect == "sqlite" else "dbos."

    def prunes(
        self, *, rows: float = 30, conversations: float = 90, logs: float = 7, host: str = HOST, **more: Any
    ) -> Retention:
        ages = Ages(rows=rows * DAY_S, logs=logs * DAY_S, conversations=conversations * DAY_S)
        return Retention(self.db, self.client, lambda name: remove_session(self.links, name), host, ages, **more)

    def send(self, name: str, text: str = "hello") -> str:
        return self.db.write_now(sending.send, self.queue, name, text, host_id=HOST, waiting=False).item_id

    def enter(self, item: str, name: str, kind: str = "CHAT") -> int:
        work = WorkItem(id=item, type=ItemType(kind), conversation_id=name, priority=Priority(100))
        entry = self.db.write_now(claims.enter, work, executor_id="w1", wakes=Wakes())
        assert entry.epoch is not None
        return entry.epoch

    def close(self, item: str, name: str, epoch: int, **more: Any) -> None:
        letters = self.db.write_now(looks.look, name, item, epoch, 0).letters
        before = self.db.read_now(history.read_record_in, name)
        entry = ConversationEntry(
            id=f"e{next(numbers)}", parent_id=before.head_id if before else None, message=ModelRequest(parts=[])
        )
        record = ConversationRecord(
            conversation_id=name, head_id=entry.id, revision=f"r{next(numbers)}", updated_at=datetime.now(UTC)
        )
        given: dict[str, Any] = {"outcome": "answered", "answer": "done", **more}
        heard = frozenset(letter.id for letter in letters)
        made = Closing(conversation_id=name, turn_id=item, epoch=epoch, heard=heard, **given)
        revision = before.revision if before else None
        self.db.write_now(closing.close, self.queue, made, record, [entry], revision)

    def turn(self, name: str, item: str | None = None, kind: str = "CHAT") -> str:
        item = item or self.send(name)
        self.close(item, name, self.enter(item, name, kind))
        return item

    def session(self, name: str, turn: str, *, ends: bool = True, delivery: Delivery = Delivery.CALLBACK) -> str:
        """A session of that turn, with its directory, a keyed call, and its end told where it ends."""
        claimed = a_session(next(numbers), conversation_id=name, turn_id=turn, host_id=HOST, delivery=delivery)
        self.db.write_now(sessions.claim, claimed)
        self.db.write_now(sessions.started, claimed.id, pid=1, started_at=time.time())
        act = Act(key=CallKey(f"k{claimed.id}"), session_id=claimed.id, tool="process_write")
        self.db.write_now(sessions.begin, act)
        (self.directories / claimed.id).mkdir(parents=True)
        if ends:
            sink = CallbackSink(self.queue, HOST, lambda session: {"session_id": session.id})
            self.db.write_now(sessions.finish, claimed.id, replace(EXITED, ended_at=time.time()), sink)
            (self.directories / claimed.id / "acked.json").write_text("{}")
        return claimed.id

    def heard(self, name: str, session_id: str) -> None:
        self.turn(name, callback_item(name, session_id, {}).id, "EXEC_CALLBACK")

    def whole(self, name: str = "c1") -> str:
        """A conversation with everything in it: message, approval, call, session, wake, history."""
        item = self.send(name)
        epoch = self.enter(item, name)
        call = replace(PROPOSED, call_key=f"call-{next(numbers)}")
        self.close(item, name, epoch, outcome="pending_approval", answer=None, proposed=(call,))
        (request,) = self.db.read_now(approvals.find, conversation_id=name, state="pending")
        self.db.write_now(approvals.decide, self.queue, request.id, "denied", by="t", surface="t")
        self.turn(name, f"APPROVAL:{name}:{epoch}", "APPROVAL")
        session_id = self.session(name, item)
        self.heard(name, session_id)
        return session_id

    def settle(self) -> None:
        """DBOS has carried out whatever has an outcome."""
        self.db.write_now(
            lambda conn: conn.execute(
                sa.text(
                    f"update {self.schema}workflow_status set status = 'SUCCESS' "
                    "where workflow_uuid in (select id from turns where outcome is not null)"
                )
            )
        )

    def age(self, days: float) -> None:
        """Everything happened that much earlier, and was carried out."""
        self.settle()

        def act(conn: sa.Connection) -> None:
            forged = {
                "sqlite": "DROP TRIGGER IF EXISTS audit_append_only",
                "postgresql": "ALTER TABLE audit DISABLE TRIGGER ALL",
            }
            conn.execute(sa.text(forged[conn.dialect.name]))
            for table in t.metadata.sorted_tables:
                times = {
                    c.name: c - days * DAY_S
                    for c in table.c
                    if (c.name == "at" or c.name.endswith("_at")) and c.name != "forked_at"
                }
                if times:
                    conn.execute(sa.update(table).values(times))

        self.db.write_now(act)

    def names(self, column: sa.Column[Any]) -> list[Any]:
        return self.db.read_now(lambda conn: sorted(conn.execute(sa.select(column)).scalars()))

    def of_dbos(self, table: str = "workflow_status") -> list[str]:
        query = sa.text(f"select workflow_uuid from {self.schema}{table}")
        return self.db.read_now(lambda conn: sorted(conn.execute(query).scalars()))

    def counts(self) -> dict[str, int]:
        tables = [table for table in t.metadata.sorted_tables if table.name != "events"]

        def look(conn: sa.Connection) -> dict[str, int]:
            every = {table.name: sa.select(sa.func.count()).select_from(table) for table in tables}
            return {name: conn.execute(query).scalar_one() for name, query in every.items()}

        return {name: number for name, number in self.db.read_now(look).items() if number}

    def assert_in_order(self) -> None:
        """Nothing has gone before what hangs on it, or before what keeps it from happening again."""
        turns, items = set(self.names(t.turns.c.id)), set(self.of_dbos())
        kept = self.names(t.sessions.c.id)
        assert items <= turns
        assert {f"EXEC_CALLBACK:{name}" for name in kept} <= items
        assert set(self.names(t.calls.c.session_id)) <= set(kept)
        named = {key.removeprefix("exit:") for key in self.names(t.mailbox.c.dedupe_key) if key.startswith("exit:")}
        assert named <= set(kept)
        assert {path.name for path in self.directories.iterdir()} <= set(kept)
        if turns or kept:
            assert self.names(t.conversations.c.id)
        for table in PAYLOADS:
            assert set(self.of_dbos(table)) <= items


@pytest.fixture
def world(database: Database, database_url: str, tmp_path: Path) -> Iterator[World]:
    made = World(database, database_url, tmp_path)
    yield made
    made.links.close()
    made.client.destroy()


async def test_an_idle_conversation_goes_whole_and_its_name_can_be_used_anew(world: World) -> None:
    world.whole()
    world.db.write_now(rules.add, [Rule(effect="allow", match=Match(prefix=("make",), conversation_id="c1"))])
    world.age(100)
    planned = await world.prunes().planned()
    gone = await world.prunes().once()
    assert gone == planned
    assert (gone["turns"], gone["sessions"], gone["conversations"]) == (3, 1, 1)
    assert world.counts() == {}
    assert [world.of_dbos(table) for table in ("workflow_status", *PAYLOADS)] == [[], [], [], []]
    assert not any(world.directories.iterdir())
    # An epoch begins again, and so do the ids that are made of it.
    item = world.send("c1")
    epoch = world.enter(item, "c1")
    world.db.write_now(looks.look, "c1", item, epoch, 0)
    world.send("c1", "one more")
    nothing = Closing(conversation_id="c1", turn_id=item, epoch=epoch, outcome="nothing")
    world.db.write_now(closing.close, world.queue, nothing, None, [], None)
    assert f"FOLLOW_UP:c1:{epoch}" in world.of_dbos()


async def test_cut_off_at_any_step_the_order_holds_and_the_next_pass_ends_it(world: World, tmp_path: Path) -> None:
    crashpoints.arm_from(str(tmp_path))
    try:
        for point in POINTS:
            world.whole(point)
            world.age(100)
            (tmp_path / point).write_text("error 5")
            with pytest.raises(OSError, match=point):
                await world.prunes().once()
            world.assert_in_order()
            await world.prunes().once()
            assert world.counts() == {}
            assert world.of_dbos() == []
    finally:
        crashpoints.arm_from(None)


async def test_what_is_old_goes_from_a_conversation_that_lives_and_its_history_stays(world: World) -> None:
    world.whole()
    world.age(40)
    young = world.turn("c1")
    world.age(1)
    gone = await world.prunes().once()
    assert (gone["turns"], gone["sessions"], gone["conversations"]) == (3, 1, 0)
    assert world.names(t.turns.c.id) == world.of_dbos() == [young]
    assert world.counts() == {"conversations": 1, "history_records": 1, "history_entries": 4, "mailbox": 1, "turns": 1}
    world.age(1000)
    await world.prunes(conversations=0).once()
    assert world.counts() == {"conversations": 1, "history_records": 1, "history_entries": 4}


async def test_what_is_young_stays(world: World) -> None:
    world.whole()
    world.age(20)
    before = world.counts()
    assert sum((await world.prunes().once()).values()) == 0
    assert world.counts() == before
    # Of a session whose log is kept for longer, the record is too.
    world.age(20)
    assert (await world.prunes(logs=50).once())["sessions"] == 0
    world.assert_in_order()


async def test_what_lives_waits_or_is_unheard_stays_whatever_its_age(world: World) -> None:
    live = world.session("live", world.turn("live"), ends=False)
    untold = world.session("untold", world.turn("untold"))
    world.db.write_now(
        lambda conn: conn.execute(
            sa.update(t.turns)
            .where(t.turns.c.id == f"EXEC_CALLBACK:{untold}")
            .values(outcome="busy", ended_at=time.time())
        )
    )
    awaited = world.session("awaited", world.turn("awaited"), delivery=Delivery.INLINE)
    queued = world.send("queued")
    running = world.send("running")
    world.enter(running, "running")
    asked = world.send("asking")
    world.close(asked, "asking", world.enter(asked, "asking"), outcome="pending_approval", proposed=(PROPOSED,))
    pending = world.turn("pending")
    world.age(1000)
    world.db.write_now(
        lambda conn: conn.execute(
            sa.text(f"update {world.schema}workflow_status set status = 'PENDING' where workflow_uuid = :id"),
            {"id": pending},
        )
    )
    for _ in range(2):
        await world.prunes().once()
    assert world.names(t.sessions.c.id) == sorted([live, untold, awaited])
    assert {queued, running, asked, pending} <= set(world.names(t.turns.c.id))
    assert {queued, running, pending, f"EXEC_CALLBACK:{untold}"} <= set(world.of_dbos())
    assert len(world.names(t.approvals.c.id)) == 1
    assert len(world.names(t.conversations.c.id)) == 7
    assert sorted(world.db.read_now(undelivered)) == [untold]


async def test_an_end_that_the_supervisor_still_tells_keeps_its_session(world: World) -> None:
    session_id = world.whole()
    (world.directories / session_id / "acked.json").rename(world.directories / session_id / "exit.json")
    world.age(100)
    await world.prunes().once()
    assert world.names(t.sessions.c.id) == [session_id]
    world.assert_in_order()


async def test_a_turn_that_may_be_repeated_keeps_the_keys_of_its_calls(world: World) -> None:
    """The worker was away for longer than rows are kept, in the middle of a turn."""
    world.whole()
    item = world.send("c1")
    world.enter(item, "c1")
    world.age(100)
    gone = await world.prunes().once()
    assert (gone["calls"], gone["sessions"], gone["approvals"], gone["turns"]) == (0, 0, 0, 0)


async def test_a_turn_that_asked_stays_as_long_as_what_it_asked(world: World) -> None:
    """Which turn asked last is looked up through its row."""
    world.whole()
    world.age(100)
    world.db.write_now(lambda conn: conn.execute(sa.update(t.approvals).values(decided_at=time.time())))
    assert (await world.prunes().once())["turns"] == (await world.prunes().planned())["turns"] + 2
    assert world.names(t.approvals.c.turn_id) == world.names(t.turns.c.id) == world.of_dbos()


async def test_sessions_and_conversations_of_another_host_are_left_to_it(world: World) -> None:
    world.whole()
    world.age(100)
    gone = await world.prunes(host="elsewhere").once()
    assert (gone["sessions"], gone["conversations"]) == (0, 0)


async def test_what_a_conversation_has_left_is_ended_before_it_goes_and_keeps_it_where_that_cannot_be(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.turn("c1")
    world.age(100)
    asked: list[tuple[list[str], list[str]]] = []

    async def expire(names: Sequence[str]) -> None:
        asked.append((list(names), world.names(t.conversations.c.id)))
        if len(asked) == 1:
            raise SupervisorUnreachable("it does not answer")

    assert (await world.prunes(expire=expire).once())["conversations"] == 0
    assert "their processes cannot be ended: it does not answer" in caplog.text
    assert (await world.prunes(expire=expire).once())["conversations"] == 1
    assert asked == [(["c1"], ["c1"])] * 2


async def test_an_entry_that_a_fork_shares_outlives_the_conversation_it_came_from(world: World) -> None:
    world.turn("c1")
    record = world.db.read_now(history.read_record_in, "c1")
    assert record is not None
    world.age(100)
    fork = ConversationRecord(
        conversation_id="fork", head_id=record.head_id, revision="f1", updated_at=datetime.now(UTC)
    )
    world.db.write_now(history.write_record_in, fork, [], None)
    assert (await world.prunes().once())["conversations"] == 1
    assert world.names(t.history_records.c.conversation_id) == ["fork"]
    assert world.names(t.history_entries.c.id) == [record.head_id]


async def test_no_transaction_is_longer_than_a_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 4)
    for number in range(9):
        world.turn(f"c{number}")
    world.age(100)
    write, sizes = world.db.write, list[int]()

    async def noted(fn: Any, *args: Any) -> Any:
        number = await write(fn, *args)
        sizes.append(number)
        return number

    monkeypatch.setattr(world.db, "write", noted)
    assert (await world.prunes().once())["turns"] == 9
    assert max(sizes) == 4
    assert world.counts() == {}


async def test_a_late_end_of_a_pruned_session_is_acknowledged_and_told_to_nobody(tmp_path: Path) -> None:
    acknowledged: list[str] = []

    async def acknowledge(session_id: SessionId) -> None:
        acknowledged.append(session_id)

    store = MemorySessionStore()
    (tmp_path / "foreign").mkdir()
    links = LogLinks(tmp_path, tmp_path)
    ends = Ends(store, ExecRegistry(store), acknowledge, forgotten=links.forgotten)
    for name in ("pruned", "foreign"):
        ends.received(SessionId(name), EXITED)
    await ends.settled()
    assert acknowledged == ["pruned"]


async def test_a_message_to_a_conversation_that_is_pruned_at_that_moment_makes_it_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.turn("c1")
    world.age(100)
    await world.prunes(conversations=0).once()
    lock = mailbox.lock

    def late(conn: sa.Connection, name: str) -> Any:
        monkeypatch.setattr(mailbox, "lock", lock)
        conn.execute(sa.delete(t.conversations))
        return lock(conn, name)

    monkeypatch.setattr(mailbox, "lock", late)
    item = world.send("c1")
    assert world.enter(item, "c1") == 1


async def test_a_worker_that_was_pruned_while_its_machine_slept_is_there_again(world: World) -> None:
    nobody: Any = None
    config = WorkerConfig(executor_id="w1", host_id=HOST, boot_id="b", system_database_url="")
    worker = Worker(config, world.db, nobody, nobody, Posts("w1", ()), nobody, nobody, nobody)
    await worker._beat()  # pyright: ignore[reportPrivateUsage]
    world.age(100)
    assert (await world.prunes().once())["workers"] == 1
    await worker._beat()  # pyright: ignore[reportPrivateUsage]
    assert world.names(t.workers.c.executor_id) == ["w1"]


async def test_no_turn_runs_before_what_has_to_hold_for_it(world: World) -> None:
    class Engine:
        async def start(self) -> None:
            pass

        async def stop(self) -> None:
            pass

    class Cannot(Engine):
        async def start(self) -> None:
            raise OSError("no room")

    nobody: Any = None
    config = WorkerConfig(executor_id="w1", host_id=HOST, boot_id="b", system_database_url="")
    worker = Worker(config, world.db, nobody, nobody, nobody, Engine(), nobody, nobody, before=[Cannot()])
    # Without a runner, all that follows would fail.
    with pytest.raises(OSError, match="no room"):
        await worker.start()


def planned(conn: sa.Connection, text: str) -> list[str]:
    return [row[-1] for row in conn.execute(sa.text(text))]


def test_what_is_looked_for_is_found_by_an_index(sqlite: Database) -> None:
    cut = retention.Cut(host_id=HOST, rows=1.0, sessions=1.0, conversations=1.0)
    queries = {name: retention.plain(cut)[name] for name in ("mailbox", "approvals", "calls", "notices")}
    queries["sessions"] = retention.sessions_to_go(cut)
    queries["turns"] = retention.turns_to_go(cut, callbacks=True)
    queries["turns "] = retention.turns_to_go(cut, callbacks=False)
    for name, query in queries.items():
        text = str(query.compile(dialect=sqlite_dialect(), compile_kwargs={"literal_binds": True}))
        plan = sqlite.read_now(planned, f"EXPLAIN QUERY PLAN {text}")
        # A database has a handful of hosts.
        assert not [line for line in plan if line.startswith("SCAN") and line != "SCAN hosts"], (name, plan)


def test_the_command_says_what_would_go_and_prunes_it() -> None:
    from tests.commands import assert_refused, facts, shellback

    with stage() as on:
        world = World(on.where.database, on.settings.database_url, on.home)
        session_id = world.whole()
        world.db.write_now(lambda conn: conn.execute(sa.update(t.sessions).values(host_id=on.where.host_id)))
        world.age(40)
        assert world.db.read_now(sessions.get, SessionId(session_id)) is not None
        planned = facts(shellback(on, "prune", "--dry-run", "--json"))
        assert (planned["dry_run"], planned["rows"]["turns"], planned["rows"]["sessions"]) == (True, 3, 1)
        assert len(world.of_dbos()) == 3
        assert shellback(on, "prune", "--older-than", "6w").stdout == "pruned: nothing\n"
        assert "1 sessions" in shellback(on, "prune", "--older-than", "30d").stdout
        assert world.of_dbos() == []
        assert_refused(shellback(on, "prune", "--older-than", "soon"), "12h, 30d or 6w")
        world.links.close()
        world.client.destroy()
