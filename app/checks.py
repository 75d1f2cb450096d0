"""What a worker needs of its surroundings, looked at one by one. Each check says cause and remedy."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa

from app import wiring
from app.exec.errors import ExecError, SupervisorAbsent
from app.exec.logs import kept_logs
from app.exec.model import LIVE_STATES
from app.exec.supervisor import layout
from app.settings import shown_url, words
from app.storage import rows, schema
from app.storage.errors import StorageError
from app.storage.tables import approvals, conversations, mailbox, sessions, workers
from app.telemetry.watches import missing
from app.work import notices
from app.work.sweep import HEARTBEAT_DEAD_S

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from app.settings import Settings
    from app.wiring import Place

State = Literal["ok", "warn", "fail"]
KERNEL: Final = (5, 10)
DESCRIPTORS: Final = 4096
DISK_BYTES: Final = 1024**3
STUCK_S: Final = 60.0
"""News that old, while no turn runs and nothing is heard, is news that no worker looks for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `remedy` is empty when there is nothing to do."""

    name: str
    state: State
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return asdict(self)


def all_checks(settings: Settings) -> list[Check]:
    """Everything, cheap things first; a check that cannot be made says why instead of raising."""
    found = [_kernel(), _descriptors(), _gate(settings), _model(settings), _backend(settings)]
    try:
        with wiring.place(settings, migrated=False) as where:
            found += [_disk(where), _logs(where), *_database(where)]
    except StorageError as error:
        found.append(Check("state directory", "fail", str(error)))
    found += [_supervisor(settings), _telemetry(settings)]
    return found


def live_checks(settings: Settings) -> list[Check]:
    """Whether the worker that these settings describe is up: its heart, its queues, its supervisor. Nothing else."""
    try:
        with wiring.place(settings, migrated=False) as where:
            schema.require_current(where.database)
            me, host = where.executor_id, where.host_id
            found = where.database.read_now(lambda conn: [_heart(conn, me), _queues(conn, host)])
    except StorageError as error:
        found = [Check("database", "fail", str(error), "see to the database; the worker goes on by itself after that")]
    return [*found, _supervisor(settings, needed=True)]


def _heart(conn: sa.Connection, executor_id: str) -> Check:
    row = conn.execute(
        sa.select(workers.c.heartbeat_at, workers.c.stopped_at).where(workers.c.executor_id == executor_id)
    ).one_or_none()
    if row is None or row.stopped_at is not None:
        return Check("worker", "fail", f"{executor_id} does not run", "start it: shellback worker")
    age = rows.now(conn) - row.heartbeat_at
    if age > HEARTBEAT_DEAD_S:
        return Check("worker", "fail", f"{executor_id} was last heard of {age:.0f} s ago", "restart it; see its log")
    return Check("worker", "ok", f"{executor_id} was heard of {max(0.0, age):.0f} s ago")


def _queues(conn: sa.Connection, host_id: str) -> Check:
    of_host = conversations.c.host_id == host_id
    oldest = conn.execute(
        sa.select(sa.func.min(mailbox.c.created_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(of_host, mailbox.c.state == "unread", conversations.c.state == "free")
    ).scalar_one()
    age = 0.0 if oldest is None else time.time() - oldest
    if age <= STUCK_S:
        return Check("queues", "ok", "nothing waits longer than it should")
    running = conn.execute(
        sa.select(sa.func.count()).select_from(conversations).where(of_host, conversations.c.state == "claimed")
    ).scalar_one()
    heard = conn.execute(
        sa.select(sa.func.max(mailbox.c.heard_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(of_host)
    ).scalar_one()
    if running or (heard is not None and time.time() - heard < STUCK_S):
        return Check("queues", "ok", f"a backlog {age:.0f} s long; {running} turn(s) run")
    return Check("queues", "fail", f"news waits for {age:.0f} s and no turn runs", "restart the worker; see its log")


def _kernel() -> Check:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if platform.system() != "Linux" or numbers < KERNEL:
        return Check("kernel", "fail", f"{platform.system()} {release}", "Linux 5.10 or newer is needed (pidfd)")
    return Check("kernel", "ok", f"Linux {release}")


def _descriptors() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS:
        remedy = "raise the hard limit (ulimit -Hn, LimitNOFILE= of a unit); each process takes up to four"
        return Check("descriptors", "warn", f"hard limit {hard}", remedy)
    return Check("descriptors", "ok", f"hard limit {hard}")


def _gate(settings: Settings) -> Check:
    if settings.enable_execute:
        return Check("gate", "ok", "ENABLE_EXECUTE is on: agents may ask to run commands")
    return Check("gate", "warn", "ENABLE_EXECUTE is off: agents have no shell tools", "set ENABLE_EXECUTE=true")


def _model(settings: Settings) -> Check:
    from app.agent.errors import AgentUnavailable, ModelUnavailable

    try:
        agent = wiring.agent_with(settings, [])
    except AgentUnavailable as error:
        return Check("agent", "fail", str(error))
    except ModelUnavailable as error:
        return Check("model", "fail", str(error))
    if settings.agent:
        return Check("agent", "ok", f"{settings.agent} ({agent.name}), model {_model_id(agent)}")
    if settings.model == "offline":
        return Check("model", "ok", "offline: a stand-in for trying and testing, not a language model")
    return Check("model", "ok", settings.model)


def _model_id(agent: Agent[Any, Any]) -> str:
    return str(getattr(agent.model, "model_id", agent.model))


def _backend(settings: Settings) -> Check:
    backend = wiring.backend(settings)
    if "workspace_root" not in settings.model_fields_set and not settings.workspace_root.exists():
        return Check("backend", "ok", f"{backend.name}; `chat` and `worker` will make {settings.workspace_root}")
    try:
        backend.check()
    except ExecError as error:
        return Check("backend", "fail", str(error))
    text = f"{backend.name}: {backend.description}"
    if backend.name == "host":
        return Check("backend", "warn", text, "approve with care: what you approve can do what that user can")
    return Check("backend", "ok", text)


def _telemetry(settings: Settings) -> Check:
    if not settings.telemetry_endpoint:
        return Check("telemetry", "ok", "off: no OTEL_EXPORTER_OTLP_ENDPOINT is set")
    if lacking := missing():
        return Check("telemetry", "warn", f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {lacking}")
    words = ", with prompts and output (TELEMETRY_CONTENT)" if settings.telemetry_content else ""
    return Check("telemetry", "ok", f"traces and metrics go to {shown_url(settings.telemetry_endpoint)}{words}")


def _disk(where: Place) -> Check:
    found = os.statvfs(where.home)
    free = found.f_bavail * found.f_frsize
    if free < DISK_BYTES:
        return Check("disk", "warn", f"{free // 1024**2} MiB free in {where.home}", "logs are dropped when it is full")
    return Check("disk", "ok", f"{free // 1024**3} GiB free in {where.home}")


def _logs(where: Place) -> Check:
    taken = sum(one.all_bytes for one in kept_logs(where.home / layout.SESSIONS))
    text = f"{taken // 1024**2} MiB of logs"
    budget = where.settings.log_total_bytes
    if 0 < budget < taken:
        remedy = "a worker empties those of ended sessions; for the rest end sessions, or raise LOG_TOTAL_BYTES"
        return Check("logs", "warn", f"{text}, beyond LOG_TOTAL_BYTES ({budget // 1024**2} MiB)", remedy)
    return Check("logs", "ok", text)


def _database(where: Place) -> list[Check]:
    shown = where.settings.shown_database
    try:
        state = schema.check(where.database)
        if state is schema.SchemaState.BEHIND and where.database.dialect == "sqlite":
            return [Check("database", "ok", f"{shown}: not there yet or old; the first command brings it up to date")]
        schema.require_current(where.database)
        checks = [Check("database", "ok", f"{shown}, tables current")]
        checks += where.database.read_now(_looked_up, where.host_id)
        return [*checks, where.database.read_now(_notified, where.settings)]
    except StorageError as error:
        return [Check("database", "fail", str(error))]


def _looked_up(conn: sa.Connection, host_id: str) -> list[Check]:
    return [look(conn, host_id) for look in _LOOKS]


def _notified(conn: sa.Connection, settings: Settings) -> Check:
    if not (settings.notify_command or settings.notify_webhook):
        return Check("notifications", "ok", "off: nobody is told of approvals (NOTIFY_COMMAND, NOTIFY_WEBHOOK)")
    target = "a webhook" if settings.notify_webhook else words(settings.notify_command)[0]
    told = notices.told(conn)
    last = "none sent yet" if told.sent_at is None else f"last sent {time.time() - told.sent_at:.0f} s ago"
    text = f"{target}; {last}, {told.waiting} to send, {told.given_up} given up"
    if settings.notify_command and shutil.which(target) is None:
        return Check("notifications", "warn", f"{text}; {target} is no program here", "give its full path")
    if told.error:
        remedy = "mend the target; .env.example says what it gets"
        return Check("notifications", "warn", f"{text}; last error: {told.error}", remedy)
    return Check("notifications", "ok", text)


def _worker(conn: sa.Connection, host_id: str) -> Check:
    alive = conn.execute(
        sa.select(workers.c.executor_id, workers.c.pid, workers.c.version).where(
            workers.c.host_id == host_id,
            workers.c.stopped_at.is_(None),
            workers.c.heartbeat_at > rows.now(conn) - HEARTBEAT_DEAD_S,
        )
    ).all()
    if not alive:
        return Check("worker", "warn", "none of this host has been heard of", "start one: shellback worker")
    return Check("worker", "ok", ", ".join(f"{row.executor_id} (pid {row.pid}, {row.version})" for row in alive))


def _set_aside(conn: sa.Connection, _host_id: str) -> Check:
    blocked = conn.execute(
        sa.select(conversations.c.id, conversations.c.blocked_reason).where(
            conversations.c.state == "blocked", conversations.c.blocked_reason != "approval"
        )
    ).all()
    if blocked:
        named = ", ".join(f"{row.id} ({row.blocked_reason})" for row in blocked[:10])
        return Check("conversations", "warn", f"{len(blocked)} blocked: {named}", "a message to one tries again")
    return Check("conversations", "ok", "none is set aside")


def _waiting(conn: sa.Connection, _host_id: str) -> Check:
    count, oldest = conn.execute(
        sa.select(sa.func.count(), sa.func.min(approvals.c.created_at)).where(approvals.c.state == "pending")
    ).one()
    if not count:
        return Check("approvals", "ok", "nothing waits")
    text = f"{count} wait, the oldest for {time.time() - oldest:.0f} s"
    return Check("approvals", "warn", text, "shellback approvals list")


def _news(conn: sa.Connection, _host_id: str) -> Check:
    oldest = conn.execute(
        sa.select(sa.func.min(mailbox.c.created_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(mailbox.c.state == "unread", conversations.c.state == "free")
    ).scalar_one()
    if oldest is not None and time.time() - oldest > 60:
        text = f"unread news of a free conversation is {time.time() - oldest:.0f} s old"
        return Check("mailbox", "warn", text, "a worker's sweep mends this; does one run?")
    return Check("mailbox", "ok", "no news is stuck")


def _other_boot(conn: sa.Connection, host_id: str) -> Check:
    from app.storage.host import boot_id

    stale = conn.execute(
        sa.select(sa.func.count()).where(
            sessions.c.host_id == host_id,
            sessions.c.state.in_([state.value for state in LIVE_STATES]),
            sessions.c.boot_id != boot_id(),
        )
    ).scalar_one()
    if stale:
        text = f"{stale} session(s) of an earlier boot are not settled"
        return Check("sessions", "warn", text, "the next worker reports them as lost(machine_rebooted)")
    return Check("sessions", "ok", "none is left from an earlier boot")


_LOOKS: Final[tuple[Callable[[sa.Connection, str], Check], ...]] = (_worker, _set_aside, _waiting, _news, _other_boot)


def _supervisor(settings: Settings, *, needed: bool = False) -> Check:
    try:
        hello = asyncio.run(_hello(settings))
    except SupervisorAbsent as error:
        if settings.supervisor == "external":
            remedy = "start it there, as the same user: `shellback supervisor`, or its service"
            return Check("supervisor", "fail", str(error), remedy)
        if needed:
            return Check("supervisor", "fail", str(error), "a worker starts one; its log says why it cannot")
        return Check("supervisor", "ok", "none runs; the first command starts one")
    except ExecError as error:
        return Check("supervisor", "fail", str(error))
    text = f"pid {hello['pid']}, protocol {hello['version']}, {hello['live']} live session(s)"
    if not hello["keeper"]:
        return Check("supervisor", "warn", f"{text}, without its keeper", "both are replaced once nothing runs")
    return Check("supervisor", "ok", text)


async def _hello(settings: Settings) -> Any:
    client = wiring.supervisor_client(settings, spawn=False)
    try:
        return await client.connect()
    finally:
        await client.close()
