"""The composition root: the only place that constructs objects and connects them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import platform
import uuid
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shellback.exec.wire import crashpoints
from shellback.log import process_wide
from shellback.settings import CONSOLE, Settings, plain_environment, words
from shellback.wiring import agency, supervision

if TYPE_CHECKING:
    from dbos import DBOSClient
    from pydantic_ai import Agent

    from shellback.exec.backends.containers import Containers
    from shellback.exec.backends.kinds import ChosenBackend
    from shellback.exec.core.ports import ExitSink
    from shellback.exec.log.mask import Mask
    from shellback.exec.tools.tool import Part
    from shellback.mcp_server.calls import Calls
    from shellback.storage.db import Database
    from shellback.storage.executor_lock import ExecutorLock
    from shellback.telemetry.watches import Watches
    from shellback.wiring.equipping import Equipment
    from shellback.wiring.views import Views
    from shellback.work.approvals.secrets_found import SecretsFound
    from shellback.work.elsewhere.lines import Fit
    from shellback.work.hosts.adopting import Neighbours
    from shellback.work.hosts.takeover import Takeover
    from shellback.work.notices.notices import Outbox
    from shellback.work.notices.notifier import Notifier
    from shellback.work.queue.doorbell import Doorbell, Notifications
    from shellback.work.queue.mailbox import Workspace
    from shellback.work.queue.queues import Enqueuer
    from shellback.work.turn.hearing import Hearing
    from shellback.work.turn.telling import Telling
    from shellback.work.turn.turn import TurnRunner
    from shellback.work.worker.retention import Retention
    from shellback.work.worker.services import Service
    from shellback.work.worker.worker import Worker, WorkerConfig

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Place:
    """The settings, database and host id of one state directory."""

    settings: Settings
    database: Database
    host_id: str
    notifications: Notifications | None = None
    """One for all doorbells of the process."""
    _mask: Mask | None = None

    @property
    def mask(self) -> Mask:
        """What hides secrets in output, with the values that are known now. Blocks: files are read."""
        from shellback.wiring.masking import mask_for

        self._mask = self._mask or mask_for(self.settings)
        self._mask.refresh()
        return self._mask

    @property
    def home(self) -> Path:
        """The state directory."""
        return self.settings.shellback_home

    @property
    def executor_id(self) -> str:
        """The id of the worker that these settings describe."""
        # SQLite has one worker, so its executor id has no name: a restarted worker takes over everything.
        name = "worker" if self.database.dialect == "sqlite" else self.settings.worker_name or "worker"
        return f"{self.host_id}.{name}"


@contextlib.contextmanager
def place(settings: Settings, *, migrated: bool = True) -> Generator[Place]:
    """Open the state directory and the database, and close the database at the end.

    With `migrated`, SQLite tables are upgraded; for Postgres the operator runs `shellback migrate`.

    Raises:
        HomeUnusable: The state directory cannot be trusted or written.
        SchemaBehind: Postgres has older tables.
        SchemaTooNew: A newer program has migrated the database.
        DatabaseUnreachable: No connection.
    """
    from shellback.storage import schema
    from shellback.storage.db import Database
    from shellback.storage.host import ensure_home, host_id

    ensure_home(settings.shellback_home)
    with contextlib.closing(Database(settings.database_url)) as database:
        if migrated:
            if database.dialect == "sqlite" and schema.check(database) is schema.SchemaState.BEHIND:
                schema.migrate(settings.database_url)
            schema.require_current(database)
        where = Place(settings, database, host_id(settings.shellback_home))
        database.noted = partial(_ring_readers, where)
        yield where


def _ring_readers(where: Place) -> None:
    from shellback.work.queue.doorbell import EVENTS

    a_doorbell(where).ring_here(EVENTS)


@contextlib.contextmanager
def enqueuing(where: Place) -> Generator[Enqueuer]:
    """An enqueuer that puts items on queues in transactions of `where.database`."""
    with dbos_client(where.database) as client:
        yield _enqueuer(where, client)


def transferred(where: Place, file: Path) -> dict[str, int]:
    """Copy the SQLite file of a host at rest into the empty database of `where`; returns the rows by table.

    Raises:
        SchemaBehind, SchemaTooNew: This program did not migrate the file last.
        MigrationFailed: Somebody uses the file, or the database is not empty; nothing was changed.
    """
    from shellback.storage import schema
    from shellback.storage.db import Database
    from shellback.work.hosts.transfer import transfer

    with (
        contextlib.closing(Database(f"sqlite:///{file.absolute()}")) as source,
        dbos_client(source) as client,
        enqueuing(where) as enqueuer,
    ):
        schema.require_current(source)
        return transfer(source, client, where.database, enqueuer, where.host_id)


def _enqueuer(where: Place, client: Any) -> Enqueuer:
    from shellback.work.queue.queues import DbosEnqueuer

    return DbosEnqueuer(client, a_doorbell(where).ring, traced=bool(where.settings.telemetry_endpoint))


def a_doorbell(where: Place) -> Doorbell:
    """A doorbell of this host, with which nothing listens yet."""
    from shellback.work.queue.doorbell import Doorbell, Notifications

    here = where.home, where.host_id, where.database
    where.notifications = where.notifications or Notifications(*here, where.settings.database_direct_url)
    return Doorbell(*here, where.notifications)


@contextlib.contextmanager
def dbos_client(database: Database) -> Generator[Any]:
    from dbos import DBOSClient

    # Its own retries would hold threads for up to 90 s after an outage; the callers retry within seconds.
    client = DBOSClient(
        system_database_url=database.url.render_as_string(hide_password=False),
        system_database_engine=database.dbos_engine,
        application_name="shellback",
        retry_connection_errors=False,
    )
    try:
        yield client
    finally:
        client.destroy()


@contextlib.contextmanager
def retention(where: Place, *, rows_s: float | None = None) -> Generator[Retention]:
    """The pruning of this host's rows; `rows_s` seconds replace `RETAIN_DAYS`."""
    with dbos_client(where.database) as client:
        yield _retention(where, client, rows_s)


