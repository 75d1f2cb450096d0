"""What becomes of a host's processes and conversations when nobody has heard of it for longer than its lease."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import Act, CallKey, Delivery, Evidence, Session, SessionEnd, SessionId, SessionState
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.sessions import Sessions
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.storage import retention, watches
from shellback.storage import sessions as store
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.tables import conversations, events, hosts, mailbox, notices, sessions, turns
from shellback.work.approvals import approvals, sending
from shellback.work.hosts import hosts as known_hosts
from shellback.work.hosts.adopting import Here, Neighbours, give_up, move
from shellback.work.hosts.loads import Load, loads
from shellback.work.hosts.placing import Wanted
from shellback.work.notices.notices import Outbox
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.items import WorkItem
from shellback.work.queue.queues import note_turn
from shellback.work.turn import claims, closing, looks
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing
from shellback.work.worker import worker as working
from shellback.work.worker.worker import WorkerConfig
from tests.databases import wait_until_locked_out
from tests.documents import ROOT, blocks
from tests.execs import origin, places, run, unstarted_engine
from tests.items import PROPOSED
from tests.sessions import EXITED, a_session
from tests.watches import a_watch

# pyright: reportPrivateUsage=false
pytestmark = pytest.mark.anyio
THERE, ELSEWHERE = "there", "elsewhere"
LEASE_S = 300.0


@dataclass
class HostedEnqueuer:
    """Notes on which host's queues each item was put; like DBOS, an id that was used before changes nothing."""

    items: dict[str, tuple[str, WorkItem]] = field(default_factory=dict[str, tuple[str, WorkItem]])

    def put(self, conn: sa.Connection, item: WorkItem, *, host_id: str) -> None:
        note_turn(conn, item)
        self.items.setdefault(item.id, (host_id, item))

    def decided(self, conn: sa.Connection, *, host_id: str) -> None:
        pass

    def of(self, host_id: str) -> list[str]:
        return [item.type.value for host, item in self.items.values() if host == host_id]


@dataclass
class Found:
    workflow_id: str
    status: str


@dataclass
class FakeClient:
    waiting: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])

    def list_workflows(self, *, workflow_ids: list[str], **_: Any) -> list[Found]:
        return [Found(item, "ENQUEUED" if item in self.waiting else "SUCCESS") for item in workflow_ids]

    def cancel_workflow(self, workflow_id: str) -> None:
        self.cancelled.append(workflow_id)


