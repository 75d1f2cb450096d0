"""A client on the state directory and database themselves, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from shellback.client.caller import Caller
from shellback.client.facts import Event
from shellback.client.following import Once, Position, Tail, require_kept, shown
from shellback.client.freshness import home_of
from shellback.client.operations import OPERATIONS, Asking, require_conversation
from shellback.client.processes import Asks
from shellback.exec.wire.ring import Ring
from shellback.wiring import wiring
from shellback.work.queue.queues import LOOK_S

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.queue.stream import Event as Row

T = TypeVar("T")

THREADS: Final = 8
SEARCHES: Final = 2
"""Searches at once, which read much; others wait for them, and nothing else does."""
SHARE: Final = 4
"""So many threads of one kind one token has at once. What it asks beyond that waits for its own to end."""
REST_S: Final = 0.02
"""The least time between two looks at new events."""
AWAY_S: Final = 0.2
"""The time between two looks at events of another host, which rings only there."""
ELSEWHERE_S: Final = 1.5
"""The same at those of all conversations, which may be on other hosts. With the heartbeat it is a query a second."""


class Local:
    """Answers in threads of its own. `opening` opens the state directory at the first question, and closes it."""

    def __init__(self, opening: Callable[[], AbstractContextManager[Place]]) -> None:
        self._opens = opening
        self._stack = ExitStack()
        each = {"quick": THREADS, "input": THREADS, "kill": THREADS, "search": SEARCHES}
        self._threads = {name: ThreadPoolExecutor(most, f"client-{name}") for name, most in each.items()}
        self._shares = WeakValueDictionary[tuple[str, str], asyncio.Semaphore]()
        self._asks = Asks()
        self._opening = asyncio.Lock()
        self._asking: Asking | None = None
        self._rung = Ring()
        self._closed = False

    async def ask(self, name: str, given: dict[str, Any], caller: Caller, *, texts: bool = False) -> Any:
        """The answer of an operation. A cancelled one is done or not begun.

        Raises:
            WorkError, ExecError, StorageError: It cannot be done; the message names cause and remedy.
        """
        operation = OPERATIONS[name]
        args = operation.checked(given, texts=texts)
        at = await self._at(caller)
        return await self._run(partial(operation.function, at, **args), operation.threads, caller)

    async def within(self, caller: Caller, function: Callable[[Asking], T], *, threads: str = "quick") -> T:
        """What a function returns that is called in a thread with what operations are given."""
        found: T = await self._run(partial(function, await self._at(caller)), threads, caller)
        return found

    async def events(
        self, conversation: str, after: str, kinds: Collection[str], caller: Caller, *, follow: bool
    ) -> AsyncGenerator[Event | None]:
        """Events of a conversation; None when it looked and there was nothing new, at the latest after 5 s.

        Without `follow` it ends there. Memory holds one page of events.
        """
        at, place = await self._at(caller), Position.of(after)
        await self._run(partial(require_conversation, at, conversation))
        database = at.where.database
        await self._run(partial(database.read_now, require_kept, place))
        events, once = Tail(database, conversation, place), Once(database, conversation, place)
        while not self._closed:
            rung = self._rung.next
            found, full = await self._run(partial(_told, events, once, kinds))
            for event in found:
                yield event
            if full:
                continue
            if not follow:
                return
            yield None
            shared = database.dialect != "sqlite"
            away = shared and await self._run(partial(home_of, at.where, conversation)) is not None
            await _rested(rung, AWAY_S if away or events.waits else LOOK_S)

    async def news(self) -> AsyncGenerator[list[Row]]:
        """Events of all conversations from now on, a page at a time; none when it looked and there was nothing new.

        Raises:
            StorageError: The database cannot be read.
        """
        from shellback.work.queue import stream

        database = (await self._at(Caller(by=""))).where.database
        events = Tail(database, None, Position(await self._run(partial(database.read_now, stream.last_number))))
        while not self._closed:
            rung = self._rung.next
            found, full = await self._run(events.page)
            yield [told.event for told in found]
            if not full:
                wait_s = LOOK_S if database.dialect == "sqlite" else ELSEWHERE_S
                await _rested(rung, AWAY_S if events.waits else wait_s)

    def of(self, caller: Caller) -> Own:
        """The same for one caller."""
        return Own(self, caller)

    async def close(self) -> None:
        """Leave what waits for a process, wait for other operations, and close the database."""
        self._closed = True
        self._asks.end()
        self._rung.ring()
        async with self._opening:
            asking, self._asking = self._asking, None
            if asking is not None:
                await self._doorbell.close()
            for threads in self._threads.values():
                await asyncio.to_thread(threads.shutdown, cancel_futures=True)
            await asyncio.to_thread(self._stack.close)

    async def _at(self, caller: Caller) -> Asking:
        if self._asking is None:
            async with self._opening:
                if self._closed:
                    raise RuntimeError("this client has been closed; make another one")
                if self._asking is None:
                    self._asking = await self._opened()
        return replace(self._asking, caller=caller)

    async def _opened(self) -> Asking:
        def open_() -> Asking:
            where = self._stack.enter_context(self._opens())
            enqueuer = self._stack.enter_context(wiring.enqueuing(where))
            return Asking(where=where, enqueuer=enqueuer, caller=Caller(by=""), asks=self._asks)

        asking = await self._run(open_)
        self._doorbell = wiring.a_doorbell(asking.where)
        await self._doorbell.read(f"client.{uuid.uuid4().hex}", self._rung.ring)
        return asking

    async def _run(self, fn: Any, threads: str = "quick", caller: Caller | None = None) -> Any:
        if caller is None or not caller.token:
            return await asyncio.get_running_loop().run_in_executor(self._threads[threads], fn)
        share = self._shares.setdefault((caller.by, threads), asyncio.Semaphore(SHARE))
        await share.acquire()
        running = self._threads[threads].submit(fn)
        # Not when the request is gone: its thread is not free by that.
        loop = asyncio.get_running_loop()
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(share.release))
        return await asyncio.wrap_future(running)


@dataclass(frozen=True, slots=True)
class Own:
    """A `Local` for one caller."""

    local: Local
    caller: Caller

    async def ask(self, name: str, given: dict[str, Any]) -> Any:
        """See `Local.ask`."""
        return await self.local.ask(name, given, self.caller)

    def events(
        self, conversation: str, after: str, kinds: Collection[str], *, follow: bool
    ) -> AsyncGenerator[Event | None]:
        """See `Local.events`."""
        return self.local.events(conversation, after, kinds, self.caller, follow=follow)

    async def close(self) -> None:
        """See `Local.close`."""
        await self.local.close()


async def _rested(rung: asyncio.Event, wait_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(rung.wait(), wait_s)
    await asyncio.sleep(REST_S)


def _told(events: Tail, once: Once, kinds: Collection[str]) -> tuple[list[Event], bool]:
    """A page of what is new, as a client is told of it, and whether there may be more."""
    found, full = events.page()
    new = [(once.told(row), place) for row, place in found]
    told = [_event(one[0], place, replaces=one[1]) for one, place in new if one is not None]
    return [event for event in told if not kinds or event.kind in kinds], full


def _event(row: Row, place: Position, *, replaces: bool) -> Event:
    return Event(
        id=str(place), conversation_id=row.conversation_id, turn_id=row.turn_id, epoch=row.epoch, kind=row.kind,
        payload=row.payload, created_at=row.created_at, replaces=replaces, shown=shown(row),
    )  # fmt: skip
