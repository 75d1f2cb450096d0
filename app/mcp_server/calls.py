"""What a server process has once for the calls of all its connections: engine, tools, lock, doorbell, loops."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa

from shellback.exec.core.threads import cancelled
from shellback.exec.engine.engine import Engine
from shellback.exec.tools.registry import tools as all_tools
from shellback.exec.tools.toolset import ExecTools
from shellback.exec.wire.ring import Ring
from shellback.mcp_server.answer import Asked
from shellback.mcp_server.connection import Connection, context_of
from shellback.mcp_server.listing import GROUPS, described
from shellback.mcp_server.tasks import Tasks
from shellback.storage.connections import Connections
from shellback.storage.db import Database
from shellback.work.hosts import hosts
from shellback.work.hosts.clock import since_boot
from shellback.work.notices.notices import Outbox
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.mailbox import Workspace
from shellback.work.queue.queues import Enqueuer, decisions_queue
from shellback.work.worker.services import COUNT_S, HEARTBEAT_S, Service, every


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long a request for approval waits for a person, and how many may; how long a task is kept.

    `elicits`: whether requests are put to clients too.
    """

    approval_ttl_s: float
    pending: int
    kept_s: float
    elicits: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class Calls:
    """The calls of all connections of this process. Each `Connection` has a conversation and an id of its own."""

    database: Database
    engine: Engine
    tools_of: ExecTools
    enqueuer: Enqueuer
    doorbell: Doorbell
    host_id: str
    process: str
    """Names this process. The ids of its connections are this, or begin with this and a dot."""
    counted: Callable[[Callable[[sa.Connection], object]], object]
    renewed: Callable[[float], object]
    """Called when the lease of this host was renewed, with the time before that, in seconds since the boot."""
    """Compares and raises the count that the database and the state directory keep. Blocks."""
    connections: Connections
    """Where this process is known to live, and those of others."""
    workspace: Workspace | None
    """The workspace of new conversations, and of no other if it was named."""
    bounds: Bounds
    gate: bool
    """Whether ENABLE_EXECUTE is set. While it is not, nothing is gone on with that could start a command."""
    outbox: Outbox
    beside: Sequence[Service] = ()
    loops: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    open: dict[str, Connection] = field(init=False, default_factory=dict[str, Connection])
    """The connections by their ids."""
    serving: Counter[str] = field(init=False, default_factory=Counter[str])
    """The sessions of the calls that are being served, and by how many calls each."""
    decided: Ring = field(init=False, default_factory=Ring)
    """Set when somebody has decided about a request; then there is a new one."""
    _held: int | None = field(init=False, default=None)
    tasks: Tasks = field(init=False)
    _tasks: set[asyncio.Task[Any]] = field(init=False, default_factory=set[asyncio.Task[Any]])

    def __post_init__(self) -> None:
        """Have the tasks of its calls."""
        self.tasks = Tasks(self, self.bounds.kept_s)

    async def start(self) -> None:
        """Connect to the supervisor, which is started if none runs, and listen for decisions."""
        # Before all else: the calls of a process that does not live are settled by others.
        self._held = await asyncio.to_thread(self.connections.hold, self.process)
        # Before the engine compares: sessions that an older state directory does not know are left to a person.
        await self._count()
        await self.engine.start()
        await self.doorbell.listen(self.process, {decisions_queue(self.host_id): self._ring}, once=True)
        for service in self.beside:
            await service.start()
        for run in self.loops:
            self._later(run())
        # As a worker does, so that a backup that is older than this is noticed.
        self._later(every(COUNT_S, "count", self._count, self.database.pause, first_s=COUNT_S))
        if self.database.dialect != "sqlite":
            self._later(every(HEARTBEAT_S, "heartbeat", self._beat, self.database.pause, first_s=0.0))

    async def stop(self) -> None:
        """Close all connections, and let go; processes run on but those whose lifetime is that of a connection."""
        try:
            await self._let_go()
        finally:
            if self._held is not None:
                held, self._held = self._held, None
                await asyncio.to_thread(self.connections.release, self.process, held)

    async def _let_go(self) -> None:
        await self.tasks.freeze()
        await asyncio.gather(*(connection.close() for connection in list(self.open.values())))
        await cancelled([*self._tasks])
        await self.doorbell.close()
        for service in self.beside:
            await service.stop()
        await self.engine.stop()
        await self.tasks.stop()

    async def tools(self) -> list[dict[str, Any]]:
        """See `Hands.tools`."""
        nothing = Asked(client="", id="", tool="", args={})
        found = await self.tools_of.toolset().get_tools(context_of("", self.process, nothing, None))
        known = all_tools()
        return [
            described(known[name], one.tool_def.description or "", one.tool_def.parameters_json_schema)
            for name, one in found.items()
        ]

    def connected(self, conversation: str | None, groups: Collection[str] = GROUPS, name: str = "") -> Connection:
        """See `Hands.connected`."""
        turn_id = f"{self.process}.{name}" if name else self.process
        if turn_id not in self.open:
            self.open[turn_id] = Connection(calls=self, conversation=conversation, groups=groups, turn_id=turn_id)
        return self.open[turn_id]

    async def over_of(self, turn_ids: set[str]) -> set[str]:
        """Which of these connections are over, of this process and of others."""
        processes = {one: one.partition(".")[0] for one in turn_ids}
        gone = await asyncio.to_thread(self.connections.over, {*processes.values()} - {self.process})
        closed = {one for one, process in processes.items() if process == self.process} - self.open.keys()
        return closed | {one for one, process in processes.items() if process in gone}

    async def _beat(self) -> None:
        """Renew the lease of this host, as a worker does: other hosts give up the processes of a silent one."""
        began = since_boot()
        await self.database.write(hosts.heard_of, self.host_id)
        await asyncio.to_thread(self.renewed, began)

    async def _count(self) -> None:
        await asyncio.to_thread(self.counted, partial(hosts.heard_of, host_id=self.host_id))

    def _ring(self) -> None:
        self.decided.ring()
        self.tasks.ring()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(work))
        task.add_done_callback(self._tasks.discard)
