"""The composition root: the only place that constructs things and knows who needs whom."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from app.exec.supervisor import crashpoints
from app.settings import Settings

if TYPE_CHECKING:
    from pydantic_ai.durable_exec.dbos import StepConfig

    from app.exec.backends.base import Backend
    from app.exec.model import Session
    from app.exec.supervisor.client import SupervisorClient
    from app.storage.db import Database
    from app.work.mailbox import Letter
    from app.work.queues import Enqueuer
    from app.work.worker import Worker


@dataclass(slots=True)
class Place:
    """What everybody shares who acts on one state directory: its settings, its database, its host id."""

    settings: Settings
    database: Database
    host_id: str

    @property
    def home(self) -> Path:
        """The state directory."""
        return self.settings.shellback_home


@contextlib.contextmanager
def place(settings: Settings, *, migrated: bool = True) -> Generator[Place]:
    """Open the state directory and the database, and close the database at the end.

    A SQLite database is brought up to date by whoever comes first; Postgres is the operator's, who runs
    `shellback migrate`.

    Raises:
        HomeUnusable: The state directory cannot be trusted or written.
        SchemaBehind: Postgres has older tables.
        SchemaTooNew: A newer program has migrated the database.
        DatabaseUnreachable: No connection.
    """
    from app.storage import schema
    from app.storage.db import Database
    from app.storage.host import ensure_home, host_id

    ensure_home(settings.shellback_home)
    database = Database(settings.database_url)
    try:
        if migrated:
            if database.dialect == "sqlite" and schema.check(database) is schema.SchemaState.BEHIND:
                schema.migrate(settings.database_url)
            schema.require_current(database)
        yield Place(settings, database, host_id(settings.shellback_home))
    finally:
        database.close()


@contextlib.contextmanager
def enqueuing(where: Place) -> Generator[Enqueuer]:
    """Something that puts items on queues in transactions of `where.database`."""
    with _dbos_client(where) as client:
        from app.work.queues import DbosEnqueuer

        yield DbosEnqueuer(client)


@contextlib.contextmanager
def _dbos_client(where: Place) -> Generator[Any]:
    from dbos import DBOSClient

    client = DBOSClient(system_database_url=where.settings.database_url, application_name="shellback")
    try:
        yield client
    finally:
        client.destroy()


def backend(settings: Settings) -> Backend:
    """The backend that settings name; `auto` takes what works here, which for now is the host."""
    from app.exec.backends.host import HostBackend

    return HostBackend(settings.workspace_root, exec_uid=settings.exec_uid)


def _model_steps(worth_retrying: Callable[[BaseException], bool]) -> StepConfig:
    options: dict[str, Any] = {
        "retries_allowed": True,
        "max_attempts": 3,
        "interval_seconds": 1.0,
        # DBOS knows this option; the typed dictionary that passes it on does not list it.
        "should_retry": worth_retrying,
    }
    return cast("StepConfig", options)


def supervisor_client(settings: Settings, *, spawn: bool = True) -> SupervisorClient:
    """A client of the host's supervisor; with `spawn` it starts one where none answers."""
    from app.exec.supervisor.client import SupervisorClient

    crash = settings.shellback_crash_points
    return SupervisorClient(
        settings.shellback_home,
        spawn=spawn,
        crash_dir=str(crash) if crash else None,
        idle_s=settings.supervisor_idle_seconds,
    )


def arm_crash_points(settings: Settings) -> None:
    """Let armed crash points of this process fire, where a test has named a directory."""
    crash = settings.shellback_crash_points
    crashpoints.arm_from(str(crash) if crash else None)


