"""The loop under anything that may happen, in any order: the state machine that Hypothesis drives."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event

from shellback.exec.core.errors import CommandDenied, ExecError
from shellback.storage.db import Database
from shellback.work.approvals import approvals, sending, uses
from shellback.work.approvals.uses import APART_S
from shellback.work.errors import ApprovalSettled, UnknownConversation
from shellback.work.queue import mailbox
from shellback.work.queue.items import Priority
from shellback.work.turn import stopping
from tests.model.dbos import DEAD, WAITING, SimulatedEnqueuer
from tests.model.reference import Reference, Row, Rows
from tests.model.stillness import Clock, StillLoop, at_once, ruled_by
from tests.model.turns import Call, Thought
from tests.model.world import HOST, World

YEARS = 365 * 86400.0
TALKS = ("c1", "c1", "c2")
OFTEN = {
    "a_round": 12,
    "say": 3,
    "mean_to_call": 2,
    "mean_to_say": 2,
    "take_up": 12,
    "go_on": 8,
    "replay": 3,
    "a_process_ends": 5,
    "decide": 5,
    "use_an_approval_again": 3,
    "supersede": 1,
    "stop": 2,
    "a_worker_will_die": 3,
    "a_worker_dies": 2,
    "a_worker_starts": 4,
    "a_supervisor_dies": 3,
    "the_supervisor_does_not_answer": 2,
    "an_item_dies": 2,
    "time_passes": 3,
    "the_clock_jumps": 2,
    "sweep": 4,
    "prune": 1,
}
"""What may happen, and how often beside the others."""
HAPPENINGS = [name for name, times in OFTEN.items() for _ in range(times)]
NUMBER = st.integers(0, 11)


class Mistakes(logging.Handler):
    """Takes what the product logs, and keeps the errors that no surroundings can cause."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []
        self._log = logging.getLogger("shellback")
        self._before = self._log.propagate, self._log.level
        self._log.propagate = False
        self._log.setLevel(logging.ERROR)
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ExecError):
            self.found.append(error)

    def close(self) -> None:
        self._log.removeHandler(self)
        self._log.propagate, level = self._before
        self._log.setLevel(level)
        super().close()


@dataclass
class Bench:
    """What all examples share, because making it costs more than an example."""

    db: Database
    clock: Clock
    loop: StillLoop
    directory: Path
    rows: sqlite3.Connection
    mistakes: Mistakes


@contextmanager
def set_up(url: str, directory: Path) -> Generator[Bench]:
    """What examples need, on a migrated SQLite database that nobody else uses."""
    clock = Clock()
    loop = StillLoop(clock)
    db = Database(url)
    event.listen(db._writer, "connect", _unsynced)  # pyright: ignore[reportPrivateUsage]
    mistakes = Mistakes()
    try:
        with (
            ruled_by(clock),
            patch("shellback.exec.policy.commands.checking", at_once),
            closing(sqlite3.connect(str(db.url.database), isolation_level=None)) as rows,
        ):
            yield Bench(db, clock, loop, directory, rows, mistakes)
    finally:
        mistakes.close()
        loop.close()
        db.close()


def _unsynced(raw: Any, _record: object) -> None:
    raw.execute("PRAGMA synchronous = OFF")


def live_through(bench: Bench, story: Sequence[tuple[str, int, int]]) -> None:
    """One example without Hypothesis: what happens, which, how."""
    loop = machine(bench)()
    loop.begin()
    for what, which, how in story:
        loop.happens(what, which, how)
        loop.holds()
    loop.teardown()


def machine(on: Bench) -> type[Loop]:
    """The state machine on this bench."""

    class There(Loop):
        bench = on

    return There


