"""Put, enter and release at the same moment on real connections: no wake is lost, nothing is heard twice.

Threads take turns statement by statement, in an order that a seed decides. There is no sweep here: whatever has to come
must come of the transactions themselves.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy import event

from shellback.exec.core.model import Delivery, SessionId
from shellback.storage import sessions as on_connection
from shellback.storage.db import Database
from shellback.storage.tables import conversations
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import approvals, sending
from shellback.work.approvals.asking import Proposed
from shellback.work.errors import ApprovalSettled
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.items import WorkItem
from shellback.work.turn import claims, looks
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing, close
from tests.items import PROPOSED
from tests.model.dbos import SimulatedEnqueuer, queue
from tests.model.dbos import metadata as of_dbos
from tests.sessions import EXITED, a_session

LOCKED = sa.text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
LIMIT_S = 60.0
_here = threading.local()


class Actor(threading.Thread):
    """Does its work on its own connection; before each statement and each commit it waits for its turn."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._go = threading.Semaphore(0)
        self.arrived = threading.Event()
        self.pid = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        _here.actor = self
        try:
            self.wait_for_turn()
            self._work()
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for it
            self.error = error
        finally:
            self.arrived.set()

    def wait_for_turn(self) -> None:
        self.arrived.set()
        self._go.acquire()

    def go(self) -> None:
        self.arrived.clear()
        self._go.release()


def watch(db: Database) -> None:
    """Make whoever uses this database wait before each statement, if it is an actor."""
    engine = db._writer  # pyright: ignore[reportPrivateUsage]

    def before(conn: sa.Connection, *_: Any) -> None:
        actor: Actor | None = getattr(_here, "actor", None)
        if actor is not None:
            raw: Any = conn.connection.dbapi_connection
            actor.pid = raw.info.backend_pid
            actor.wait_for_turn()

    event.listen(engine, "before_cursor_execute", before)
    event.listen(engine, "commit", before)


def play(db: Database, actors: list[Actor], seed: int) -> list[str]:
    """Run the actors to their ends, one statement at a time; returns who went when.

    Who waits for a lock is left waiting, and another goes on.
    """
    rng = random.Random(seed)
    order: list[str] = []
    for actor in actors:
        actor.start()
        actor.arrived.wait(LIMIT_S)
    until = time.monotonic() + LIMIT_S
    current: Actor | None = None
    while living := [actor for actor in actors if actor.is_alive()]:
        assert time.monotonic() < until, f"seed {seed} comes to no end: {order[-50:]}"
        ready = [actor for actor in living if actor.arrived.is_set()]
        if not ready:
            time.sleep(0.001)
            continue
        if current not in ready or rng.random() < 0.25:
            current = rng.choice(ready)
        order.append(current.name)
        current.go()
        while not current.arrived.wait(0.003):
            if current.pid in db.read_now(lambda conn: set(conn.execute(LOCKED).scalars())):
                break
        if not current.is_alive() or (current.arrived.is_set() and current.error):
            current.join(LIMIT_S)
    for actor in actors:
        if actor.error is not None:
            raise AssertionError(f"{actor.name} failed with seed {seed}") from actor.error
    return order


HOST = "host1"
ENQUEUER = SimulatedEnqueuer()
SINK = CallbackSink(ENQUEUER, HOST, lambda session: {"session_id": session.id})


@dataclass
class Stage:
    """One conversation, people and processes that have news for it, two workers that run its items."""

    db: Database
    others: list[Actor] = field(default_factory=list[Actor])
    heard: list[int] = field(default_factory=list[int])
    working: set[int] = field(default_factory=set[int])
    pauses: list[Proposed] = field(default_factory=list[Proposed])
    steps: int = 0

    def actor(self, name: str, work: Callable[[], object]) -> None:
        self.others.append(Actor(name, work))

    def play(self, seed: int) -> None:
        workers = [Actor(f"worker{number}", self.work) for number in (1, 2)]
        self.steps += len(play(self.db, [*self.others, *workers], seed))

    def send(self, text: str, **more: Any) -> None:
        self.db.write_now(sending.send, ENQUEUER, "c1", text, host_id=HOST, **more)

    def work(self) -> None:
        me = threading.get_ident()
        while True:
            # Looked at before the queue is: what somebody put there with his last act is still taken.
            over = not self.working and not any(actor.is_alive() for actor in self.others)
            item = self.db.write_now(_next)
            if item is not None:
                self.working.add(me)
                self.turn(item)
                self.working.discard(me)
            elif over:
                return

    def turn(self, item: WorkItem) -> None:
        entry = self.db.write_now(claims.enter, item, executor_id="w1", wakes=Wakes(per_hour=1000, chain=1000))
        if entry.epoch is None:
            return
        letters = self.db.write_now(looks.look, "c1", item.id, entry.epoch, 0).letters
        heard = frozenset(letter.id for letter in letters)
        proposed, self.pauses = tuple(self.pauses), []
        outcome = "pending_approval" if proposed else "answered"
        closing = Closing(
            conversation_id="c1", turn_id=item.id, epoch=entry.epoch, outcome=outcome, heard=heard, proposed=proposed
        )
        assert self.db.write_now(close, ENQUEUER, closing, None, [], None).outcome == outcome
        self.heard += sorted(heard)


