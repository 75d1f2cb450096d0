"""The front of the server: answers at once what was answered before, while the SDK and the engine are loaded.

Their imports take seconds, and some clients drop a server, silently, that is not there within one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shellback.mcp_server import listing
from shellback.mcp_server.answer import Hands
from shellback.mcp_server.replay import Replay
from shellback.mcp_server.stdio import Lines, Out, wire

log = logging.getLogger(__name__)

AHEAD: Final = 16
"""Messages that are read before the SDK takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is offered to the client: `enter` makes the hands, in a thread; `worded` is the text of a known error."""

    home: Path
    workspace: Path
    gate: bool
    groups: Collection[str] = listing.DEFAULT
    task_after_s: float = 2.0
    conversation: str | None = None
    switches: str
    enter: Callable[[], AbstractContextManager[Hands]]
    worded: Callable[[Exception], str | None]

    @property
    def basis(self) -> str:
        """Everything of it that the client is told."""
        return f"{self.workspace} {self.gate} {sorted(self.groups)} {self.switches}"


@dataclass(eq=False, repr=False)
class Loaded:
    """The hands, from when they are needed. A failure is told to the call that needs them; the next one tries again."""

    offer: Offer
    _made: asyncio.Task[Hands] | None = None
    _hands: asyncio.Task[Hands] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    async def made(self) -> Hands:
        """The hands, not started; raises what kept them from being made."""
        if self._made is None or _failed(self._made):
            # In a thread: the imports alone take seconds, in which the client may ask other things.
            making = asyncio.to_thread(self._stack.enter_context, self.offer.enter())
            self._made = asyncio.get_running_loop().create_task(making)
        return await asyncio.shield(self._made)

    async def hands(self) -> Hands:
        """The hands, started; raises what kept them from that."""
        if self._hands is None or _failed(self._hands):
            self._hands = asyncio.get_running_loop().create_task(self._load())
        return await asyncio.shield(self._hands)

    async def close(self) -> bool:
        """Let go of everything; processes run on. False if a thread still loads: there is nothing to let go of."""
        if self._hands is not None and not self._hands.done():
            self._hands.cancel()
            await asyncio.gather(self._hands, return_exceptions=True)
            return False
        if self._made is not None and not self._made.done():
            return False
        if self._hands is not None and not _failed(self._hands):
            await self._hands.result().stop()
        await asyncio.to_thread(self._stack.close)
        return True

    async def _load(self) -> Hands:
        hands = await self.made()
        try:
            await hands.start()
        except BaseException:
            self._made, made = None, self._stack.pop_all()
            try:
                await hands.stop()  # or its engine would stay beside that of the next call
            except Exception:
                log.exception("what had started could not be let go of")
            await asyncio.to_thread(made.close)
            raise
        return hands


def _failed(task: asyncio.Task[Hands]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class Heard:
    """The client's lines, each shown to the replay first."""

    def __init__(self, lines: Lines, replay: Replay, out: Out) -> None:
        self.first = asyncio.Event()
        self._lines = lines
        self._replay = replay
        self._out = out
        self._queue = asyncio.Queue[str | None](AHEAD)

    async def read(self) -> None:
        """Read until the client is gone; then, and after a fault, whoever reads here is told of the end."""
        try:
            await self._read()
        except Exception:
            log.exception("the client's messages cannot be read on: the connection ends")
        self.first.set()
        await self._queue.put(None)

    async def _read(self) -> None:
        async for line in self._lines:
            if (known := self._replay.answer(line)) is not None:
                with contextlib.suppress(ConnectionError):  # the client is gone, which its input says too
                    await self._out.write(known)
                    await self._out.flush()
            self.first.set()
            await self._queue.put(line)

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        line = await self._queue.get()
        if line is None:
            raise StopAsyncIteration
        return line


class Said:
    """What the SDK says to the client, without what the replay has said."""

    def __init__(self, replay: Replay, out: Out) -> None:
        self._replay = replay
        self._out = out

    async def write(self, text: str) -> None:
        """Send text, unless it was sent."""
        if await asyncio.to_thread(self._replay.is_new, text) if self._replay.open else True:
            await self._out.write(text)

    async def flush(self) -> None:
        """Wait until the client reads again."""
        await self._out.flush()


async def serve(offer: Offer) -> bool:
    """Serve the client on standard input and output until it is gone, or until SIGTERM or SIGINT.

    False if a thread may still import what is not needed any more: the caller leaves without it.

    Raises:
        NotAClient: No client has started this program.
    """
    lines, out = await wire()
    loaded, replay = Loaded(offer), Replay(offer.home, offer.basis)
    serving = asyncio.create_task(_served(offer, loaded, Heard(lines, replay, out), Said(replay, out)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait([serving])
    clean = await loaded.close()
    if serving.cancelled():
        return False
    if (error := serving.exception()) is not None:
        log.info("the client is gone: %s", error)
        return clean
    return clean and serving.result()


async def _served(offer: Offer, loaded: Loaded, heard: Heard, said: Said) -> bool:
    """Have the SDK serve the client; False if the client was gone before the SDK was loaded."""
    reading = asyncio.create_task(heard.read())
    try:
        await heard.first.wait()
        loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "shellback.mcp_server.server"))
        await asyncio.wait([loading, reading], return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return False
        await loading.result().served(offer, loaded, heard, said)
        return True
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