class Bench:
    """A conversation on host `there`, of which nobody has heard for longer than its lease."""

    def __init__(self, db: Database, *, shared: bool = False) -> None:
        self.db = db
        self.queue = HostedEnqueuer()
        self.client = FakeClient()
        self.here = self.acting(ELSEWHERE)
        self.sweep = self.sweeping(self.here, shared=shared)
        self.heard(THERE, ago=400.0)

    def acting(self, host_id: str) -> Here:
        sink = CallbackSink(self.queue, host_id, lambda session: callback_payload(session, None))
        return Here(host_id, f"{host_id}-name", LEASE_S, self.queue, sink, Outbox(host_id, on=True))

    def sweeping(self, here: Here, *, shared: bool = False, watched_s: float = 0.0) -> Neighbours:
        client: Any = self.client
        return Neighbours(self.db, client, here, shared=shared, watched_s=watched_s)

    def heard(self, host_id: str, *, ago: float) -> None:
        def act(conn: sa.Connection) -> None:
            known_hosts.heard_of(conn, host_id)
            changes = {"heartbeat_at": hosts.c.heartbeat_at - ago, "name": f"{host_id}-name"}
            conn.execute(sa.update(hosts).where(hosts.c.host_id == host_id).values(changes))

        self.db.write_now(act)

    def send(self, text: str = "hello", name: str = "c1") -> WorkItem:
        sent = self.db.write_now(sending.send, self.queue, name, text, host_id=THERE)
        return self.queue.items[sent.item_id][1] if sent.item_id in self.queue.items else self.item(sent.item_id)

    def unplaced(self, name: str) -> None:
        wanted = Wanted(here=ELSEWHERE, needs=("gpu",))
        self.db.write_now(sending.send, self.queue, name, "hello", host_id=ELSEWHERE, place=wanted)

    def item(self, item_id: str) -> WorkItem:
        return replace(next(iter(self.queue.items.values()))[1], id=item_id)

    def claimed(self) -> tuple[WorkItem, int]:
        item = self.send()
        entry = self.enter(item, THERE)
        assert entry.epoch is not None
        self.db.write_now(looks.look, "c1", item.id, entry.epoch, 0)
        return item, entry.epoch

    def enter(self, item: WorkItem, host_id: str) -> claims.Entry:
        return self.db.write_now(claims.enter, item, executor_id=f"{host_id}.w", wakes=Wakes(), hosts={host_id})

    def session(self, number: int = 1, **changes: Any) -> SessionId:
        session = a_session(number, host_id=THERE, state=SessionState.RUNNING, **changes)
        return self.db.write_now(store.claim, session).id

    def get(self, session_id: SessionId) -> Any:
        return self.db.read_now(store.get, session_id)

    def row(self, name: str = "c1") -> Any:
        query = sa.select(conversations).where(conversations.c.id == name)
        return self.db.read_now(lambda conn: conn.execute(query).one())

    def outcome(self, item_id: str) -> str | None:
        query = sa.select(turns.c.outcome).where(turns.c.id == item_id)
        return self.db.read_now(lambda conn: conn.execute(query).scalar_one())

    def alarms(self) -> list[str]:
        query = sa.select(events.c.payload).where(events.c.kind == "alarm")
        return [row["text"] for row in self.db.read_now(lambda conn: conn.execute(query).scalars().all())]

    def all(self, table: sa.Table) -> list[Any]:
        return list(self.db.read_now(lambda conn: conn.execute(sa.select(table)).all()))

    def close(self, item_id: str, epoch: int, outcome: str = "answered", **more: Any) -> str:
        closed = Closing(conversation_id="c1", turn_id=item_id, epoch=epoch, outcome=outcome, **more)
        return self.db.write_now(closing.close, self.queue, closed, None, [], None).outcome

    def propose(self, item: WorkItem, epoch: int) -> str:
        self.close(item.id, epoch, "pending_approval", proposed=(PROPOSED,))
        return self.db.read_now(approvals.find)[0].id


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


@pytest.fixture
def shared(database: Database) -> Bench:
    return Bench(database, shared=True)


async def test_the_processes_of_a_silent_host_are_lost_and_each_is_told_once(bench: Bench) -> None:
    bench.claimed()
    ids = [bench.session(number) for number in (1, 2)]
    for _ in range(3):
        await bench.sweep.once()
    for session_id in ids:
        end = bench.get(session_id).end
        assert (end.state, end.evidence, end.exit_code) == (SessionState.LOST, Evidence.HOST_UNREACHABLE, None)
    rows = [row for row in bench.all(mailbox) if row.kind == "exit"]
    assert sorted(row.dedupe_key for row in rows) == [f"exit:{one}" for one in ids]
    assert bench.queue.of(THERE).count("EXEC_CALLBACK") == 2
    assert bench.queue.of(ELSEWHERE) == []
    assert (bench.row().host_id, bench.row().state) == (THERE, "claimed")
    (said,) = bench.alarms()
    assert said.startswith("host there-name has not been heard of for 4")
    assert "its 2 process(es)" in said
    assert "`shellback adopt conversation c1`" in said
    assert [(row.kind, "there-name" in row.payload["text"]) for row in bench.all(notices)] == [("alarm", True)]
    assert bench.all(hosts)[0].given_up_at is not None


async def test_what_a_lost_process_printed_on_another_host_is_said_to_be_unknown(bench: Bench) -> None:
    bench.session()
    await bench.sweep.once()
    (row,) = bench.all(mailbox)
    assert (row.payload["bytes_total"], row.payload["bytes_dropped"], row.payload["last_lines"]) == (None, None, [])
    assert "its host, which has its output, does not answer" in wake_text(row.payload)
    assert "is not known" in wake_text(row.payload)


