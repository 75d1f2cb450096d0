"""The worker: one process that runs the turns of its host, with its services and periodic tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from dbos import DBOS, DBOSConfig, WorkflowSerializationFormat
from pydantic_ai import __version__ as pydantic_ai_version

from shellback.exec.core.threads import cancelled
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.errors import ExecutorTaken, HostTaken
from shellback.storage.host import boot_of
from shellback.storage.tables import workers
from shellback.work.hosts import hosts, placing, roster
from shellback.work.hosts.clock import Clock, note_leap, since_boot
from shellback.work.hosts.placing import Offer
from shellback.work.queue.dbos_private import with_short_waits, without_lookups, without_polls
from shellback.work.queue.queues import APPLICATION, EVERYWHERE, LOOK_S, WORKFLOW
from shellback.work.turn.claims import RECOVERIES
from shellback.work.turn.turn import STEP_SHAPE, TurnRunner
from shellback.work.worker.posts import Posts
from shellback.work.worker.services import COUNT_S, HEARTBEAT_S, Service, every

log = logging.getLogger(__name__)

CLEANUP_S: Final = 300.0
"""All logs together may exceed their budget by the output of this time."""
RETAIN_S: Final = 3600.0
RETAIN_FIRST_S: Final = 60.0
"""Not at the start: waiting items go first."""
RENEWAL_LOOK_S: Final = 1.0
"""Between two looks whether the holder of our name renews its lease."""


def application_version() -> str:
    """The version; a worker replays only turns that were recorded by the same version."""
    return f"shape{STEP_SHAPE}-pydantic-ai-{pydantic_ai_version}"


Counted = Callable[[Callable[[sa.Connection], object]], object]
"""Runs a transaction together with a raise of the count; blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The identity and bounds of a worker."""

    executor_id: str
    host_id: str
    boot_id: str
    system_database_url: str = field(repr=False)
    turn_slots: int = 32
    wake_slots: int = 16
    sweep_s: float = 10.0
    drain_s: float = 30.0
    offer: Callable[[], Offer] = Offer
    """What its host has for new conversations now."""
    token: str = ""
    """Of the lock of this executor id, in the row of this worker, too."""
    before: str = ""
    """The token of the worker that held it before and has ended."""
    elsewhere: bool = False
    """Whether it runs turns for its host on another machine."""
    version: str = field(default_factory=application_version)
    traced: bool = False


@dataclass(eq=False, repr=False)
class Worker:
    """A worker. There is at most one per process: DBOS is a singleton."""

    config: WorkerConfig
    database: Database
    runner: TurnRunner
    sweep: Callable[[], Awaitable[object]]
    posts: Posts
    engine: Service
    cleanup: Callable[[], Awaitable[object]]
    retain: Callable[[], Awaitable[object]]
    before: Sequence[Service] = ()
    """Started before any turn runs."""
    beside: Sequence[Service] = ()
    loops: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Run beside the turns while the services run; they end by cancellation."""
    counted: Counted | None = None
    renewed: Callable[[float], object] = lambda _at: None
    """Called when the lease of its host was renewed, with the time before that, in seconds since the boot."""
    fallen: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when another process holds the executor id, or its host is gone; the caller must stop this worker."""
    why_fallen: str = field(init=False, default="")
    emptied: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when its host drains and nothing there needs it; the caller must stop this worker."""
    _held_until: float = field(init=False, default=math.inf)
    """When the lease counts as lapsed (seconds since the boot), unless it is renewed before."""
    _lapsed: bool = field(init=False, default=False)
    _clock: Clock = field(init=False, default_factory=Clock)
    _loops: list[asyncio.Task[None]] = field(init=False, default_factory=list[asyncio.Task[None]])
    _running: list[asyncio.Task[None]] = field(init=False, default_factory=list[asyncio.Task[None]])
    _registered: bool = field(init=False, default=False)
    _launched: bool = field(init=False, default=False)

    async def start(self) -> None:
        """Connect to the supervisor, recover this executor's turns, and listen to the queues.

        After a cancellation a second start works. Raises ExecutorTaken if the holder of its name renews its lease.
        """
        config = self.config
        await self._take_name()
        await self.engine.start()
        for service in self.before:
            await service.start()
        self.runner.leaving.clear()
        dbos = DBOS(config=self._dbos_config())

        @DBOS.workflow(
            name=WORKFLOW, max_recovery_attempts=RECOVERIES, serialization_type=WorkflowSerializationFormat.PORTABLE
        )
        async def turn(item: dict[str, Any]) -> dict[str, Any]:
            return await self.runner.run(item)

        with_short_waits()
        DBOS.listen_queues(())  # the posts listen to ours
        self.posts.prepare(dbos)
        # On this thread, so that turns run on this loop, which also reads the supervisor's connection.
        with without_polls():
            DBOS.launch()
        self._launched = True
        without_lookups(dbos, self.runner.first)
        await DBOS.set_latest_application_version_async(self.config.version)
        await self.posts.start(dbos)
        await self.cleanup()
        for service in self.beside:
            await service.start()
        self._running = [asyncio.create_task(run()) for run in self.loops]
        repeated: Sequence[tuple[float, str, Callable[[], Awaitable[object]], float]] = (
            (config.sweep_s, "sweep", partial(self._if_held, self.sweep), 0.5),
            (LOOK_S, "takeover", partial(self._if_held, self.posts.look), 0.5),
            (CLEANUP_S, "log clean-up", self.cleanup, CLEANUP_S),
            (RETAIN_S, "retention", self.retain, RETAIN_FIRST_S),
            (COUNT_S, "count", self._count, COUNT_S),
            (HEARTBEAT_S, "heartbeat", self._beat, HEARTBEAT_S),
        )
        self._loops = [
            asyncio.create_task(every(seconds, name, act, self.database.pause, first_s=first_s))
            for seconds, name, act, first_s in repeated
        ]
        log.info("worker %s ready, version %s", config.executor_id, self.config.version)

    async def stop(self) -> None:
        """Stop listening, give running turns `drain_s` to end, and stop; the next start resumes unfinished turns.

        If the executor id was lost, it does not wait: other workers may have these turns already.
        """
        beat = self._loops[-1:]
        await cancelled(self._loops[:-1])
        await self.posts.stop()
        if self._launched:
            self._launched = False
            self.runner.leaving.set()
            # The heartbeat continues until our turns have ended.
            drain_s = 0 if self.fallen.is_set() else int(self.config.drain_s)
            await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=drain_s, destroy_registry=True)
        await cancelled(beat)
        await cancelled(self._running)
        self._loops, self._running = [], []
        for service in (*self.beside, *self.before):
            await service.stop()
        await self.engine.stop()
        if self._registered:
            self._registered = False
            with contextlib.suppress(Exception):
                await self._count(partial(_unregister, config=self.config))

    async def _take_name(self) -> None:
        """Register. Leases that nobody renews, as after a restart of the machine, are waited for."""
        held: dict[str, float | None] = {}
        while not self._registered:
            self._renewed(began := since_boot())
            try:
                await self._count(partial(_register, config=self.config))
                self._registered = True
                await self._note_renewed(began)
            except ExecutorTaken as taken:
                if not held:
                    log.warning("this name or host is held by %s: waiting for the end of its lease", taken.holder)
                if held.setdefault(taken.name, taken.renewed_at) != taken.renewed_at:
                    raise
                await asyncio.sleep(RENEWAL_LOOK_S)

    async def _beat(self) -> None:
        if self.fallen.is_set():
            return
        begun = since_boot()
        try:
            async with asyncio.timeout(self._patience_s(begun)):
                empty = await self._renew(begun)
        except ExecutorTaken as taken:
            self._fall(taken)
            return
        except Exception as error:
            if since_boot() < self._held_until:
                raise
            self._lapse(error)
            return
        if self._lapsed:
            log.warning("executor id %s is held again: turns that were taken over end here", self.config.executor_id)
        self._lapsed = False
        self._renewed(begun)
        await self._note_renewed(begun)
        if empty:
            self.emptied.set()
        if leap := self._clock.leapt():
            log.warning("the clock of this machine leapt by %.1f s", leap)
            if not self.config.elsewhere:  # the row is that of the host's machine
                await self.database.write(note_leap, self.config.host_id, leap)

    async def _note_renewed(self, at: float) -> None:
        if not self.config.elsewhere:
            await asyncio.to_thread(self.renewed, at)

    async def _renew(self, begun: float) -> bool:
        """Renew the lease; whether the host drains and is empty."""
        held, empty, newest = await self.database.write(_heartbeat, self.config, self.posts.host_ids)
        if not held:
            # Our row was pruned because the machine slept or its clock leapt, or it is another's.
            await self.database.write(_register, self.config)
        elif begun >= self._held_until and not self.config.elsewhere:
            # Others took us for gone; a copy of our state directory may have begun meanwhile.
            await self.database.write(_alone, self.config)
        self.posts.take(newest, self.config.version)
        return empty

    def _patience_s(self, now: float) -> float | None:
        """How long a renewal may take. Once the lease has lapsed it waits, so that only one connection does."""
        if self._lapsed or not self._leased:
            return None
        # One that was paused for longer than its lease may try once: nobody may have taken its name.
        return max(self._held_until - now, HEARTBEAT_S)

    def _lapse(self, error: Exception) -> None:
        if not self._lapsed:
            log.error(
                "the lease of executor id %s was not renewed in time: until it is, others may take over its turns (%s)",
                *(self.config.executor_id, str(error) or type(error).__name__),
            )
        self._lapsed = True

    def _fall(self, taken: ExecutorTaken) -> None:
        why = str(taken) if isinstance(taken, HostTaken) else f"process {taken.pid} on {taken.host} holds it"
        log.error("executor id %s is no longer held: this worker stops: %s", self.config.executor_id, why)
        self.fall("this worker lost its name or host to another process while it was paused or cut off; see its log")

    def fall(self, why: str) -> None:
        """Have the caller stop this worker, and say why."""
        self.why_fallen = why
        self.fallen.set()

    async def _if_held(self, act: Callable[[], Awaitable[object]]) -> None:
        """Act, unless the lease has lapsed: a worker that is cut off judges nobody."""
        if not self._lapsed:
            await act()

    @property
    def _leased(self) -> bool:
        """On SQLite the lock in the state directory is enough, which the database is a part of."""
        return self.database.dialect != "sqlite"

    def _renewed(self, at: float) -> None:
        if self._leased:
            # Before the lease ends in the database, which began it later.
            self._held_until = at + roster.LEASE_S - HEARTBEAT_S

    async def _count(self, within: Callable[[sa.Connection], object] = lambda _: None) -> None:
        # Not the loop's default executor: DBOS has shut it down when we unregister.
        thread = ThreadPoolExecutor(1, "count")
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self.counted or self.database.write_now, within)
        finally:
            thread.shutdown(wait=False)

    def _dbos_config(self) -> DBOSConfig:
        return {
            "name": APPLICATION,
            "system_database_url": self.config.system_database_url,
            "executor_id": self.config.executor_id,
            "application_version": self.config.version,
            "run_migrations": False,
            "system_database_engine": self.database.dbos_engine,
            # It would hold a connection for messages of workflows, which we do not use.
            "use_listen_notify": False,
            # A file does not break while it is idle.
            "db_engine_kwargs": {"pool_pre_ping": False},
            "log_level": "WARNING",
            "enable_otlp": self.config.traced,
            "otel_attribute_format": "semconv",
        }


