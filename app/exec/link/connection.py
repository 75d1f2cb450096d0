"""One connection of a client: requests by number, events as they come."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import cast

from shellback.exec.wire.protocol import MAX_ANSWER, MAX_FRAME, Decoder, Message, ProtocolError, encode


class Lost(Exception):
    """The connection went before the answer came."""


class Connection(asyncio.Protocol):
    def __init__(self, on_event: Callable[[Message], None], on_lost: Callable[[Connection], None]) -> None:
        self._decoder = Decoder(MAX_ANSWER)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._on_event = on_event
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self.info: Message = {}
        self.garbled = ""
        """What the other side said that we do not understand; the connection is closed for it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except ProtocolError as error:
            self.garbled = str(error)
            self.close()

    def _take(self, message: Message) -> None:
        if "event" in message:
            self._on_event(message)
            return
        number, ok = message.get("id"), message.get("ok")
        if not isinstance(number, int) or not isinstance(ok, bool):
            said = message.get("message")
            raise ProtocolError(str(said)[:200] if said else "an answer to no request")
        if not ok and not (isinstance(message.get("error"), str) and isinstance(message.get("message"), str)):
            raise ProtocolError("a refusal without a reason")
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._gone.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Lost())
        self._on_lost(self)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def gone_within(self, seconds: float) -> bool:
        """Wait so long for the connection to end; whether it has."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def ask(self, message: Message, limit_s: float, *, withdraws: bool = False) -> Message:
        """The answer to a request; with `withdraws`, one that is cancelled is taken back on the other side too.

        Raises:
            Lost: The connection went first.
            TimeoutError: No answer came in `limit_s` seconds.
            ProtocolError: The request is longer than the other side takes; it was not sent.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Lost
        number = next(self._numbers)
        frame = encode({**message, "id": number})
        if len(frame) > MAX_FRAME:
            raise ProtocolError(f"a request of {len(frame)} bytes; the limit is {MAX_FRAME}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Message] = loop.create_future()
        self._waiting[number] = future
        transport.write(frame)
        # `asyncio.timeout` would be as good, and a third of what a request costs here.
        timer = loop.call_later(limit_s, _late, future)
        try:
            return await future
        except asyncio.CancelledError:
            if withdraws and self.open:
                transport.write(encode({"op": "withdraw", "id": next(self._numbers), "of": number}))
            raise
        finally:
            timer.cancel()
            self._waiting.pop(number, None)


def _late(future: asyncio.Future[Message]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