async def test_a_host_heard_of_within_its_lease_is_left_alone(bench: Bench) -> None:
    bench.claimed()
    session_id = bench.session()
    bench.heard(THERE, ago=LEASE_S - 30)
    await bench.sweep.once()
    assert bench.get(session_id).live
    assert bench.alarms() == []


async def test_a_silence_is_watched_for_a_while_because_the_database_may_have_been_away(bench: Bench) -> None:
    session_id = bench.session()
    sweep = bench.sweeping(bench.here, watched_s=0.2)
    await sweep.once()
    assert bench.get(session_id).live
    bench.heard(THERE, ago=399.0)  # it has beaten meanwhile
    await asyncio.sleep(0.25)
    await sweep.once()
    assert bench.get(session_id).live
    await asyncio.sleep(0.25)
    await sweep.once()
    assert not bench.get(session_id).live


async def test_a_host_that_beats_again_before_its_row_is_locked_keeps_everything(bench: Bench) -> None:
    """The look that found it silent is old by then: what counts is what is seen under the lock."""
    bench.claimed()
    session_id = bench.session()
    bench.heard(THERE, ago=0.0)
    assert bench.db.write_now(give_up, bench.here, THERE, "c1") is None
    assert bench.db.write_now(move, bench.here, THERE, "c1") is None
    assert bench.all(notices) == []
    assert bench.get(session_id).live
    assert bench.row().host_id == THERE


def test_the_heartbeat_of_a_host_waits_while_somebody_settles_what_it_left(postgres: Database) -> None:
    """Else it would go on beside the act that gives it up, each with a different truth."""
    bench = Bench(postgres)
    beating = threading.Thread(target=lambda: bench.heard(THERE, ago=0.0))

    def settling(conn: sa.Connection) -> bool:
        assert known_hosts.held(conn, THERE, wait=False) is not None
        beating.start()
        wait_until_locked_out(postgres, beating)
        assert postgres.write_now(give_up, bench.here, THERE, "c1") is None
        return beating.is_alive()

    assert postgres.write_now(settling)
    beating.join()


async def test_a_host_without_processes_and_news_is_left_alone(bench: Bench) -> None:
    await bench.sweep.once()
    assert bench.all(hosts)[0].given_up_at is None
    assert bench.all(notices) == []


async def test_news_that_waits_for_a_silent_host_is_said_to_wait_once(bench: Bench) -> None:
    bench.send()
    for _ in range(2):
        await bench.sweep.once()
    assert bench.db.write_now(give_up, bench.here, THERE, "c1") == 0  # another host had looked before
    assert len(bench.alarms()) == 1
    bench.heard(THERE, ago=0.0)
    assert bench.all(hosts)[0].given_up_at is None
    bench.heard(THERE, ago=500.0)
    await bench.sweep.once()
    assert len(bench.alarms()) == 2
    assert len(bench.all(notices)) == 2


def test_who_is_told_of_alarms_hears_of_it_though_whoever_gives_a_host_up_dies_after_its_first_act(
    bench: Bench,
) -> None:
    bench.session()
    assert bench.db.write_now(give_up, bench.here, THERE, "c1") == 1
    assert bench.all(hosts)[0].given_up_at is not None
    assert [row.kind for row in bench.all(notices)] == ["alarm"]


async def test_the_end_of_a_foreground_command_of_a_silent_host_becomes_a_callback(bench: Bench) -> None:
    session_id = bench.session(background=False, delivery=Delivery.INLINE)
    await bench.sweep.once()
    assert bench.get(session_id).delivery is Delivery.CALLBACK
    assert list(bench.queue.items) == [f"EXEC_CALLBACK:{session_id}"]


async def test_two_hosts_that_find_a_third_one_silent_tell_everything_once(bench: Bench) -> None:
    for number in range(1, 9):
        bench.session(number, conversation_id=f"c{number % 4}")
    both = [bench.sweep, bench.sweeping(bench.acting("a-third"))]
    for _ in range(2):
        await asyncio.gather(*(sweep.once() for sweep in both))
    assert not [row for row in bench.all(sessions) if row.state == "running"]
    assert len([row for row in bench.all(mailbox) if row.kind == "exit"]) == 8
    assert len(bench.alarms()) == 4
    assert len(bench.all(notices)) == 1


