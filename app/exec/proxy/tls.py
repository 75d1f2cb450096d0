"""TLS over a side of a connection, in memory: the first bytes may have been read before."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from shellback.exec.proxy.sides import BUFFER, Side

_AT_ONCE: Final = 1 << 19
"""Bytes that are read at a time: with 64 KiB, a download takes 70 % more of a processor, with 256 KiB 15 %."""
_T = TypeVar("_T")


class Tls:
    """Our end of TLS: that of the server, or with `verifies` the client of a server of that name or address."""

    def __init__(self, side: Side, context: ssl.SSLContext, *, verifies: str = "", first: bytes = b"") -> None:
        self._side = side
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._came.write(first)
        self._tls = context.wrap_bio(
            self._came, self._goes, server_side=not verifies, server_hostname=verifies or None
        )  # fmt: skip
        self._sending = asyncio.Lock()

    async def greet(self) -> None:
        """Shake hands; raises ssl.SSLError and OSError."""
        await self._done(self._tls.do_handshake)

    async def read(self) -> bytes:
        """What has come, nothing once the other program has ended its part; one reader at a time."""
        try:
            pieces = [await self._done(lambda: self._tls.read(BUFFER))]
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""
        # A record has at most 16 KiB, and each piece costs more than its bytes. An error is there next time too.
        with contextlib.suppress(ssl.SSLError):
            while self._came.pending:
                pieces.append(self._tls.read(BUFFER))
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        """Send everything; if that is cancelled, nothing more can be sent."""
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        await self._flush()

    async def end(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(ssl.SSLError):  # the other program has yet to say the same
            self._tls.unwrap()
        await self._flush()

    async def _done(self, act: Callable[[], _T]) -> _T:
        while True:
            try:
                done = act()
            except ssl.SSLWantReadError:
                await self._answer()
                if data := await self._side.read(_AT_ONCE):
                    self._came.write(data)
                else:
                    self._came.write_eof()
            except ssl.SSLError:
                await self._answer()  # the alert that says why
                raise
            else:
                await self._answer()
                return done

    async def _answer(self) -> None:
        """Send what reading has caused, if it has: it does not wait for a writer whose reader does not read."""
        if self._goes.pending:
            await self._flush()

    async def _flush(self) -> None:
        async with self._sending:
            if data := self._goes.read():
                await self._side.write(data)
