"""Everything that lives: the machine, DBOS, workers with their turns under way, and what a person does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from shellback.exec.reports.callback_text import callback_payload
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.sessions import SqlSessionStore, claim
from shellback.storage.tables import metadata, workers
from shellback.work.approvals.uses import consume_call, consume_claim
from shellback.work.hosts.sweep import Sweep
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.worker.retention import Ages, Retention
from shellback.work.worker.worker import RECOVERIES
from tests.model.dbos import SimulatedDbos, SimulatedEnqueuer, queue
from tests.model.dbos import metadata as of_dbos
from tests.model.machine import Machine, Port
from tests.model.stillness import OWNER, Clock, StillLoop
from tests.model.turns import Broken, Fenced, Thought, Turn

P = ParamSpec("P")
T = TypeVar("T")

HOST, EXECUTOR, VERSION = "host1", "w1", "v1"
AGES = Ages(rows=7 * 86400.0, logs=7 * 86400.0, conversations=0.0)


class Died(BaseException):
    """The worker in which this is raised is dead; nothing handles it."""


class Cut(Exception):
    """DBOS ends an execution: its item was cancelled, or another execution has recorded its step."""


class WorkersDatabase:
    """The database as one worker has it: before and after each commit the worker may die."""

    def __init__(self, real: Database, point: Callable[[], Any], claimed: Callable[[Session], None]) -> None:
        self._real = real
        self._claimed = claimed
        self._point = point
        self.dialect = real.dialect

    async def write(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._point()
        result = self._real.write_now(fn, *args, **kwargs)
        if fn is claim and isinstance(args[0], Session):
            self._claimed(args[0])
        await self._point()
        return result

    async def read(self, fn: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._real.read_now(fn, *args, **kwargs)


@dataclass
class Execution:
    """A turn under way. It goes on from commit to commit as far as it has permits."""

    item_id: str
    task: asyncio.Task[Any] | None = None
    permits: int = 0
    open: bool = False
    waiting: asyncio.Future[None] | None = None
    position: int = 0

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    async def permitted(self) -> None:
        if not self.open and self.permits == 0:
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        if not self.open:
            self.permits -= 1

    def permit(self, count: int | None) -> None:
        """Let it pass so many more commits, or all."""
        self.open = self.open or count is None
        self.permits += count or 0
        if self.waiting is not None and not self.waiting.done() and (self.open or self.permits):
            self.waiting.set_result(None)


class SimulatedWorker:
    """One process of ours."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self.fuse: int | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.executions: list[Execution] = []
        db: Any = WorkersDatabase(world.db, self.point, world.has_claimed)
        client: Any = _Client(world.dbos, self)
        self.db = db
        self.enqueuer = SimulatedEnqueuer()
        store = SqlSessionStore(
            db,
            sink=CallbackSink(self.enqueuer, HOST, self._payload_of),
            within=consume_claim,
            within_call=consume_call,
        )
        self.port: Any = Port(world.machine, self.point, self.inside)
        self.engine = Engine(
            store,
            self.port,
            world.backend,
            home=world.home,
            host_id=HOST,
            clock=world.clock.time,
        )
        self.sweep = Sweep(db, self.enqueuer, client, self.engine, HOST, (EXECUTOR, VERSION))
        self.retention = Retention(db, client, world.forget, HOST, AGES)

    def _payload_of(self, session: Session) -> dict[str, object]:
        return callback_payload(session, *self.engine.streams(session))

    def inside(self, act: Callable[..., object], *args: object) -> None:
        """Do something as this worker, unless it is dead."""
        if self.dead:
            return
        token = OWNER.set(self.tasks)
        try:
            act(*args)
        finally:
            OWNER.reset(token)

    async def point(self) -> None:
        """A moment between two effects: here it dies when its fuse is down, here a turn waits for its permit."""
        if self.dead:
            raise Died
        if self.fuse is not None:
            if self.fuse == 0:
                self.die()
                raise Died
            self.fuse -= 1
        current = asyncio.current_task()
        for execution in self.executions:
            if execution.task is current:
                await execution.permitted()
                if self.dead:
                    raise Died

    def die(self) -> None:
        """All that is not committed is gone."""
        self.dead = True
        self.engine.whole.started = False
        if self.port in self.world.machine.ports:
            self.world.machine.ports.remove(self.port)
        try:
            current = asyncio.current_task()
        except RuntimeError:
            current = None
        for task in list(self.tasks):
            if task is not current:
                task.cancel()

    async def start(self) -> None:
        """Register, reach the supervisor, take up what was cut off: as the worker does it."""
        self.beat()
        try:
            await self.engine.start()
        except SupervisorUnreachable:
            self.die()
            return
        for item_id in self.world.dbos.pending_of(EXECUTOR):
            self.execute(item_id)

    def beat(self) -> None:
        now = self.world.clock.time()
        row = {"executor_id": EXECUTOR, "host_id": HOST, "pid": 1, "boot_id": "b", "version": VERSION}
        times = {"started_at": now, "heartbeat_at": now}

        def act(conn: sa.Connection) -> None:
            conn.execute(sa.delete(workers))
            conn.execute(sa.insert(workers).values(**row, **times))

        self.world.db.write_now(act)

    def execute(self, item_id: str, *, again: bool = False) -> Execution | None:
        """Begin one more execution of an item; it waits for its first permit."""
        dbos = self.world.dbos
        item = dbos.item(item_id) if again else dbos.begin(item_id, EXECUTOR, VERSION, RECOVERIES)
        if item is None:
            return None
        execution = Execution(item_id)
        self.executions.append(execution)
        execution.task = asyncio.get_running_loop().create_task(self._execution(execution, item))
        return execution

    async def _execution(self, execution: Execution, item: Any) -> None:
        turn = Turn(
            db=self.db,
            enqueuer=self.enqueuer,
            engine=self.engine,
            item=item,
            executor_id=EXECUTOR,
            step=lambda name, act: self._step(execution, name, act),
            think=self.world.think,
            stamp=self.world.stamp,
        )
        try:
            await turn.run()
        except (Cut, Died):
            return
        except Exception as error:  # noqa: BLE001 - as DBOS takes it
            self.world.noticed(error)
            if not self.dead:
                self.world.dbos.ends(item.id, "ERROR")
            return
        if not self.dead:
            self.world.dbos.ends(item.id, "SUCCESS")

    async def _step(self, execution: Execution, name: str, act: Callable[[], Any]) -> Any:
        """A recorded step, as DBOS has it."""
        steps = self.world.dbos.steps.setdefault(execution.item_id, [])
        position, execution.position = execution.position, execution.position + 1
        if position < len(steps):
            assert steps[position][0] == name, f"step {position} was {steps[position][0]} and is {name} now"
            return steps[position][1]
        if self.world.dbos.status(execution.item_id) in {"CANCELLED", None}:
            raise Cut
        try:
            value = await act()
        except StaleTurn as error:
            raise Fenced from error
        await self.point()
        if position < len(steps):
            raise Cut
        steps.append((name, value))
        return value


