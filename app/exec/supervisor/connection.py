"""One connection of a client: requests by number, events as they come."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from app.exec.supervisor.protocol import MAX_ANSWER, Decoder, Message, ProtocolError, encode


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
        self.info: Message = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except ProtocolError:
            self.close()
            return
        for message in messages:
            if "event" in message:
                self._on_event(message)
                continue
            future = self._waiting.pop(message.get("id") or 0, None)
            if future is not None and not future.done():
                future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
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

    async def ask(self, message: Message, limit_s: float) -> Message:
        """The answer to a request.

        Raises:
            Lost: The connection went first.
            TimeoutError: No answer came in `limit_s` seconds.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise Lost
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        transport.write(encode({**message, "id": number}))
        try:
            async with asyncio.timeout(limit_s):
                return await future
        finally:
            self._waiting.pop(number, None)