def test_the_first_recorded_end_counts_when_the_host_returns_with_the_real_one(bench: Bench) -> None:
    session_id = bench.session()
    asyncio.run(bench.sweep.once())
    after = bench.db.write_now(store.finish, session_id, EXITED, bench.acting(THERE).sink)
    assert after.state is SessionState.LOST
    assert list(bench.queue.items) == [f"EXEC_CALLBACK:{session_id}"]


async def test_a_claimed_conversation_of_a_shared_workspace_goes_on_here(shared: Bench) -> None:
    item, _ = shared.claimed()
    session_id = shared.session(turn_id=item.id)
    shared.client.waiting.append(item.id)
    await shared.sweep.once()
    row = shared.row()
    assert (row.host_id, row.state, row.claimed_by) == (ELSEWHERE, "free", None)
    assert shared.outcome(item.id) == "failed"
    assert sorted(shared.queue.of(ELSEWHERE)) == ["EXEC_CALLBACK", "RETRY"]
    kinds = {row.kind: (row.state, row.payload) for row in shared.all(mailbox)}
    assert {kind: state for kind, (state, _) in kinds.items()} == dict.fromkeys(
        ("message", "exit", "turn_failed"), "unread"
    )
    assert kinds["turn_failed"][1]["started"][0]["session_id"] == session_id
    assert shared.client.cancelled == [item.id]
    assert "continued on host elsewhere-name" in shared.alarms()[0]


async def test_the_turn_that_was_only_cut_off_can_do_nothing_any_more(shared: Bench) -> None:
    item, epoch = shared.claimed()
    session_id = shared.session()
    await shared.sweep.once()
    stale = a_session(9, host_id=THERE, turn_id=item.id, epoch=epoch)
    db = shared.db
    with pytest.raises(StaleTurn):
        db.write_now(looks.look, "c1", item.id, epoch, 1)
    with pytest.raises(StaleTurn):
        db.write_now(store.claim, stale)
    act = Act(key=CallKey("k"), session_id=session_id, tool="process_write", turn_id=item.id, epoch=epoch)
    with pytest.raises(StaleTurn):
        db.write_now(store.begin, act)
    with pytest.raises(StaleTurn):
        shared.close("another", epoch, answer="late")
    assert shared.close(item.id, epoch, answer="late") == "failed"
    assert shared.enter(item, THERE).outcome == "failed"


def test_what_was_watched_on_the_host_that_is_left_is_watched_no_more(shared: Bench) -> None:
    """Also where the session had ended, and its last output was yet to be looked at."""
    shared.claimed()
    session_id = shared.session()
    shared.db.write_now(store.finish, session_id, EXITED)
    for number, host_id in ((1, THERE), (2, ELSEWHERE)):
        shared.db.write_now(watches.place, a_watch(number, session_id=session_id, host_id=host_id))
    assert shared.db.write_now(move, shared.here, THERE, "c1", force=True) is not None
    assert [watch.id for watch in shared.db.read_now(watches.find)] == ["v2"]


def test_a_conversation_moves_once_however_many_move_it(shared: Bench) -> None:
    shared.claimed()
    third = shared.acting("a-third")
    came = [shared.db.write_now(move, here, THERE, "c1") for here in (shared.here, third, shared.here)]
    assert [one is not None for one in came] == [True, False, False]
    assert (shared.row().host_id, shared.queue.of("a-third")) == (ELSEWHERE, [])


async def test_news_whose_item_lies_in_the_queue_of_the_silent_host_gets_one_here(shared: Bench) -> None:
    item = shared.send()
    await shared.sweep.once()
    assert shared.outcome(item.id) == "moved"
    assert shared.queue.of(ELSEWHERE) == ["FOLLOW_UP"]
    assert shared.enter(item, THERE) == claims.Entry(outcome="moved")
    (follow,) = [one for host, one in shared.queue.items.values() if host == ELSEWHERE]
    assert shared.enter(follow, ELSEWHERE).epoch == 1