def _retention(where: Place, client: Any, rows_s: float | None = None) -> Retention:
    from shellback.exec.log.logs import remove_session
    from shellback.wiring import directories
    from shellback.work.worker.retention import DAY_S, Ages, Retention

    settings = where.settings
    links = supervision.links(settings)
    ages = Ages(
        rows=settings.retain_days * DAY_S if rows_s is None else rows_s,
        logs=settings.log_age_hours * 3600,
        conversations=settings.retain_conversations_days * DAY_S,
    )
    return Retention(
        where.database,
        client,
        lambda name: remove_session(links, name),
        where.host_id,
        ages,
        teardown=lambda name: containers(where, name).remove(name),
        expire=partial(supervision.expire_conversations, settings),
        tidy=partial(directories.tidy, settings, where.database, set[str]()),
    )


def containers(where: Place, name: str) -> Containers:
    """The containers of the engine that has the container `name`, for callers that run no command in them."""
    from shellback.exec.backends import homes
    from shellback.exec.backends.kinds import CONTAINED
    from shellback.exec.log.placements import CONTAINERS
    from shellback.storage.workspaces import SqlWorkspaceStore
    from shellback.wiring.choice import made

    known = homes.known(where.home / CONTAINERS / name)
    found = made(where.settings, known.engine if known else next(iter(CONTAINED)), runs=False).containers
    assert found is not None
    found.log = SqlWorkspaceStore(where.database, where.host_id)
    return found


def arm_crash_points(settings: Settings) -> None:
    """Arm the crash points of this process, if a test has named a directory."""
    crash = settings.shellback_crash_points
    crashpoints.arm_from(str(crash) if crash else None)


def notices_of(where: Place) -> tuple[Outbox, Sequence[Notifier]]:
    """The outbox of notices and their senders: none, unless settings name a target."""
    from shellback.work.notices.notifier import notifying

    settings = where.settings
    return notifying(
        where.database,
        settings.notify_webhook,
        words(settings.notify_command) if settings.notify_command else (),
        plain_environment(),
        platform.node(),
        # Not a bound method: which values are secret is looked up for each notice.
        lambda text: where.mask.shown(text),  # noqa: PLW0108
        console=f"{settings.console_url}{CONSOLE}" if settings.console_url else "",
    )


