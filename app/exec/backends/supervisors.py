"""Several supervisors behind one: the host's, and one in each container, each asked for the sessions it has.

What cannot be reached is never taken for something that is not there: a list leaves it out, and a question about one
of its sessions raises. A container that ended while a session of it had not is brought up again, so that its supervisor
says what became of it; one that owes nothing is left alone, and its records are read where they are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shellback.exec.backends import homes
from shellback.exec.core.answers import Grown, Look
from shellback.exec.core.errors import (
    BackendUnavailable,
    ExecError,
    LimitReached,
    SessionNotFound,
    SupervisorAbsent,
    SupervisorUnreachable,
    TaskCompleted,
)
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.core.threads import cancelled
from shellback.exec.link import launch
from shellback.exec.link.client import SupervisorClient
from shellback.exec.link.reaching import Connection
from shellback.exec.log.placements import Placements
from shellback.exec.supervisor.sandbox.proxying import facts_of
from shellback.exec.wire import linux
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.protocol import ExitRecord, Loss, Message, StartRequest

if TYPE_CHECKING:
    from shellback.exec.backends.containers import Containers

log = logging.getLogger(__name__)

T = TypeVar("T")

CLIENTS: Final = 64
"""Containers that are spoken to at the same time."""
PATIENCE_S: Final = 45.0
"""What a list waits for a container that is being brought up."""
_TOGETHER: Final = 4
_KNOWN: Final = 1024
"""Sessions of the host's of which it is remembered that they are there."""
_AGAIN_S: Final = 5.0
"""A container that could not be brought up is not tried again before that."""