async def test_a_follow_up_that_the_silent_host_has_enqueued_already_does_not_hide_the_new_one(shared: Bench) -> None:
    """An id that was used before enqueues nothing, ever: the new item needs one of its own."""
    item, epoch = shared.claimed()
    shared.send("more")
    shared.close(item.id, epoch, answer="yes")
    assert shared.queue.of(THERE) == ["CHAT", "CHAT", "FOLLOW_UP"]
    await shared.sweep.once()
    assert shared.queue.of(ELSEWHERE) == ["FOLLOW_UP"]


async def test_a_message_to_a_moved_conversation_does_not_join_an_item_that_stayed_behind(shared: Bench) -> None:
    shared.send()
    await shared.sweep.once()
    shared.send("again")
    assert shared.queue.of(ELSEWHERE) == ["FOLLOW_UP", "CHAT"]


@pytest.mark.parametrize("decided_before", [True, False])
async def test_what_waits_for_approval_is_decided_and_resumed_here(shared: Bench, decided_before: bool) -> None:
    request = shared.propose(*shared.claimed())

    def decide() -> None:
        shared.db.write_now(approvals.decide, shared.queue, request, "approved", by="me", surface="test")

    if decided_before:
        decide()
        assert shared.queue.of(THERE) == ["CHAT", "APPROVAL"]
    await shared.sweep.once()
    assert (shared.row().host_id, shared.row().blocked_reason) == (ELSEWHERE, "approval")
    if not decided_before:
        assert shared.db.read_now(approvals.get, request).state == "pending"
        decide()
    (resumed,) = [one for host, one in shared.queue.items.values() if host == ELSEWHERE]
    assert resumed.type == "APPROVAL"
    assert shared.enter(resumed, ELSEWHERE).epoch == 2


def test_an_item_of_a_conversation_that_lives_on_another_host_is_left(bench: Bench) -> None:
    item = bench.send()
    before = bench.row()
    assert bench.enter(item, ELSEWHERE) == claims.Entry(outcome="moved")
    assert bench.row() == before
    assert bench.outcome(item.id) == "moved"


def test_a_host_that_nobody_refers_to_is_forgotten_when_it_is_old(bench: Bench) -> None:
    bench.heard("ours", ago=1e6)
    bench.heard("long-gone", ago=1e6)
    bench.send()
    bench.heard(THERE, ago=1e6)
    now = time.time()
    cut = retention.Cut(host_id="ours", rows=now - 1000, sessions=now - 1000, conversations=None)
    assert bench.db.write_now(retention.delete_some, "hosts", cut) == 1
    assert sorted(row.host_id for row in bench.all(hosts)) == ["ours", THERE]


@pytest.mark.parametrize(("ago", "goes"), [(1e6, True), (100.0, False)])
def test_sessions_of_a_host_long_gone_are_pruned_by_the_others(bench: Bench, ago: float, goes: bool) -> None:
    bench.heard(THERE, ago=ago)
    session_id = bench.session()
    bench.db.write_now(store.finish, session_id, EXITED)
    now = time.time()
    cut = retention.Cut(host_id=ELSEWHERE, rows=now - 1000, sessions=now - 1000, conversations=None)
    found = bench.db.read_now(retention.page, retention.sessions_to_go(cut), "")
    assert found == ([session_id] if goes else [])