def _secrets_found(where: Place, told: Callable[[int], object] = lambda _: None) -> SecretsFound:
    """Who makes rows of what the mask finds from now on; `told` is told of each find, too."""
    from shellback.work.approvals.secrets_found import SecretsFound

    made = SecretsFound(database=where.database, mode=where.mask.mode)

    def count(number: int, session_id: str) -> None:
        told(number)
        made.count(number, session_id)

    where.mask.noted = count
    return made


def _denying(where: Place) -> Service:
    """Who tells proxies what rules deny, whatever NETWORK is: commands that began with a list go on."""
    from shellback.work.approvals.denying import Denying

    policy = where.settings.policy
    return Denying(home=where.home, database=where.database, doorbell=a_doorbell(where), policy=policy)


def _for_proxies(
    where: Place, name: str, enqueuer: Enqueuer, outbox: Outbox, *, networks: Collection[str], once: bool
) -> Sequence[Service]:
    """Who makes rows of their records, and where they ask, if they ask at all.

    `name` is of this process, with `once` of no later one. `networks` are the values of NETWORK in its workspaces.
    """
    from shellback.exec.policy.rules.file import load
    from shellback.wiring.choice import ASK
    from shellback.work.approvals.collector import Collector
    from shellback.work.approvals.connecting import Terms
    from shellback.work.approvals.reception import Reception

    settings = where.settings
    collector = Collector(home=where.home, database=where.database, doorbell=a_doorbell(where))
    if ASK not in networks:
        return (collector,)
    terms = Terms(
        rules=load(settings.policy),
        ttl_s=settings.approval_ttl,
        limit=settings.pending_approvals,
        outbox=outbox,
    )
    return (
        collector,
        Reception(
            home=where.home,
            name=name,
            once=once,
            host_id=where.host_id,
            database=where.database,
            enqueuer=enqueuer,
            doorbell=a_doorbell(where),
            terms=terms,
        ),
    )


def _neighbours(where: Place, client: Any, enqueuer: Enqueuer, sink: ExitSink, outbox: Outbox) -> Neighbours:
    from shellback.work.hosts.adopting import Here, Neighbours

    here = Here(where.host_id, platform.node(), where.settings.host_lease_seconds, enqueuer, sink, outbox)
    return Neighbours(where.database, client, here, shared=where.settings.workspace_shared)


@contextlib.contextmanager
def neighbours(where: Place) -> Generator[Neighbours]:
    """The adoption of conversations of other hosts."""
    from shellback.exec.reports.callback_text import callback_payload
    from shellback.work.queue.callbacks import CallbackSink

    with dbos_client(where.database) as client:
        enqueuer = _enqueuer(where, client)
        sink = CallbackSink(enqueuer, where.host_id, lambda session: callback_payload(session, None))
        yield _neighbours(where, client, enqueuer, sink, notices_of(where)[0])


def agents_of(
    where: Place,
    views: Views,
    capabilities: Sequence[Any],
    hearing: Hearing,
    telling: Telling,
    *,
    turns: bool = True,
) -> tuple[Agent[Any, Any], dict[str, Agent[Any, Any]], str]:
    """The agent whose turns DBOS can replay, those of workspaces with another, and the version of their workers.

    Only workers of this version may replay their turns. Without `turns` there is an agent that runs none.
    """
    import pydantic_ai
    from pydantic_ai.capabilities import ReinjectSystemPrompt

    from shellback.agent.errors import AgentError
    from shellback.exec.core.pydantic_private import durability
    from shellback.work.hosts.roster import NO_TURNS
    from shellback.work.turn.failures import model_steps
    from shellback.work.worker.worker import application_version

    if not turns:
        return pydantic_ai.Agent(), {}, NO_TURNS
    pydantic_ai.BANNER_ENABLED = False  # a worker's terminal shows only its log
    settings, named = where.settings, list[str]()

    def made(seen: Settings) -> Agent[Any, Any]:
        # Each has its own: it is bound to the agent.
        durable = durability(
            telling,
            parallel_execution_mode="sequential",
            model_step_config=model_steps(),
        )
        # The prompt of an operator's agent may be in a message that is left out (`HISTORY_MESSAGES`).
        prompts = [ReinjectSystemPrompt()] if seen.agent and seen.history_messages else []
        agent = agency.agent_with(seen, [*capabilities, *prompts, hearing, durable])
        if seen.agent:
            named.append(f"{seen.workspace} {seen.agent} {agent.name}".lstrip())
        return agent

    agent, others = made(settings), dict[str, "Agent[Any, Any]"]()
    for seen in views.agents():
        try:
            others[seen.workspace] = made(seen)
        except AgentError as error:
            raise type(error)(f"workspace {seen.workspace}: {error}") from None
    # A turn of another agent is set aside, not replayed. Agents may share a name, and it may have any length.
    whole = "\n".join(named).encode("utf-8", "replace")
    return agent, others, application_version() + (f"-{hashlib.sha256(whole).hexdigest()[:10]}" if named else "")


