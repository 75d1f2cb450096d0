"""The supervisors of a state directory: the host's, and one in each container."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from shellback.settings import Settings

if TYPE_CHECKING:
    from shellback.exec.backends.kinds import ChosenBackend
    from shellback.exec.backends.supervisors import Supervisors
    from shellback.exec.core.ports import SupervisorPort
    from shellback.exec.engine.engine import Engine
    from shellback.exec.link.client import SupervisorClient
    from shellback.exec.log.links import KnownLinks
    from shellback.exec.wire.protocol import Message
    from shellback.storage.db import Database

T = TypeVar("T")
EXTERNAL_WAIT_S: Final = 30.0
"""How long a worker waits for an external supervisor to start."""


def supervisor_client(
    settings: Settings, *, spawn: bool = True, lends: Mapping[str, str] | None = None
) -> SupervisorClient:
    """A client of the host's supervisor. With `spawn` it starts one if none answers, or waits for an external one.

    It `lends` each supervisor these values of credentials, sealed.
    """
    from shellback.exec.link.client import SupervisorClient

    crash = settings.shellback_crash_points
    external = settings.supervisor == "external"
    return SupervisorClient(
        settings.shellback_home,
        spawn=spawn and not external,
        wait_s=EXTERNAL_WAIT_S if spawn and external else 0.0,
        crash_dir=str(crash) if crash else None,
        idle_s=settings.supervisor_idle_seconds,
        lends=lends,
    )


def supervisors(settings: Settings, backends: Sequence[ChosenBackend] = ()) -> Supervisors:
    """All supervisors of this state directory. For a worker of `backends` they are started as needed, else never."""
    from shellback.exec.backends.supervisors import Supervisors
    from shellback.wiring.choice import lent

    return Supervisors(
        supervisor_client(settings, spawn=bool(backends), lends=lent(settings, backends) if backends else None),
        settings.shellback_home,
        containers=next((one.containers for one in backends if one.containers is not None), None),
        # Commands in containers do not need the host's supervisor; earlier commands on the host do.
        host_needed=not backends or backends[0].containers is None,
    )


async def ask(settings: Settings, question: Callable[[SupervisorPort], Awaitable[T]]) -> T:
    """The answer of the running supervisors of this state directory."""
    port = supervisors(settings)
    try:
        return await question(port)
    finally:
        await port.close()


async def hello(settings: Settings) -> Message:
    """The hello of the host's supervisor.

    Raises:
        SupervisorAbsent: None runs.
    """
    client = supervisor_client(settings, spawn=False)
    try:
        return await client.connect()
    finally:
        await client.close()


async def expire_conversations(settings: Settings, names: Sequence[str]) -> list[str]:
    """End all processes of these conversations, and return their sessions; none if no supervisor runs.

    Raises:
        SupervisorUnreachable: A supervisor runs, but does not answer.
    """
    from shellback.exec.core.errors import SupervisorAbsent
    from shellback.exec.core.model import CONVERSATION

    async def expired(port: SupervisorPort) -> list[list[str]]:
        await port.connect()
        return await asyncio.gather(*(port.expire(CONVERSATION, name) for name in names))

    try:
        return [session for sessions in await ask(settings, expired) for session in sessions]
    except SupervisorAbsent:
        return []


def links(settings: Settings) -> KnownLinks:
    """The links to logs in all workspaces that were used with this state directory."""
    from shellback.exec.log.links import KnownLinks
    from shellback.exec.wire import layout
    from shellback.orders import known_workspaces
    from shellback.wiring import directories

    home = settings.shellback_home
    return KnownLinks(
        lambda: [settings.workspace_root, *known_workspaces(home), *directories.paths(settings)],
        home / layout.SESSIONS,
    )


async def cleanup(settings: Settings, database: Database, engine: Engine) -> object:
    """Delete old logs and old homes of commands, and empty logs that exceed their limits."""
    from shellback.exec.backends.private_homes import PrivateHomes
    from shellback.exec.log.logs import cleanup_exec_logs
    from shellback.work.hosts.sweep import undelivered

    hours = settings.log_age_hours
    engine.registry.cleanup(hours)
    live = {session.conversation_id for session in await engine.store.list(live=True)}
    homes = PrivateHomes(settings.shellback_home, uid=engine.backend.uid)
    await asyncio.to_thread(homes.sweep, live, before=time.time() - hours * 3600)
    return await cleanup_exec_logs(
        engine.store,
        links(settings),
        max_age_hours=hours,
        conversation_bytes=settings.log_conversation_bytes,
        total_bytes=settings.log_total_bytes,
        undelivered=await database.read(undelivered),
    )
