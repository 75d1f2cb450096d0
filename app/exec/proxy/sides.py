"""The two sides of a connection: sockets that are read and written here as far as is needed, and then by the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

BUFFER: Final = 1 << 16
_AT_ONCE: Final = 1 << 20
_WIDE: Final = 1 << 20
"""The size of a pipe that has once been full; at 256 KiB a fast download takes 40 % more of a processor."""
_MOST_WIDE: Final = 16
"""Pipes that are wide at a time: a user has 64 MiB for all pipes, and those of other programs shrink beyond."""
_LEFT_S: Final = 2.0
_LEFT_BYTES: Final = 1 << 20


class Side:
    """One side; its TCP socket, which does not block, is closed with it. `read`, `write` and `carry` raise OSError."""

    _wide: ClassVar = 0

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def read(self, most: int = BUFFER) -> bytes:
        """What has come, at most so many bytes; nothing once the other program has ended its part."""
        return await self._loop.sock_recv(self._socket, most)

    async def write(self, data: bytes) -> None:
        """Send everything; if that is cancelled, a part."""
        await self._loop.sock_sendall(self._socket, data)

    def tell(self, data: bytes) -> None:
        """Send what there is room for now: all of a short answer, unless the other program reads nothing."""
        with contextlib.suppress(OSError):
            self._socket.send(data)

    async def carry(self, to: Side, count: Callable[[int], None]) -> None:
        """Send all that comes to another side until it ends; `count` is told of the bytes.

        They stay in the kernel: splice(2), by a pipe. If that is cancelled, those in the pipe are lost.
        """
        await self._ready(self._loop.add_reader, self._loop.remove_reader)
        out, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wide = False
        try:
            while size := await self._spliced(into):
                count(size)
                if not wide and size >= BUFFER and Side._wide < _MOST_WIDE:
                    # More than a user may have in pipes is refused, see pipe(7).
                    with contextlib.suppress(OSError):
                        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _WIDE)
                        wide = True
                        Side._wide += 1
                while size:
                    try:
                        size -= os.splice(out, to._socket.fileno(), size)
                    except BlockingIOError:
                        await to._ready(to._loop.add_writer, to._loop.remove_writer)
                # Others have their turn, however fast these two are.
                await asyncio.sleep(0)
        finally:
            Side._wide -= wide
            os.close(out)
            os.close(into)

    def end(self) -> None:
        """Send nothing more; the other program may."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def leave(self) -> None:
        """End, and drop what still comes for a while: closed at once, the other program may not get what was sent."""
        self.end()
        left = _LEFT_BYTES
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LEFT_S):
                while left > 0 and (data := await self.read()):
                    left -= len(data)

    def close(self) -> None:
        """Close the socket; what was sent still arrives, if nothing is left to read."""
        self._socket.close()

    async def _spliced(self, pipe: int) -> int:
        while True:
            try:
                return os.splice(self._socket.fileno(), pipe, _AT_ONCE)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)

    async def _ready(self, add: Callable[[int, Callable[[], None]], Any], remove: Callable[[int], Any]) -> None:
        ready = asyncio.Event()
        fd = self._socket.fileno()
        add(fd, ready.set)
        try:
            await ready.wait()
        finally:
            remove(fd)


async def connected(address: str, port: int) -> Side:
    """A side that is connected to an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return Side(made)