class Loop(RuleBasedStateMachine):
    bench: Bench
    steps: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        bench = self.bench
        bench.mistakes.found.clear()
        self.world = World(bench.db, bench.clock, bench.loop, bench.directory)
        self.reference = Reference(self.world.machine)
        self.world.may_start = lambda session_id: self.reference.may_start(self.rows(), session_id)
        self.world.has_claimed = lambda session: self.reference.has_claimed(self.rows(), session)
        self.enqueuer = SimulatedEnqueuer()
        self.commands = 0
        self.messages = 0
        self.world.start_worker()
        self.begun = True

    def rows(self) -> Rows:
        return Rows(self.bench.rows)

    def write(self, fn: Any, *args: Any, **more: Any) -> Any:
        return self.world.db.write_now(fn, *args, **more)

    @rule(what=st.sampled_from(HAPPENINGS), which=NUMBER, how=NUMBER)
    def happens(self, what: str, which: int, how: int) -> None:
        Loop.steps += 1
        getattr(self, what)(which, how)

    # -- a person --------------------------------------------------------------------------------

    def say(self, which: int, how: int) -> None:
        self.messages += 1
        talk, text = TALKS[which % 3], f"m{self.messages}"
        priority = (Priority.NORMAL, Priority.NORMAL, Priority.LOW, Priority.HIGH)[how % 4]
        more = {"host_id": HOST, "waiting": bool(how % 2), "interrupt": how > 9, "priority": priority}
        self.write(sending.send, self.enqueuer, talk, text, **more)
        self.reference.said.setdefault(talk, []).append(text)
        if how % 4 and self.begun:
            self.mean_to_call(which, how)

    def asked(self) -> list[Row]:
        return sorted(self.rows().approvals.values(), key=lambda row: row["call_key"], reverse=True)

    def decide(self, which: int, how: int) -> None:
        found = self.asked()
        pending = [row for row in found if row["state"] == "pending"]
        chosen = pending if pending and which < 10 else found
        if not chosen:
            return
        row = chosen[which % len(chosen)]
        decision: Any = "denied" if how == 10 else "expired" if how == 11 else "approved"
        try:
            self.write(approvals.decide, self.enqueuer, row["id"], decision, by="me", surface="model")
        except ApprovalSettled:
            assert row["state"] != "pending"
        else:
            assert row["state"] == "pending"
            now = self.world.clock.time()
            # A clock that was set back to before the request leaves nobody to tell how long it has waited.
            late = now >= row["expires_at"] or row["created_at"] > now + APART_S
            wanted = "expired" if decision == "approved" and late else decision
            assert self.rows().approvals[row["id"]]["state"] == wanted

    def supersede(self, which: int, _how: int) -> None:
        def act(conn: sa.Connection) -> None:
            mailbox.lock(conn, TALKS[which % 3])
            approvals.supersede(conn, self.enqueuer, TALKS[which % 3], by="me", surface="model")

        self.write(act)

    def use_an_approval_again(self, which: int, _how: int) -> None:
        found = self.asked()
        if not found:
            return
        row = found[which % len(found)]
        digest = row["digest"] if row["state"] != "approved" else "of something else"
        with pytest.raises(CommandDenied):
            self.write(uses.consume, row["id"], "another", digest, conversation_id=row["conversation_id"])

    def stop(self, which: int, _how: int) -> None:
        talk = TALKS[which % 3]
        try:
            self.write(stopping.stop, self.enqueuer, talk, by="me")
        except UnknownConversation:
            assert talk not in self.rows().conversations

    # -- the model -------------------------------------------------------------------------------

    def mean_to_call(self, which: int, how: int) -> None:
        made: list[Call] = []
        for number in range(1 + how % 2):
            self.commands += 1
            word = ("run", "run", "run", "quick", "quick", "missing")[(which + how + number) % 6]
            background = bool((which + number) % 2)
            yield_after = 5.0 if not background and how > 6 else None
            made.append(Call(f"{word} {self.commands}", background, how % 3 == 1, yield_after))
        self.world.mind.setdefault(TALKS[which % 3], []).append(Thought("calls", tuple(made)))

    def mean_to_say(self, which: int, how: int) -> None:
        kinds: Any = ("poll", "poll", "words", "breaks")
        self.world.mind.setdefault(TALKS[which % 3], []).append(Thought(kinds[how % 4]))

    # -- turns -----------------------------------------------------------------------------------

    def take_up(self, which: int, how: int) -> None:
        waiting = self.world.dbos.of("ENQUEUED")
        if waiting and self.world.living():
            self.execute(waiting[which % len(waiting)], None if how > 4 else how)

    def replay(self, which: int, how: int) -> None:
        """The same item again: beside an execution that goes on, or after it has ended."""
        known = self.world.dbos.of("PENDING") or self.world.dbos.of("SUCCESS")
        if known and self.world.living():
            self.execute(known[-1 - which % len(known)], None if how > 5 else how, again=True)

    def execute(self, item_id: str, permits: int | None, *, again: bool = False) -> None:
        worker = self.world.living()[-1]

        async def act(_: Any) -> None:
            execution = worker.execute(item_id, again=again)
            if execution is not None:
                execution.permit(permits)

        self.world.do(act, worker)

    def go_on(self, which: int, how: int) -> None:
        found = self.world.executions()
        if found:
            worker, execution = found[which % len(found)]
            worker.inside(execution.permit, None if how > 7 else how + 1)
            self.world.settle()

    def a_round(self, which: int, how: int) -> None:
        """Somebody asks for something, and it is approved and run, unless the worker dies of it."""
        if not self.world.living():
            self.world.start_worker()
        if not self.world.living():
            return
        worker = self.world.living()[-1]
        self.mean_to_call(which, how)
        self.say(which, 4)
        if how > 6:
            worker.fuse = which * 2 + how % 2
        for _ in range(2):
            self.take_up(which, 11)
            self.holds()
            self.decide(0, 0)
            self.holds()

    # -- processes -------------------------------------------------------------------------------

    def a_process_ends(self, which: int, how: int) -> None:
        running = sorted(self.world.machine.running())
        if running:
            name = running[which % len(running)]
            ended = {"state": "signaled", "signal": 9} if how > 9 else {"state": "exited", "exit_code": how}
            self.bench.loop.call_soon(lambda: self.world.machine.exit(name, **ended))
            self.world.settle()

    # -- deaths ----------------------------------------------------------------------------------

    def a_worker_will_die(self, which: int, how: int) -> None:
        living = self.world.living()
        if living:
            living[which % len(living)].fuse = how

    def a_worker_dies(self, which: int, _how: int) -> None:
        living = self.world.living()
        if living:
            living[which % len(living)].die()
            self.world.settle()

    def a_worker_starts(self, which: int, how: int) -> None:
        living = len(self.world.living())
        if not living or (living == 1 and which > 6):
            self.world.start_worker(how if how < 5 else None)

    def a_supervisor_dies(self, which: int, _how: int) -> None:
        machine = self.world.machine
        match which:
            case 0 | 1 | 2:
                machine.dies_in_start = True
                return
            case 3 | 4:
                machine.lose_all("supervisor_killed")
            case 5 | 6:
                for worker in self.world.living():
                    worker.die()
                machine.boot += 1
                machine.lose_all("machine_rebooted")
            case _:
                pass
        for port in machine.ports:
            self.bench.loop.call_soon(port.reconnect)
        self.world.settle()

    def the_supervisor_does_not_answer(self, which: int, how: int) -> None:
        self.world.machine.outage, self.world.machine.outage_after = 1 + which % 3, bool(how % 2)

    def an_item_dies(self, which: int, how: int) -> None:
        known = self.world.dbos.of("ENQUEUED", "PENDING")
        if known:
            self.world.dbos.ends(known[which % len(known)], DEAD[how % 3])

    # -- time, and what comes round --------------------------------------------------------------

    def time_passes(self, _which: int, how: int) -> None:
        self.pass_time((1.0, 10.0, 60.0, 4000.0)[how % 4])

    def pass_time(self, seconds: float) -> None:
        self.world.settle(seconds)
        self.world.clock.advance(self.bench.loop.patience)

    def the_clock_jumps(self, _which: int, how: int) -> None:
        self.world.clock.wall += (5.0, -5.0, 3600.0, -3600.0, 10 * YEARS, -10 * YEARS)[how % 6]

    def prune(self, _which: int, _how: int) -> None:
        if self.world.living():
            self.world.do(lambda one: one.retention.once())

    def sweep(self, _which: int, _how: int) -> None:
        if self.world.living():
            self.swept()

    def swept(self) -> None:
        worker = self.world.living()[0]
        worker.beat()
        self.world.clock.advance(4.0)
        waiting = set(self.world.dbos.of(*WAITING))
        self.world.do(lambda one: one.sweep.once(), worker)
        if self.world.living() and not worker.dead:
            self.reference.check_swept(self.rows(), waiting)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            assert not self.bench.mistakes.found, f"logged: {self.bench.mistakes.found!r}"
            assert not self.world.errors, f"a turn died of {self.world.errors!r}"
            self.reference.check(self.rows())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.come_to_rest()
        finally:
            self.world.close()

    def come_to_rest(self) -> None:
        world = self.world
        self.begun = False
        world.mind.clear()
        world.machine.outage = 0
        world.machine.dies_in_start = False
        for worker in world.living():
            worker.die()  # one executor id belongs to one of them; whoever starts next takes up what all have left
        world.settle()
        for _ in range(30):
            if not world.living():
                world.start_worker()
            self.pass_time(60.0)
            self.swept()
            for name in sorted(world.machine.running()):
                world.loop.call_soon(lambda name=name: world.machine.exit(name, state="exited", exit_code=0))
            world.settle()
            for row in self.rows().approvals.values():
                if row["state"] == "pending":
                    self.write(approvals.decide, self.enqueuer, row["id"], "approved", by="me", surface="rest")
                    self.holds()
            for item in world.dbos.of("ENQUEUED"):
                self.execute(item, None)
            for worker, execution in world.executions():
                worker.inside(execution.permit, None)
            world.settle()
            self.holds()
            rows = self.rows()
            aside = [
                one["id"] for one in rows.conversations.values() if one["blocked_reason"] in {"wake_limit", "set_aside"}
            ]
            for talk in aside:
                self.say(TALKS.index(talk), 4)
            if not aside and self.quiet(rows):
                break
        self.reference.check_rest(self.rows())

    def quiet(self, rows: Rows) -> bool:
        return (
            all(row["state"] == "heard" for row in rows.mailbox.values())
            and all(one["state"] == "free" for one in rows.conversations.values())
            and not self.world.dbos.of("ENQUEUED", "PENDING")
            and all(one["end"] and one["delivery"] != "inline" for one in rows.sessions.values())
            and not self.world.executions()
        )