class Supervisors(SupervisorPort):
    """One client for each home, made when it is needed.

    Without `containers`, as for the command line and a worker of another backend, one that does not run stays down, and
    of what was started in it only its records tell: without an end there it is lost. With `host_needed` False
    the host's supervisor is only started for a session of its own.
    """

    def __init__(
        self,
        host: SupervisorPort,
        state: Path,
        *,
        containers: Containers | None = None,
        host_needed: bool = True,
        clients: int = CLIENTS,
    ) -> None:
        self._host = host
        self._placements = Placements(state)
        self._revival = containers
        self._hosting = host_needed
        self._bound = clients
        self._clients: dict[Path, ContainedClient] = {}
        self._starting: Counter[Path] = Counter()
        self._reviving: dict[Path, asyncio.Task[None]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._few = asyncio.Semaphore(_TOGETHER)
        self._room = asyncio.Lock()
        self._here: set[str] = set()
        self._failed: dict[Path, tuple[float, str]] = {}
        self.on_exit: Callable[[ExitRecord], None] | None = None
        self.on_reconnect: Callable[[], None] | None = None
        self.on_losses: Callable[[str, list[Loss]], None] | None = None

    # -- who is there ----------------------------------------------------------------------------

    async def connect(self) -> Message:
        """See `SupervisorPort.connect`; reaches each container that owes an end, and waits for none that cannot be."""
        host = self._host
        host.on_exit, host.on_reconnect, host.on_losses = self.on_exit, self._again, self.on_losses
        hello: Message = {"boot_id": linux.boot_id()}
        if self._hosting or await asyncio.to_thread(self._placements.host_owes):
            try:
                hello = await self._host.connect()
                self._hosting = True
            except SupervisorAbsent:
                if not await asyncio.to_thread(self._without_host):
                    raise
                self._hosting = False
        await self._everybody(lambda port: port.connect())
        self._serve_soon()
        return hello

    def _serve_soon(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self._serving = asyncio.get_running_loop().create_task(self._serve_all())

    def _again(self) -> None:
        self._serve_soon()
        if self.on_reconnect is not None:
            self.on_reconnect()

    def _without_host(self) -> bool:
        running = any(homes.kept(home) for home in self._placements.homes())
        return running and not self._placements.host_owes()

    async def close(self) -> None:
        await cancelled([*self._reviving.values(), *([self._serving] if self._serving is not None else [])])
        await asyncio.gather(*(client.close() for client in self._clients.values()), self._host.close())
        self._clients.clear()
        if self._revival is not None:
            await self._revival.close()

    def starting(self, home: Path) -> bool:
        """Whether a start is on its way to this home."""
        return self._starting[home] > 0

    async def _client(self, home: Path) -> ContainedClient:
        async with self._room:
            if home not in self._clients:
                await self._make_room()
                self._clients[home] = made = ContainedClient(home, lambda: self._bring(home))
                made.on_exit, made.on_reconnect, made.on_losses = self.on_exit, self.on_reconnect, self.on_losses
            return self._clients[home]

    async def _make_room(self) -> None:
        for home, client in list(self._clients.items()) if len(self._clients) >= self._bound else ():
            if self.starting(home) or await asyncio.to_thread(self._placements.owes, home):
                continue
            if not self.starting(home):  # it was looked at for a while
                self._clients.pop(home, None)
                await client.close()
                return
        if len(self._clients) >= self._bound:
            raise LimitReached(
                f"commands run in {self._bound} containers, which is the most; let one of them end first"
            )

    # -- containers that do not run --------------------------------------------------------------

    async def _bring(self, home: Path) -> None:
        """Have the container of a home run again if anybody needs that; cancelling leaves it coming up."""
        when, why = self._failed.get(home, (0.0, ""))
        if why and time.monotonic() - when < _AGAIN_S:
            raise SupervisorUnreachable(why)
        if self._revival is None:
            raise SupervisorAbsent(f"the container of {home} does not run: a worker brings it up (shellback worker)")
        if not self.starting(home) and not await asyncio.to_thread(self._placements.owes, home):
            raise SupervisorAbsent(f"the container of {home} does not run, and nothing of it is left to tell")
        task = self._reviving.get(home)
        if task is None:
            task = self._reviving[home] = asyncio.get_running_loop().create_task(self._revived(home, self._revival))
            task.add_done_callback(lambda _: self._reviving.pop(home, None))
        await asyncio.shield(task)

    async def _revived(self, home: Path, containers: Containers) -> None:
        try:
            async with self._few:
                await containers.revive(home)
            self._failed.pop(home, None)
        except (ExecError, OSError) as error:
            why = f"the container of {home} cannot be brought up: {error}"
            self._failed[home] = time.monotonic(), why
            raise SupervisorUnreachable(why) from error

    # -- containers with a list --------------------------------------------------------------------

    async def _serve_all(self) -> None:
        """Have the host's supervisor serve each container with a list that runs: it may be another one."""
        try:
            if listed := await asyncio.to_thread(self._listed) if self._revival is not None else []:
                await self._host.connect()
        except ExecError as error:
            log.warning("commands in %s reach no listed host: %s", "containers", error)
            return
        for home in listed:
            try:
                await self._serve(home)
            except (ExecError, OSError) as error:
                log.warning("commands in %s reach no listed host: %s", home.name, error)

    def _listed(self) -> list[Path]:
        """The homes of containers with a list that run. Blocks."""
        found = ((home, homes.known(home)) for home in self._placements.homes() if homes.kept(home))
        return [home for home, one in found if one is not None and one.proxied]

    async def _serve(self, home: Path) -> None:
        """Have the host's supervisor serve this container, if it has a list. Raises ExecError."""
        described = await asyncio.to_thread(homes.known, home)
        if described is None or not described.proxied:
            return
        # The container's root may write there: what it wrote would have another name.
        if described.name(home.parent) != home.name:
            raise BackendUnavailable(
                f"the record of its list was changed in {home}: `shellback containers rm {home.name}` removes it"
            )
        await self.serve(home, facts_of(described))

    async def serve(self, home: Path, facts: Mapping[str, object]) -> None:
        await (await self._client(home)).connect()
        self._hosting = True
        await self._host.serve(home, facts)

    # -- all together ----------------------------------------------------------------------------

    async def _everybody(self, ask: Callable[[SupervisorPort], Awaitable[T]]) -> list[T]:
        """What everybody answers who can be reached.

        Raises:
            SupervisorUnreachable: Nobody can, and the host's, or any for the command line, should.
        """
        ports: list[SupervisorPort] = [self._host] if self._hosting else []
        ports += await self._containers()
        found: list[T] = []
        missed: list[SupervisorUnreachable] = []
        for answer in await asyncio.gather(*(_in_time(ask(port)) for port in ports), return_exceptions=True):
            if isinstance(answer, SupervisorUnreachable):
                missed.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if missed and not found and (self._hosting or self._revival is None):
            raise missed[0]
        for error in missed:
            if not isinstance(error, SupervisorAbsent):
                log.warning("what it runs is not known now: %s", error)
        return found

    async def _containers(self) -> list[SupervisorPort]:
        """Clients of the containers that run or owe an end; those of homes that were removed are let go."""
        there, needed = await asyncio.to_thread(self._needed)
        for home in [home for home in self._clients if home not in there and not self.starting(home)]:
            if (client := self._clients.pop(home, None)) is not None:
                self._failed.pop(home, None)
                await client.close()
        found: list[SupervisorPort] = []
        try:
            # Those who are spoken to already come first: their room is not to be had.
            for home in sorted(needed, key=lambda home: home not in self._clients)[: self._bound]:
                found.append(await self._client(home))  # noqa: PERF401 - those before the one that has no room count
        except LimitReached as error:
            log.warning("what it runs is not known now: %s", error)
        return found

    def _needed(self) -> tuple[set[Path], list[Path]]:
        there = self._placements.homes()
        owing = [home for home in there if self._placements.owes(home)]
        running = [home for home in there if home not in owing and homes.kept(home)]
        return set(there), owing + running

    async def list(self) -> tuple[list[Message], list[ExitRecord]]:
        """See `SupervisorPort.list`: of everybody who can be reached."""
        found = await self._everybody(lambda port: port.list())
        return [row for rows, _ in found for row in rows], [record for _, records in found for record in records]

    # -- one session -----------------------------------------------------------------------------

    async def start(self, request: StartRequest, *, home: Path | None = None) -> Message:
        """See `SupervisorPort.start`; a session that was placed elsewhere is not started here."""
        name = request.session_id
        if home is not None:
            self._starting[home] += 1
        try:
            try:
                placed, lost = await asyncio.to_thread(self._place, name, home)
            except OSError as error:
                return {"ok": False, "error": "os_error", "message": f"{home}: {error.strerror}"}
            if placed != home or lost:
                where = "on the host" if placed is None else f"in {placed.name}"
                return await self._already(name, "placed", f"it was to run {where}, and only there")
            if home is None:
                self._hosting = True
                return await self._host.start(request)
            reach("start.placed")
            try:
                await self._serve(home)
            except ExecError as error:
                return await self._already(name, "not_served", f"it would reach no listed host: {error}")
            return await (await self._client(home)).start(request)
        finally:
            if home is not None:
                self._starting[home] -= 1
                self._starting += Counter()

    async def _already(self, name: str, code: str, why: str) -> Message:
        """The answer to a start that is not carried out now: it was before, or is refused."""
        status = await self.status(name)
        if status["state"] != "unknown":
            return {"ok": True, "outcome": "already", "status": status}
        return {"ok": False, "error": code, "message": why}

    def _place(self, name: str, home: Path | None) -> tuple[Path | None, bool]:
        """Where a session is, and whether its records were removed there."""
        placed = self._placements.home_of(name) if home is None else self._placements.place(name, home)
        return placed, placed is not None and homes.gone(placed, name)

    async def status(self, session_id: str) -> Message:
        """See `SupervisorPort.status`; of a container that cannot be brought up what its records leave no doubt of."""
        home = await asyncio.to_thread(self._placements.home_of, session_id)
        if home is None:
            if not self._hosting and not await asyncio.to_thread(self._placements.at_host, session_id):
                return {"state": "unknown"}
            return await self._host.status(session_id)
        asleep = await asyncio.to_thread(self._asleep, home)
        if asleep and (told := await asyncio.to_thread(homes.status, home, session_id)) is not None:
            return told
        try:
            told = await (await self._client(home)).status(session_id)
        except SupervisorUnreachable:
            if (ended := await asyncio.to_thread(_fallen, home, session_id)) is None:
                raise
            return ended
        if told["state"] == "unknown" and await asyncio.to_thread(homes.gone, home, session_id):
            return homes.lost(session_id, "record_unreadable")
        return told

    async def abandon(self, session_id: str) -> Message:
        home = await asyncio.to_thread(self._placements.home_of, session_id)
        if home is None:
            self._hosting = True
            return await self._host.abandon(session_id)
        if await asyncio.to_thread(homes.gone, home, session_id):
            # It may have run before its records were removed.
            return await self.status(session_id)
        if await asyncio.to_thread(homes.kept, home):
            return await (await self._client(home)).abandon(session_id)
        if await asyncio.to_thread(homes.abandon, home, session_id):
            return {"state": "abandoned"}
        return await self.status(session_id)

    async def ack(self, session_id: str) -> bool:
        home = await asyncio.to_thread(self._placements.home_of, session_id)
        if home is None:
            return (self._hosting or await asyncio.to_thread(self._placements.at_host, session_id)) and (
                await self._host.ack(session_id)
            )
        if await asyncio.to_thread(self._asleep, home):
            return False
        if self._revival is None and not await asyncio.to_thread(homes.kept, home):
            return False  # its supervisor tells the end again when it is brought up
        return await (await self._client(home)).ack(session_id)

    async def expire(self, lifetime: str, owner: str) -> list[str]:
        """See `SupervisorPort.expire`: of everybody who can be reached."""
        return [name for names in await self._everybody(lambda port: port.expire(lifetime, owner)) for name in names]

    async def write(self, session_id: str, data: bytes, **how: Any) -> Message:
        return await (await self._live(session_id)).write(session_id, data, **how)

    async def written(self, session_id: str, key: str) -> Message | None:
        return await (await self._live(session_id)).written(session_id, key)

    async def resize(self, session_id: str, rows: int, cols: int) -> None:
        await (await self._live(session_id)).resize(session_id, rows, cols)

    async def signal(self, session_id: str, number: int) -> None:
        await (await self._live(session_id)).signal(session_id, number)

    async def kill(self, session_id: str, *, grace_s: float, ended_by: str) -> tuple[int, ...]:
        return await (await self._live(session_id)).kill(session_id, grace_s=grace_s, ended_by=ended_by)

    async def grown(self, session_id: str, beyond: int, **how: Any) -> Grown:
        return await (await self._teller(session_id)).grown(session_id, beyond, **how)

    async def look(self, session_id: str) -> Look | None:
        return await (await self._teller(session_id)).look(session_id)

    async def _teller(self, session_id: str) -> SupervisorPort:
        """`_live` for a question that starts nobody."""
        # A session that is nowhere yet does not need the host's.
        if session_id not in self._here and not self._hosting:
            home = await asyncio.to_thread(self._placements.home_of, session_id)
            if home is None and not await asyncio.to_thread(self._placements.at_host, session_id):
                raise SessionNotFound(session_id)
        return await self._live(session_id)

    async def _live(self, session_id: str) -> SupervisorPort:
        """Who has the process of a session.

        Raises:
            TaskCompleted: It has ended with its container.
            SessionNotFound: It was never started there.
        """
        if session_id in self._here:
            return self._host
        home = await asyncio.to_thread(self._placements.home_of, session_id)
        if home is None:
            self._hosting = True
            if await asyncio.to_thread(self._placements.at_host, session_id):
                # It stays there, and is asked for again and again.
                if len(self._here) >= _KNOWN:
                    self._here.clear()
                self._here.add(session_id)
            return self._host
        if self._revival is None or await asyncio.to_thread(self._asleep, home):
            told = await asyncio.to_thread(_fallen, home, session_id)
            if told is not None and "record" in told:
                raise TaskCompleted(session_id, "its container does not run any more")
            if told is not None:
                raise SessionNotFound(session_id)
        return await self._client(home)

    def _asleep(self, home: Path) -> bool:
        """Whether the container does not run and owes nothing: nobody needs to bring it up."""
        return not homes.kept(home) and not self._placements.owes(home)


def _fallen(home: Path, session_id: str) -> Message | None:
    """A session's status where its container does not run: without its first process nothing of it is left.

    None where it does, or somebody brings it up at this moment. Blocks.
    """
    if homes.kept(home):
        return None
    told = homes.ended(home, session_id)
    return None if homes.kept(home) else told


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(answer, PATIENCE_S)
    except TimeoutError:
        raise SupervisorUnreachable(f"no answer within {PATIENCE_S:.0f} s") from None


class ContainedClient(SupervisorClient):
    """Calls `bring` where no keeper is left in the home. Where that raises `SupervisorAbsent`, nobody needs it now.

    After that only a request connects again. A home that was removed is not made anew.
    """

    _enough = (SupervisorAbsent,)

    def __init__(self, home: Path, bring: Callable[[], Awaitable[None]], **more: Any) -> None:
        super().__init__(home, **more)
        self._bring = bring

    async def _open(self) -> Connection:
        if not self._home.is_dir():
            raise SupervisorAbsent(f"{self._home} was removed")
        return await super()._open()

    async def _start_one(self) -> None:
        if await asyncio.to_thread(launch.kept, self._folder):
            # Its supervisor is being replaced, or about to listen.
            await asyncio.sleep(0.01)
        else:
            await self._bring()