class Asleep(MemorySessionStore):
    """A store whose worker falls asleep as soon as a session is claimed, for longer than the lease of its host."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.time()

    async def claim(self, session: Session, **more: Any) -> Session:
        claimed = await super().claim(session, **more)
        lost = SessionEnd(state=SessionState.LOST, evidence=Evidence.HOST_UNREACHABLE, ended_at=self.now)
        await self.finish(session.id, lost)
        self.now += LEASE_S + 100
        return claimed


async def test_a_worker_that_slept_longer_than_its_lease_does_not_start_what_it_had_claimed(tmp_path: Path) -> None:
    workspace, home = places(tmp_path)
    slept = Asleep()
    engine = unstarted_engine(workspace, home, slept, clock=lambda: slept.now)
    async with engine:
        outcome = await run(engine, "echo nonce >> nonce.txt")
        assert outcome.session.end is not None
        assert outcome.session.end.evidence is Evidence.HOST_UNREACHABLE
        assert await engine.supervised.list() == []
    assert not (workspace / "nonce.txt").exists()


async def test_the_log_of_a_session_of_another_host_is_said_to_be_there_and_never_shown_as_empty(
    tmp_path: Path,
) -> None:
    workspace, home = places(tmp_path)
    kept = MemorySessionStore()
    session = a_session(conversation_id="talk", host_id=THERE)
    await kept.claim(session)
    here = Sessions(unstarted_engine(workspace, home, kept, host_id=ELSEWHERE), "talk")
    for read in (
        here.log_lines(session.id, 0, 10),
        here.log_bytes(session.id, 0, 10),
        here.poll(session.id, origin()),
    ):
        with pytest.raises(InvalidCommand, match="ran on another host, where its log is"):
            await read


SCALING: Final = ROOT / "docs/scaling.md"
AGES: Final = ((turns, 60), (mailbox, 600))
"""How many seconds ago the rows of each table came."""


def carries(host_id: str, **what: Any) -> Load:
    nothing = Load(
        host_id=host_id,
        name=f"{host_id}-name",
        state="alive",
        silent_s=0.0,
        **dict.fromkeys(("workers", "conversations", "processes", "waiting", "running"), 0),
    )
    return replace(nothing, **what)


def test_the_load_of_a_host_is_what_runs_and_waits_there_and_a_host_without_a_heartbeat_is_silent(bench: Bench) -> None:
    bench.claimed()
    bench.send(name="c2")
    bench.session()
    bench.heard(ELSEWHERE, ago=0.0)
    config = WorkerConfig(executor_id="w", host_id=ELSEWHERE, boot_id="b", system_database_url="", token="one")
    bench.db.write_now(working._register, config)
    found = {one.host_id: replace(one, silent_s=0.0) for one in bench.db.read_now(loads, ELSEWHERE)}
    here, there = found[ELSEWHERE], found[THERE]
    offered = {"memory": 1.0, "load": 0.0}
    assert here == replace(carries(ELSEWHERE, state="alive", workers=1, **offered), name=here.name)
    assert there == carries(THERE, state="silent", conversations=2, processes=1, waiting=1, running=1)
    bench.db.write_now(lambda conn: known_hosts.note_given_up(conn, known_hosts.one(conn, THERE)))
    states = {one.host_id: one.state for one in bench.db.read_now(loads, ELSEWHERE)}
    assert states == {ELSEWHERE: "alive", THERE: "given_up"}


def test_the_query_for_an_autoscaler_in_the_docs_says_the_same_of_each_host_and_what_waits_for_one(
    postgres_url: str,
) -> None:
    (query,) = (block.text for block in blocks(SCALING) if block.language == "sql")
    db = Database(postgres_url)
    bench = Bench(db)
    bench.claimed()
    for _ in range(2):
        bench.send(name="c2")
        bench.send(name="c3")
        bench.unplaced("c4")
    bench.unplaced("c5")
    bench.unplaced("read")
    heard = sa.update(mailbox).where(mailbox.c.conversation_id == "read").values(state="heard")
    earlier = [sa.update(table).values(created_at=table.c.created_at - ago) for table, ago in AGES]
    db.write_now(lambda conn: [conn.execute(change) for change in (heard, *earlier)] and None)
    found = db.read_now(lambda conn: conn.execute(sa.text(query)).mappings().all())
    rows = {row["host"]: row for row in found}
    (load,) = db.read_now(loads, THERE)
    counts = {host: (row["waiting"], row["running"]) for host, row in rows.items()}
    assert counts == {THERE: (load.waiting, load.running), "none": (2, 0)}
    assert counts[THERE] == (2, 1)
    assert 55 < rows[THERE]["oldest_s"] < 180
    assert 595 < rows["none"]["oldest_s"] < 720
    db.close()