def turn_runner(
    where: Place, enqueuer: Enqueuer, token: str, outbox: Outbox, watches: Watches, views: Views, **its: Any
) -> TurnRunner:
    """What runs the turns of a worker, by its settings; `its` are agents and what the host of the turns does."""
    from shellback.work.turn.claims import Wakes
    from shellback.work.turn.turn import Budget, TurnRunner

    def budget(seen: Settings) -> Budget:
        return Budget(requests=seen.turn_max_requests, tokens=seen.turn_max_tokens, seconds=seen.turn_max_seconds)

    settings = where.settings
    return TurnRunner(
        database=where.database,
        enqueuer=enqueuer,
        gate=lambda: settings.enable_execute,
        executor_id=where.executor_id,
        token=token,
        budget=budget(settings),
        budgets={seen.workspace: budget(seen) for _, seen in views.own()},
        wakes=Wakes(per_hour=settings.wakes_per_hour, chain=settings.chain_turns),
        approval_ttl_s=settings.approval_ttl,
        pending_limit=settings.pending_approvals,
        window=settings.history_messages,
        outbox=outbox,
        watch=watches.turns,
        **its,
    )


def _note_renewed(where: Place, at: float) -> None:
    """Let the commands of this host run on: without a shared workspace, also while nobody renews its lease."""
    from shellback.exec.wire import leash
    from shellback.work.hosts.hosts import ON_LEASH

    shared = where.settings.workspace_shared and where.database.dialect != "sqlite"
    until = at + ON_LEASH * where.settings.host_lease_seconds if shared else None
    try:
        if shared or leash.until(where.home) is not None:
            leash.renew(where.home, until)
    except OSError as error:
        log.warning("commands end in %.0f s, as the lease of this host cannot be noted: %s", (until or at) - at, error)


def worker_config(where: Place, lock: ExecutorLock, version: str, **more: Any) -> WorkerConfig:
    from shellback.storage.host import process_space
    from shellback.work.worker.worker import WorkerConfig

    settings = where.settings
    return WorkerConfig(
        executor_id=where.executor_id,
        host_id=where.host_id,
        boot_id=process_space(),
        system_database_url=settings.database_url,
        turn_slots=settings.turn_slots,
        wake_slots=settings.wake_slots,
        sweep_s=settings.sweep_seconds,
        drain_s=settings.drain_seconds,
        version=version,
        token=lock.token,
        before=lock.before,
        **more,
    )