def _register(conn: sa.Connection, config: WorkerConfig) -> None:
    """Take the lease of the executor id.

    Raises:
        ExecutorTaken: The lease of another process runs.
        HostTaken: That of a worker on another machine runs, under another name of this host.
    """
    if not config.elsewhere:
        _alone(conn, config)
    holder, now = rows.lock_row(conn, workers, config.executor_id), rows.now(conn)
    if (
        conn.dialect.name != "sqlite"
        and holder is not None
        and holder["stopped_at"] is None
        and holder["heartbeat_at"] > now - roster.LEASE_S
        and holder["token"] not in {config.token, config.before or config.token}
    ):
        host = hosts.one(conn, holder["host_id"]).name
        raise ExecutorTaken(config.executor_id, host, holder["pid"], holder["heartbeat_at"])
    values: dict[str, Any] = {
        "host_id": config.host_id,
        "pid": os.getpid(),
        "boot_id": config.boot_id,
        "elsewhere": config.elsewhere,
        "version": config.version,
        "started_at": now,
        "heartbeat_at": now,
        "stopped_at": None,
        "token": config.token,
        "offer": config.offer().to_json(),
    }
    rows.put(conn, workers, config.executor_id, **values)
    _heard_of(conn, config)


def _heard_of(conn: sa.Connection, config: WorkerConfig) -> bool:
    """Renew the lease of the host, if this is its machine; whether it drains. A worker of many ends with none."""
    if config.host_id == EVERYWHERE:
        return False
    return hosts.one(conn, config.host_id).draining if config.elsewhere else hosts.heard_of(conn, config.host_id)