@contextlib.contextmanager
def worker(where: Place) -> Generator[Worker]:
    """A worker of this host, not started; holds its executor id until the end.

    Raises:
        ExecutorTaken: A worker with the same name lives.
        ModelUnavailable: The model cannot be used.
    """
    from app.agent.builtin import build_agent, choose_model
    from app.exec.callback_text import callback_payload
    from app.exec.capability import ExecCapability
    from app.exec.engine import Engine
    from app.exec.limits import Limits
    from app.exec.logs import cleanup_exec_logs
    from app.exec.toolset import ExecTools
    from app.storage.executor_lock import hold_executor
    from app.storage.host import boot_id
    from app.storage.sessions import SqlSessionStore
    from app.work.approvals import consume_call, consume_claim
    from app.work.callbacks import CallbackSink
    from app.work.claims import Wakes
    from app.work.deps import TurnDeps
    from app.work.hearing import Hearing
    from app.work.mailbox import take
    from app.work.queues import DbosEnqueuer
    from app.work.sweep import Sweep, undelivered
    from app.work.telling import Telling
    from app.work.turn import Budget, TurnRunner, worth_retrying
    from app.work.worker import Worker, WorkerConfig, application_version

    settings, database = where.settings, where.database
    # SQLite has one worker, so its executor id never depends on a name: a restart takes everything up.
    name = "worker" if database.dialect == "sqlite" else settings.worker_name or "worker"
    executor_id = f"{where.host_id}.{name}"
    lock = hold_executor(executor_id, home=where.home, database=database)
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        client = stack.enter_context(_dbos_client(where))
        enqueuer = DbosEnqueuer(client)

        def payload_of(session: Session) -> dict[str, object]:
            return callback_payload(session, engine.output(session))

        store = SqlSessionStore(
            database,
            sink=CallbackSink(enqueuer, where.host_id, payload_of),
            within=consume_claim,
            within_call=consume_call,
            limit=settings.sessions_per_conversation,
        )
        engine = Engine(
            store,
            supervisor_client(settings),
            backend(settings),
            home=where.home,
            host_id=where.host_id,
            limits=Limits(
                command_chars=settings.command_chars,
                foreground_timeout_s=settings.foreground_timeout,
                log_bytes=settings.log_bytes,
            ),
        )
        tools = ExecTools(engine)

        async def take_news(deps: TurnDeps, step: int) -> list[Letter]:
            return await database.write(take, deps.conversation_id, deps.turn_id, deps.epoch, step)

        from pydantic_ai.durable_exec.dbos import DBOSDurability

        agent = build_agent(
            choose_model(settings.model, offline_seconds=settings.offline_seconds),
            [
                ExecCapability(tools),
                Hearing(take_news),
                DBOSDurability(
                    event_stream_handler=Telling(database),
                    parallel_execution_mode="sequential",
                    model_step_config=_model_steps(worth_retrying),
                ),
            ],
            deps_type=TurnDeps,
        )
        runner = TurnRunner(
            database=database,
            enqueuer=enqueuer,
            agent=agent,
            propose=tools.propose,
            gate=lambda: settings.enable_execute,
            executor_id=executor_id,
            budget=Budget(
                requests=settings.turn_max_requests,
                tokens=settings.turn_max_tokens,
                seconds=settings.turn_max_seconds,
            ),
            wakes=Wakes(per_hour=settings.wakes_per_hour, chain=settings.chain_turns),
            approval_ttl_s=settings.approval_ttl,
        )

        async def cleanup() -> object:
            engine.registry.cleanup(settings.log_age_hours)
            return await cleanup_exec_logs(
                store,
                engine.links,
                max_age_hours=settings.log_age_hours,
                undelivered=await database.read(undelivered),
            )

        yield Worker(
            WorkerConfig(
                executor_id=executor_id,
                host_id=where.host_id,
                boot_id=boot_id(),
                system_database_url=settings.database_url,
                turn_slots=settings.turn_slots,
                wake_slots=settings.wake_slots,
                sweep_s=settings.sweep_seconds,
            ),
            database,
            runner,
            Sweep(database, enqueuer, client, engine, where.host_id, (executor_id, application_version())),
            engine,
            cleanup,
            lock.still_held,
        )
