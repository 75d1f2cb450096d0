"""A web server whose answers come in two halves, so that a connection can be made to flow for as long as wanted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator


@contextlib.asynccontextmanager
async def in_halves(go: asyncio.Event) -> AsyncGenerator[int]:
    """The port of a server on the loopback: it says "first" and "last", for `/waits` the latter once `go` is set."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nfirst\n")
            await writer.drain()
            if b"/waits" in head:
                await go.wait()
            writer.write(b"last\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