def _alone(conn: sa.Connection, config: WorkerConfig) -> None:
    """Raise HostTaken while a worker of this host is alive on another machine."""
    # All names of the host: two machines may start at once.
    rows.lock_name(conn, f"workers of {config.host_id}")
    its = workers.c
    elsewhere = ~its.boot_id.startswith(boot_of(config.boot_id), autoescape=True)
    others = *_alive(config.host_id), its.executor_id != config.executor_id, ~its.elsewhere
    other = conn.execute(sa.select(workers).where(*others, elsewhere).limit(1)).first()
    if other is not None:
        raise HostTaken(other.executor_id, hosts.one(conn, config.host_id).name, other.pid, other.heartbeat_at)


def _alive(*host_ids: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Workers of hosts that are alive; a heartbeat far ahead was before the database's clock was set back."""
    its, now = workers.c, rows.CLOCK
    alive = its.heartbeat_at.between(now - roster.LEASE_S, now + roster.LEASE_S)
    return its.host_id.in_(host_ids), its.stopped_at.is_(None), alive


def _heartbeat(
    conn: sa.Connection, config: WorkerConfig, host_ids: Sequence[str] = ()
) -> tuple[bool, bool, dict[str, str]]:
    """Whether the executor id is held, whether its host drains and is empty, and the newest version of each host.

    That is the version of its living worker that started last.
    """
    # Our row first, as in `_register`, then the row that all workers of the host share.
    offer = replace(config.offer(), hosts=host_ids if config.host_id == EVERYWHERE else ())
    now = {"heartbeat_at": rows.CLOCK, "offer": offer.to_json()}
    held = rows.change_some(conn, workers, *_ours(config), **now)
    drains = _heard_of(conn, config)
    its, newest = workers.c, dict[str, str]()
    run = *_alive(*host_ids, EVERYWHERE), its.version != roster.NO_TURNS
    query = sa.select(its.host_id, its.version, its.offer).where(*run).order_by(its.started_at.desc())
    for row in conn.execute(query):
        for host_id in roster.hosts_of(row.host_id, row.offer):
            newest.setdefault(host_id, row.version)
    return bool(held), drains and placing.empty(conn, config.host_id), newest


def _unregister(conn: sa.Connection, config: WorkerConfig) -> None:
    rows.change_some(conn, workers, *_ours(config), stopped_at=rows.now(conn))


def _ours(config: WorkerConfig) -> tuple[sa.ColumnElement[bool], ...]:
    """Our own row: if another worker has taken the name, it must not be renewed, nor marked as stopped."""
    return (workers.c.executor_id == config.executor_id, workers.c.token == config.token)