class _Client:
    """DBOS as one worker reaches it: a dead one does not."""

    def __init__(self, dbos: SimulatedDbos, worker: SimulatedWorker) -> None:
        self._dbos = dbos
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        if self._worker.dead:
            raise Died
        return getattr(self._dbos, name)


@dataclass
class World:
    """All of it. `noticed` takes what a turn died of."""

    db: Database
    clock: Clock
    loop: StillLoop
    directory: Path
    errors: list[Exception] = field(default_factory=list[Exception])

    def __post_init__(self) -> None:
        self.clock.reset()
        self.home = self.directory / "home"
        shutil.rmtree(self.home, ignore_errors=True)
        self.workspace = self.directory / "ws"
        self.workspace.mkdir(exist_ok=True)
        self.backend = HostBackend(self.workspace)
        self.backend.check = lambda: None
        self.db.write_now(_emptied)
        self.dbos = SimulatedDbos(self.db)
        self.machine = Machine(self.clock, self._may_start)
        self.workers: list[SimulatedWorker] = []
        self.mind: dict[str, list[Thought]] = {}
        self._stamps = 0

    def may_start(self, session_id: str) -> None:
        """Told before a process starts."""

    def _may_start(self, session_id: str) -> None:
        self.may_start(session_id)  # whatever it is by then

    def has_claimed(self, session: Session) -> None:
        """Told after the claim of a session was committed."""

    def noticed(self, error: Exception) -> None:
        if not isinstance(error, Broken):
            self.errors.append(error)

    def think(self, conversation_id: str) -> Thought:
        thoughts = self.mind.get(conversation_id)
        return thoughts.pop(0) if thoughts else Thought()

    def stamp(self) -> tuple[str, float]:
        self._stamps += 1
        return f"run{self._stamps}", 1_800_000_000.0 + self._stamps

    def forget(self, session_id: str) -> bool:
        self.machine.jobs.pop(session_id, None)
        return True

    # -- the passing of time ---------------------------------------------------------------------

    def do(self, act: Callable[[SimulatedWorker], Any], worker: SimulatedWorker | None = None) -> None:
        """Let a worker do something to its end, or to its death, and everybody else what follows."""
        worker = worker or self.living()[0]

        def begin() -> None:
            if not worker.dead:
                self.loop.create_task(act(worker))

        self.loop.call_soon(worker.inside, begin)
        self.loop.settle()

    def settle(self, patience: float = 0.15) -> None:
        self.loop.settle(patience)

    def living(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers if not worker.dead]

    def executions(self) -> list[tuple[SimulatedWorker, Execution]]:
        return [
            (worker, execution) for worker in self.living() for execution in worker.executions if not execution.over
        ]

    def start_worker(self, fuse: int | None = None) -> SimulatedWorker:
        worker = SimulatedWorker(self)
        worker.fuse = fuse
        self.workers = [*self.living(), worker]
        self.do(lambda one: one.start(), worker)
        return worker

    def close(self) -> None:
        for worker in self.living():
            worker.die()
        self.loop.settle(0.0)


def _emptied(conn: sa.Connection) -> None:
    of_dbos.create_all(conn)
    for table in (*metadata.sorted_tables, queue):
        if table.name != "alembic_version":
            conn.execute(sa.delete(table))