@contextlib.contextmanager
def worker(where: Place, backend: ChosenBackend, *, turns: bool = True) -> Generator[Worker]:
    """A worker of this host for `backend`, not started; it holds its executor id until the end of the block.

    Without `turns` it does all else for its host, whose turns run elsewhere.

    Raises:
        AgentUnavailable, ModelUnavailable: An agent or its model cannot be used.
        ExecutorTaken: A worker with the same name lives, or one of this host on another machine.
        PolicyUnusable: The operator's file cannot be followed.
    """
    from shellback.exec.shell.workspaces.capability import WorkspaceCapability
    from shellback.exec.tools.capability import ExecCapability
    from shellback.storage.executor_lock import ExecutorLock, has_ended
    from shellback.telemetry.watches import watches as chosen
    from shellback.wiring.equipping import equipped
    from shellback.wiring.offering import Offering
    from shellback.work.hosts.generation import Generation
    from shellback.work.hosts.placing import Placing
    from shellback.work.hosts.sweep import ALWAYS, Sweep
    from shellback.work.hosts.unknown import Alarm
    from shellback.work.queue.queues import DbosEnqueuer
    from shellback.work.turn.equipment import ground_in_turn, place_in_turn, settle
    from shellback.work.turn.hearing import Hearing, fenced
    from shellback.work.turn.lifetimes import TurnEnds
    from shellback.work.turn.live import LiveBlocks, fresh_of
    from shellback.work.turn.stopping import watch_for_stops
    from shellback.work.turn.telling import Telling, note_output
    from shellback.work.worker.posts import Post, Posts
    from shellback.work.worker.worker import Worker

    settings, database, executor_id = where.settings, where.database, where.executor_id
    process_wide(host=where.host_id, executor=executor_id)
    lock = ExecutorLock(executor_id, where.home)
    with contextlib.ExitStack() as stack:
        stack.callback(lock.release)
        client = stack.enter_context(dbos_client(where.database))
        count = Generation(where.home, where.host_id, database)
        watches = chosen(settings, database, executor_id=executor_id, host_id=where.host_id, stack=stack)
        doorbell = a_doorbell(where)
        enqueuer = DbosEnqueuer(client, doorbell.ring, traced=watches.traced)

        secrets = _secrets_found(where, watches.secrets)
        equipment = equipped(where, backend, enqueuer, watches.sessions, blocks=True)
        engine, policy, files, tools = equipment.engine, equipment.policy, equipment.files, equipment.tools
        port, containers = equipment.port, equipment.containers
        outbox, notifiers = notices_of(where)
        live = LiveBlocks(settings.unpin_after, partial(fresh_of, engine.output))
        telling = Telling(database)
        offering = Offering(settings)
        agent, others, version = agents_of(
            where,
            equipment.views,
            [
                *watches.capabilities,
                ExecCapability(tools),
                WorkspaceCapability(
                    engine,
                    policy,
                    files,
                    ground=ground_in_turn,
                    name="worker",
                    place=place_in_turn,
                    fenced=fenced,
                ),
            ],
            Hearing(database, live, engine.recorded),
            telling,
            turns=turns,
        )
        turn_ends = TurnEnds(database, engine.supervised.port.expire, where.host_id)
        runner = turn_runner(
            *(where, enqueuer, lock.token, outbox, watches, equipment.views),
            agent=agent,
            others=others,
            propose=tools.propose,
            equip=partial(settle, ground_at=equipment.benches.at),
            shows=live.any,
            hosts={where.host_id},
            telling=telling,
            recorded=engine.recorded,
            closed=turn_ends.closed,
        )
        posts = Posts(executor_id, (settings.turn_slots, settings.wake_slots) if turns else ())
        ended = partial(has_ended, where.home)
        takeover = takeover_of(where, client, version, runner, doorbell, host_id=where.host_id, ended=ended)
        posts.add(Post(where.host_id, doorbell, takeover))
        yield Worker(
            worker_config(where, lock, version, traced=watches.traced, offer=offering.now),
            database,
            runner,
            Sweep(
                database,
                enqueuer,
                client,
                engine,
                where.host_id,
                (executor_id, version),
                watches.turns,
                outbox,
                also=(
                    ({"unplaced"}, Placing(database, enqueuer).once),
                    ({"silent"}, _neighbours(where, client, enqueuer, equipment.sink, outbox).once),
                    ({"watched"}, equipment.watcher.resume),
                    ({"live", "ended"}, turn_ends.once),
                    *(() if containers is None else ((ALWAYS, partial(containers.sweep, port.starting)),)),
                ),
            ).once,
            posts,
            engine,
            partial(supervision.cleanup, settings, database, engine),
            _retention(where, client).once,
            before=(_denying(where),),
            beside=(
                Alarm(port, database, where.host_id, count, where.home),
                equipment.watcher,
                equipment.shells.expiry,
                secrets,
                *_for_proxies(where, executor_id, enqueuer, outbox, networks=equipment.views.networks, once=False),
                *_listeners(where, equipment, turn_ends.closed, outbox),
            ),
            loops=(
                partial(watch_for_stops, database, engine, where.host_id),
                partial(note_output, database, engine),
                *(notifier.run for notifier in notifiers),
            ),
            counted=count.count,
            renewed=partial(_note_renewed, where),
        )