def _next(conn: sa.Connection) -> WorkItem | None:
    query = sa.select(queue).where(queue.c.status == "ENQUEUED").order_by(queue.c.seq).limit(1)
    row = conn.execute(query.with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    conn.execute(sa.update(queue).where(queue.c.id == row.id).values(status="PENDING"))
    return WorkItem.from_json(row.body)


@contextmanager
def set_up(url: str) -> Generator[Stage]:
    """A stage on a migrated Postgres database of its own."""
    # How long an actor rests within a transaction is the schedule's doing: only `play` may run out of patience.
    # So is how many of them do at once.
    with patch("shellback.storage.db._IDLE_MS", 0), patch("shellback.storage.db.CONNECTIONS", 16):
        db = Database(url, lock_timeout_s=2 * LIMIT_S)
        db.write_now(of_dbos.create_all)
        watch(db)
        try:
            yield Stage(db)
        finally:
            db.close()


def all_heard_once(stage: Stage, count: int) -> None:
    state = stage.db.read_now(lambda conn: conn.execute(sa.select(conversations)).one())
    assert state.state == "free"
    found = stage.db.read_now(lambda conn: conn.execute(sa.select(rows).order_by(rows.c.id)).all())
    assert [row.state for row in found] == ["heard"] * count
    assert Counter(stage.heard) == Counter(row.id for row in found)


def messages_that_come_while_turns_begin_and_end_are_heard_once(stage: Stage, seed: int) -> None:
    stage.actor("anna", lambda: [stage.send(text) for text in ("one", "two")])
    stage.actor("bert", lambda: [stage.send(text, waiting=False) for text in ("three", "four")])
    stage.play(seed)
    all_heard_once(stage, 4)


def ends_that_are_recorded_and_handed_over_at_once_are_told_once(stage: Stage, seed: int) -> None:
    db = stage.db
    for number, delivery in ((1, Delivery.CALLBACK), (2, Delivery.INLINE)):
        session = replace(a_session(number, delivery=delivery), conversation_id="c1")
        db.write_now(on_connection.claim, session)
    one, two = SessionId("s1"), SessionId("s2")
    stage.actor("anna", lambda: stage.send("one"))
    stage.actor("end1", lambda: db.write_now(on_connection.finish, one, EXITED, SINK))
    stage.actor("again", lambda: db.write_now(on_connection.finish, one, EXITED, SINK))
    stage.actor("end2", lambda: db.write_now(on_connection.finish, two, EXITED, SINK))
    stage.actor("hand", lambda: db.write_now(on_connection.hand_over, two, SINK))
    stage.play(seed)
    all_heard_once(stage, 3)


def decisions_at_the_same_moment_resume_once(stage: Stage, seed: int) -> None:
    db = stage.db
    stage.pauses = [PROPOSED, replace(PROPOSED, call_key="k2", tool_call_id="t2", digest="d2")]
    stage.send("ask")
    item = db.write_now(_next)
    assert item is not None
    stage.turn(item)
    first, second = db.read_now(approvals.find, state="pending")

    def decide(request: str, decision: Any) -> None:
        try:
            db.write_now(approvals.decide, ENQUEUER, request, decision, by="me", surface="test")
        except ApprovalSettled:
            return

    stage.actor("yes1", lambda: decide(first.id, "approved"))
    stage.actor("no1", lambda: decide(first.id, "denied"))
    stage.actor("yes2", lambda: decide(second.id, "approved"))
    stage.actor("anna", lambda: stage.send("meanwhile", interrupt=bool(seed % 2)))
    stage.play(seed)
    all_heard_once(stage, 2)
    resumed = db.read_now(lambda conn: conn.execute(sa.select(queue.c.id).where(queue.c.id.like("APPROVAL:%"))).all())
    assert len(resumed) == 1
    states = {request.state for request in db.read_now(approvals.find)}
    assert states <= {"approved", "denied", "superseded"}


SCENARIOS: Final[dict[str, Callable[[Stage, int], None]]] = {
    scenario.__name__: scenario
    for scenario in (
        messages_that_come_while_turns_begin_and_end_are_heard_once,
        ends_that_are_recorded_and_handed_over_at_once_are_told_once,
        decisions_at_the_same_moment_resume_once,
    )
}
