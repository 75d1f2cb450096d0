"""The side of a worker elsewhere: its connection to the host whose turns it runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from shellback.exec.core.threads import cancelled
from shellback.storage import members
from shellback.storage.db import Database
from shellback.storage.errors import StorageError
from shellback.work.elsewhere import certificates, lines
from shellback.work.elsewhere.lines import Fit, Message
from shellback.work.errors import HostUnfit, HostUnreachable
from shellback.work.queue.queues import queues_of
from shellback.work.turn.hearing import HostLost

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""After this time without its host turns are for another worker, which may reach it."""
RETRY_S: Final = 1.0
LATER_S: Final = 5.0
"""The time between two tries to reach a host that was given up."""
CONNECT_S: Final = 10.0
_UNTRUSTED: Final = "one of the two does not trust the other's certificate, see `shellback hosts members` there"


@dataclass(eq=False, repr=False)
class HostLink:
    """A connection that is made again whenever it breaks; a request is sent again on the next one, until answered.

    The host has to fit `fit`; `host` is what it has told of itself. `gone` is called, with the reason, when it does not
    fit any more, or has not answered for `patience_s`: no request will be answered here. With `hands_on` turns that
    wait for it then end unrecorded, and `reached` is called whenever it answers again. `rung` is called with the queue
    of a new item, which another worker may take first, and with each queue after a connection was made.
    """

    database: Database
    host_id: str
    home: Path
    fit: Fit
    patience_s: float = PATIENCE_S
    gone: Callable[[str], object] = lambda _: None
    reached: Callable[[], object] = lambda: None
    rung: Callable[[str], object] = lambda _: None
    hands_on: bool = False
    host: Message = field(init=False, default_factory=dict[str, Any])
    _waiting: dict[int, asyncio.Future[Any]] = field(init=False, default_factory=dict[int, "asyncio.Future[Any]"])
    _numbers: itertools.count[int] = field(init=False, default_factory=itertools.count)
    _writer: asyncio.StreamWriter | None = field(init=False, default=None)
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set, and replaced, when a connection was made or is gone."""
    silent: bool = field(init=False, default=False)
    """Whether a request was not answered in time, and not since."""
    _gone_at: float = field(init=False, default_factory=time.monotonic)
    _failure: HostUnfit | HostUnreachable | None = field(init=False, default=None)
    _tasks: list[asyncio.Task[None]] = field(init=False, default_factory=list[asyncio.Task[None]])
    _loop: asyncio.AbstractEventLoop | None = field(init=False, default=None)
    _events: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when readers of events are to be told."""

    @property
    def connected(self) -> bool:
        """Whether the host answers."""
        return self._writer is not None

    @property
    def open(self) -> bool:
        """Whether it was begun, and not stopped since."""
        return self._loop is not None

    def __contains__(self, host_id: object) -> bool:
        """Whether it leads to a host."""
        return host_id == self.host_id

    def at(self, _host_id: str) -> HostLink:
        """The link to a host, of which there is one."""
        return self

    async def of(self, _conversation_id: str) -> HostLink:
        """The link to the host of a conversation."""
        return self

    def told(self, _host_id: str) -> Message | None:
        """What the host has told of itself."""
        return self.host or None

    def begin(self) -> None:
        """Connect from now on."""
        self._gone_at, self._failure, self._changed = time.monotonic(), None, asyncio.Event()
        self._loop, self._events = asyncio.get_running_loop(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._tell_readers())]

    async def start(self) -> None:
        """Connect, or wait for the host.

        Raises:
            HostUnfit: The host does not fit.
            HostUnreachable: It does not answer in time, or does not trust this machine.
        """
        self.begin()
        while not self.connected:
            if self._failure is not None:
                raise self._failure
            await self._changed.wait()

    async def stop(self) -> None:
        """Close the connection. What was asked waits on, for its cancellation."""
        tasks, self._tasks, self._loop = self._tasks, [], None
        await cancelled(tasks)

    def noted(self) -> None:
        """Tell those who read events at the host that there are new ones, soon; from any thread."""
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it is closed meanwhile
                loop.call_soon_threadsafe(self._events.set)

    def outside(self, asked: Coroutine[Any, Any, T]) -> Future[T]:
        """Have what was asked on another thread be answered.

        Raises:
            RuntimeError: The connection was closed for good.
        """
        if (loop := self._loop) is None:
            asked.close()
            raise RuntimeError("the connection to the host was closed")
        return asyncio.run_coroutine_threadsafe(asked, loop)

    async def _tell_readers(self) -> None:
        while True:
            await self._events.wait()
            self._events.clear()
            with contextlib.suppress(RuntimeError, HostLost):  # they look now and then by themselves
                await self.ask("noted")

    async def ask(self, do: str, **facts: Any) -> Any:
        """Have the host do something, and return its answer, however long that takes. The host may be asked twice.

        Raises:
            Exception: What the host has raised, see `lines.raised_by`.
            HostLost: It was given up, and turns that wait for it are handed on.
        """
        number = next(self._numbers)
        while True:
            while (writer := self._writer) is None:
                if self._failure is not None and self.hands_on:
                    raise HostLost(str(self._failure))
                await self._changed.wait()
            answer = self._waiting[number] = asyncio.get_running_loop().create_future()
            try:
                await lines.send(writer, {"id": number, "do": do, **facts})
                told: Message | None = await answer
            except OSError:
                self._lost(writer)
                continue
            finally:
                self._waiting.pop(number, None)
            if told is not None:
                if "failed" in told:
                    raise lines.raised_by(told["failed"])
                return told["ok"]

    async def ask_within(self, seconds: float, do: str, **facts: Any) -> Any:
        """`ask`, but for so long only; then the host is `silent` until it answers late, or is connected anew.

        Raises:
            TimeoutError: It has not answered in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.ask(do, **facts)
        except TimeoutError:
            self.silent = True
            raise

    async def _keep(self) -> None:
        told = False
        try:
            while True:
                why = await self._followed()
                if self._writer is not None:
                    self._lost(self._writer)
                    told = False
                if not told:
                    log.warning("host %s cannot be reached; it is tried again: %s", self.host_id[:12], why)
                told = True
                silent_s = time.monotonic() - self._gone_at
                if isinstance(why, HostUnfit):
                    self.give_up(why)
                elif silent_s > self.patience_s:
                    said = f"host {self.host_id[:12]} has not answered for {silent_s:.0f} s: {why}"
                    self.give_up(HostUnreachable(said))
                await asyncio.sleep(RETRY_S if self._failure is None else LATER_S)
        finally:
            if self._writer is not None:
                self._lost(self._writer)

    def give_up(self, failure: HostUnfit | HostUnreachable) -> None:
        """Tell that no request will be answered here until the host answers again."""
        if self._failure is None:
            if self.hands_on:
                log.error("turns are handed on until their host answers again: %s", failure)
            else:
                log.error("this worker ends: %s", failure)
            self._failure = failure
            self._tell()
            self.gone(str(failure))

    async def _followed(self) -> Exception | str:
        """Connect, and hear answers until the connection is gone; returns why it is."""
        before = self.host
        try:
            await self._follow()
        except ssl.SSLError as error:
            return f"{_UNTRUSTED} ({error.reason})"
        except StorageError as error:
            self._gone_at = time.monotonic()  # it may be there: the database has to say where
            return error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            return error if str(error) else type(error).__name__
        return _UNTRUSTED if self.host is before else "it has closed the connection"

    async def _follow(self) -> None:
        where = await self.database.read(members.listening, self.host_id)
        if where is None:
            raise HostUnreachable("it does not listen for workers elsewhere (LISTEN)")
        own, _ = await asyncio.to_thread(certificates.of_machine, self.home)
        address, _, port = where.address.rpartition(":")
        context = certificates.towards_host(own, where.certificate)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(address, int(port), ssl=context, limit=lines.PIECE)
        beats = asyncio.create_task(lines.alive(writer))
        try:
            await lines.send(writer, {"id": lines.HELLO, "do": "hello"})
            async for told in lines.lines(reader):
                if told["id"] == lines.HELLO:
                    self._greeted(told, writer)
                elif told["id"] == lines.RUNG:
                    self.rung(str(told["rung"]))
                elif (answer := self._waiting.get(told["id"])) is None:
                    self.silent = False
                elif not answer.done():
                    answer.set_result(told)
        finally:
            await cancelled([beats])
            writer.close()

    def _greeted(self, told: Message, writer: asyncio.StreamWriter) -> None:
        if "failed" in told:
            raise lines.raised_by(told["failed"])
        if (why := self.fit.objection(told["ok"])) is not None:
            raise HostUnfit(f"host {self.host_id[:12]} {why}")
        self._writer, self.host, self._failure, self.silent = writer, told["ok"], None, False
        self._tell()
        self.reached()
        for queue in queues_of(self.host_id):
            self.rung(queue)  # items may have come before
        log.info("host %s is reached", self.host_id[:12])

    def _lost(self, writer: asyncio.StreamWriter) -> None:
        """Have what waits for an answer on this connection be asked again."""
        writer.close()
        if self._writer is not writer:
            return
        self._writer, self._gone_at = None, time.monotonic()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(None)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