def takeover_of(
    where: Place,
    client: DBOSClient,
    version: str,
    runner: TurnRunner,
    doorbell: Doorbell,
    *,
    host_id: str,
    ended: Callable[[str, str], bool] = lambda _name, _token: False,
) -> Takeover:
    """What hands over the work of the dead workers of a host; `ended` as `Takeover` has it."""
    from shellback.work.hosts.takeover import Takeover

    own = (where.executor_id, version)
    every = partial(doorbell.ring, every=True)
    return Takeover(where.database, client, host_id, own, runner.running, every, ended)


def _listeners(
    where: Place, equipment: Equipment, closed: Callable[[str], Awaitable[None]], outbox: Outbox
) -> Sequence[Service]:
    """Who listens for workers elsewhere, if settings say where."""
    settings = where.settings
    if not settings.listen:
        return ()
    from shellback.exec.tools.capability import described
    from shellback.work.elsewhere.host import Carried, Listener

    address, _, port = settings.listen.rpartition(":")
    carried = Carried(
        tools=equipment.tools,
        ground_at=equipment.benches.at,
        described=partial(described, equipment.tools),
        recorded=equipment.engine.recorded,
        closed=closed,
        noted=partial(_ring_readers, where),
        gate=settings.enable_execute,
        seconds=settings.turn_max_seconds,
        fit=fit_of(equipment.views, equipment.tools.parts, notices=outbox.on, console=outbox.console),
    )
    reached_at = address.strip("[]"), int(port)
    return (Listener(reached_at, where.home, where.host_id, where.database, carried, a_doorbell(where)),)


def fit_of(views: Views, parts: frozenset[Part], **its: Any) -> Fit:
    """What a host and a worker elsewhere have to have in common."""
    from shellback.work.elsewhere.lines import Fit
    from shellback.work.worker.worker import application_version

    names = ("workspace", "agent", "model", "turn_max_requests", "turn_max_tokens", "turn_max_seconds")
    own = sorted(repr([getattr(seen, name) for name in names]) for _, seen in views.own())
    digest = hashlib.sha256("\n".join(own).encode("utf-8", "replace")).hexdigest() if own else ""
    return Fit(version=application_version(), parts=parts, own=digest, **its)


@contextlib.contextmanager
def mcp_calls(where: Place, backend: ChosenBackend, workspace: Workspace | None = None) -> Generator[Calls]:
    """The calls of the MCP clients of one process of this host for `backend`, not started.

    Raises:
        PolicyUnusable: The operator's file of rules cannot be followed.
    """
    from shellback.mcp_server.calls import Bounds, Calls
    from shellback.storage.connections import Connections
    from shellback.wiring.equipping import equipped
    from shellback.work.hosts.generation import Generation
    from shellback.work.hosts.unknown import Alarm
    from shellback.work.queue.mailbox import CONNECTION

    settings, process = where.settings, f"{CONNECTION}{uuid.uuid4().hex}"
    process_wide(host=where.host_id, executor=process)
    with dbos_client(where.database) as client:
        enqueuer = _enqueuer(where, client)
        secrets = _secrets_found(where)
        equipment = equipped(where, backend, enqueuer, blocks=False)
        count = Generation(where.home, where.host_id, where.database)
        outbox, notifiers = notices_of(where)
        yield Calls(
            database=where.database,
            engine=equipment.engine,
            tools_of=equipment.tools,
            enqueuer=enqueuer,
            doorbell=a_doorbell(where),
            host_id=where.host_id,
            counted=count.count,
            renewed=partial(_note_renewed, where),
            connections=Connections(where.home),
            process=process,
            workspace=workspace,
            bounds=Bounds(
                approval_ttl_s=settings.approval_ttl,
                pending=settings.pending_approvals,
                kept_s=settings.retain_days * 86400.0,
                elicits=settings.mcp_elicitation == "on",
            ),
            gate=settings.enable_execute,
            outbox=outbox,
            beside=(
                _denying(where),
                Alarm(equipment.port, where.database, where.host_id, count, where.home),
                equipment.watcher,
                equipment.shells.expiry,
                secrets,
                *_for_proxies(where, process, enqueuer, outbox, networks=equipment.views.networks, once=True),
            ),
            loops=[notifier.run for notifier in notifiers],
        )
