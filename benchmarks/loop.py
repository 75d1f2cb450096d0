"""From the end of a process to the turn it wakes, through a database, a queue and a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from benchmarks.calls import exit_through
from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms, say
from benchmarks.rig import Gate, Ground, ground, leave, rig

T = TypeVar("T")
BATCH: Final = 50
CHATS: Final = 4
CHAT_LINES: Final = 60
PATIENCE_S: Final = 60.0


class Stage:
    """A state directory with its database, and a worker as a process of its own."""

    def __init__(self, where: Ground, command: str = "worker", **environ: str) -> None:
        from shellback.cli.children import WorkerChild
        from shellback.settings import Settings, plain_environment
        from shellback.wiring import wiring

        self.where = where
        self.environ = {
            **plain_environment(),
            "SHELLBACK_HOME": str(where.home),
            "WORKSPACE_ROOT": str(where.workspace),
            "ENABLE_EXECUTE": "true",
            "MODEL": "offline",
            # Its figures are those of queue and database, and comparable with earlier ones; sandboxes have their own.
            "BACKEND": "host",
            "SUPERVISOR_IDLE_SECONDS": "600",
            "LOG_LEVEL": "WARNING",
            **environ,
        }
        self.settings = Settings.load(self.environ)
        self._stack = contextlib.ExitStack()
        try:
            self.place = self._stack.enter_context(wiring.place(self.settings))
            self.enqueuer = self._stack.enter_context(wiring.enqueuing(self.place))
            self.worker = WorkerChild(self.place, self.environ, [sys.executable, "-m", "shellback", command])
            self._stack.callback(self._end)
            self.worker.wait_ready()
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def _end(self) -> None:
        self.worker.stop()
        asyncio.run(leave(self.where.home))

    def read(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.place.database.read_now(fn, *args, **kwargs)

    def write(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self.place.database.write_now(fn, *args, **kwargs)

    def send(self, conversation: str, text: str, *, waiting: bool = True) -> str:
        from shellback.work.approvals import sending

        more = {"host_id": self.place.host_id, "by": "benchmark", "waiting": waiting}
        sent = self.write(sending.send, self.enqueuer, conversation, text, **more)
        return sent.item_id

    def turns(self, *ids: str) -> dict[str, Any]:
        """Rows of turns by id."""
        from shellback.storage.tables import turns

        query = sa.select(turns).where(turns.c.id.in_(ids))
        return {row.id: row for row in self.read(_rows, query)}

    def until(
        self, what: str, look: Callable[[], T | None], every_s: float = 0.05, patience_s: float = PATIENCE_S
    ) -> T:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            found = look()
            if found:
                return found
            if self.worker.process.poll() is not None:
                raise RuntimeError(f"the worker ended while waiting until {what}")
            time.sleep(every_s)
        raise TimeoutError(f"waited {patience_s:.0f} s until {what}")


def _rows(conn: sa.Connection, query: sa.Select[Any]) -> list[sa.Row[Any]]:
    return list(conn.execute(query))


def _count(conn: sa.Connection, query: sa.Executable) -> int:
    return conn.execute(query).scalar_one()


@contextlib.contextmanager
def stage(options: Options, **environ: str) -> Generator[Stage]:
    made = Stage(ground(options.directory), **environ)
    try:
        yield made
    finally:
        made.close()


def enqueued(options: Options) -> Mapping[str, Reading]:
    from shellback.exec.core.model import Session
    from shellback.exec.reports.callback_text import callback_payload
    from shellback.settings import Settings, plain_environment
    from shellback.storage.sessions import SqlSessionStore
    from shellback.wiring import wiring
    from shellback.work.queue.callbacks import CallbackSink

    async def measure(where: Ground, place: Any, enqueuer: Any) -> Mapping[str, Reading]:
        def payload_of(session: Session) -> dict[str, object]:
            return callback_payload(session, made.engine.output(session))

        sink = CallbackSink(enqueuer, place.host_id, payload_of)
        store = SqlSessionStore(place.database, sink=sink)
        async with rig(where, store, host_id=place.host_id) as made:
            names = itertools.count()
            count = itertools.count(1)

            async def once() -> float:
                next(count)
                return await exit_through(made, f"gate-{next(names)}")

            (took,) = await alternate(options.samples(), once)
            query = "select count(*) from workflow_status where workflow_uuid like 'EXEC_CALLBACK:%'"
            items = place.database.read_now(_count, sa.text(query))
            expected = next(count) - 1
            if items != expected:
                raise RuntimeError(f"{expected} processes ended, {items} items are enqueued")
            return {"exit enqueued": Reading(measured=ms(took))}

    where = ground(options.directory)
    settings = Settings.load(
        {**plain_environment(), "SHELLBACK_HOME": str(where.home), "WORKSPACE_ROOT": str(where.workspace)}
    )
    with wiring.place(settings) as place, wiring.enqueuing(place) as enqueuer:
        return asyncio.run(measure(where, place, enqueuer))


class Waiting:
    """Background processes in conversations of their own, each at its gate."""

    def __init__(self, on: Stage, numbers: range) -> None:
        from shellback.storage import sessions
        from shellback.work.approvals import approvals

        self._on = on
        self._gates = {f"process-{number}": Gate(on.where.workspace, f"gate-{number}") for number in numbers}
        for name, gate in self._gates.items():
            on.send(name, f"$ {gate.command} &")

        def asked() -> list[Any] | None:
            found = [one for one in on.read(approvals.find, state="pending") if one.conversation_id in self._gates]
            return found if len(found) == len(self._gates) else None

        for request in on.until("all processes are asked for", asked):
            on.write(approvals.decide, on.enqueuer, request.id, "approved", by="benchmark", surface="benchmark")

        def started() -> dict[str, Any] | None:
            live = {one.conversation_id: one for one in on.read(sessions.find, live=True) if one.pid is not None}
            found = {name: live[name] for name in self._gates if name in live}
            return found if len(found) == len(self._gates) else None

        self._sessions = on.until("all processes run", started)
        on.until("the turns that started them have ended", self._at_rest)

    def _at_rest(self) -> bool:
        from shellback.storage.tables import turns

        query = sa.select(sa.func.count()).where(turns.c.outcome.is_(None), turns.c.conversation_id.like("process-%"))
        return self._on.read(_count, query) == 0

    def each(self, between: Callable[[], None], most: int = BATCH) -> list[float]:
        """Let so many end one after the other; seconds from each end to the start of the turn it wakes."""
        from shellback.storage import sessions

        taken: list[float] = []
        for name in list(self._gates)[:most]:
            gate = self._gates.pop(name)
            between()
            # Anywhere between two looks at the queue.
            time.sleep(random.random() * 0.15)
            asyncio.run(gate.reached())
            gate.open()
            session_id = self._sessions[name].id
            item = f"EXEC_CALLBACK:{session_id}"

            def ended(item: str = item) -> Any:
                row = self._on.turns(item).get(item)
                return row if row is not None and row.outcome is not None else None

            turn = self._on.until("the wake has ended", ended, 0.02)
            session = self._on.read(sessions.get, session_id)
            if session is None or session.end is None or turn.outcome != "answered":
                raise RuntimeError(f"{item} is {turn.outcome}, its session {session}")
            taken.append(turn.started_at - session.end.ended_at)
            gate.remove()
        return taken


class Chats:
    """Conversations that are kept in the middle of a turn."""

    def __init__(self, on: Stage) -> None:
        self._on = on
        self._numbers = itertools.count()
        self._items: list[str] = []

    def keep(self) -> None:
        """Return when as many turns as there are chats are in progress."""

        def busy() -> bool:
            rows = self._on.turns(*self._items)
            self._items = [item for item in self._items if item not in rows or rows[item].outcome is None]
            while len(self._items) < CHATS:
                lines = "\n".join(["!process_list {}"] * CHAT_LINES)
                self._items.append(self._on.send(f"chat-{next(self._numbers)}", lines))
            return sum(item in rows and rows[item].started_at is not None for item in self._items) == CHATS

        self._on.until("all chats are in progress", busy)


def turn_starts(options: Options) -> Mapping[str, Reading]:
    def measure(on: Stage, between: Callable[[], None]) -> list[float]:
        taken: list[float] = []
        samples = options.samples()
        for first in range(0, samples, BATCH):
            waiting = Waiting(on, range(first, min(first + BATCH, samples)))
            taken += waiting.each(between)
            say(f"turn starts: {len(taken)} of {samples}, median {ms(statistics.median(taken)):.0f} ms")
        return taken

    with stage(options, OFFLINE_SECONDS="0") as on:
        idle = measure(on, lambda: None)
    with stage(options, OFFLINE_SECONDS="0.5") as on:
        busy = measure(on, Chats(on).keep)
    return {
        "turn starts": Reading(measured=ms(statistics.median(idle)), note=_spread(idle)),
        "turn starts busy": Reading(measured=ms(statistics.median(busy)), note=_spread(busy)),
    }


def _spread(taken: list[float]) -> str:
    return f"90 % within {ms(statistics.quantiles(taken, n=10)[-1]):.0f} ms, all within {ms(max(taken)):.0f} ms"


def cpu_s(pid: int) -> float:
    """Seconds that all threads of a process have been on a core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


BENCHES = (
    Bench(
        name="exit enqueued",
        run=enqueued,
        figures=(
            Figure(name="exit enqueued", says="process let go to its EXEC_CALLBACK item committed, SQLite", limit=10.0),
        ),
    ),
    Bench(
        name="turn starts",
        run=turn_starts,
        limit_s=900,
        figures=(
            Figure(name="turn starts", says="process exit to its turn's start, idle worker", limit=150.0),
            Figure(name="turn starts busy", says=f"the same with {CHATS} chats in progress", limit=200.0),
        ),
    ),
)
