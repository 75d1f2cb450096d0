"""The links of a host, to its database or its workers elsewhere: relays that are cut, fall silent or get slow."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

Fault = Literal["cut", "silent", "mute", "slow"]
"""`cut`: no connection stands or is made. `silent`: nothing goes through, and later all of it. `mute`: only answers
wait so. `slow`: all is late.
"""
FAULTS: Final[tuple[Fault, ...]] = ("cut", "silent", "mute", "slow")
SLOW_S: Final = 0.2
"""By so much is each piece late."""
CLOSE_S: Final = 5.0
_SOCKET: Final = ".s.PGSQL.5432"
T = TypeVar("T")
_Connect = Callable[[], Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Link:
    """Relays for the workers of one host; as a context manager it serves in a thread of its own."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="sbln", dir="/tmp"))
        self._directory.chmod(0o755)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._passing = asyncio.Event()
        self._answering = asyncio.Event()
        self._fault: Fault | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        """Serve."""
        self._passing.set()
        self._answering.set()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._directory)

    def to(self, target: Path) -> Path:
        """The directory of a socket that leads to the one in `target`."""
        ours = self._directory / str(len(self._servers))
        ours.mkdir(mode=0o755)
        leads = self._leads(lambda: asyncio.open_unix_connection(target / _SOCKET))
        self._servers.append(self._do(asyncio.start_unix_server(leads, ours / _SOCKET)))
        (ours / _SOCKET).chmod(0o777)
        return ours

    def to_port(self, target: int) -> int:
        """A port of this machine that leads to the port `target` of it."""
        leads = self._leads(lambda: asyncio.open_connection("127.0.0.1", target))
        self._servers.append(server := self._do(asyncio.start_server(leads, "127.0.0.1", 0)))
        return int(server.sockets[0].getsockname()[1])

    def at(self, listener: socket.socket, target: Path) -> None:
        """Have a socket that listens lead to the one in `target`."""
        leads = self._leads(lambda: asyncio.open_unix_connection(target / _SOCKET))
        self._servers.append(self._do(asyncio.start_server(leads, sock=listener)))

    def break_(self, fault: Fault) -> None:
        """Begin a fault, for `heal` to end."""
        self._do(self._break(fault))

    def heal(self) -> None:
        """End the fault."""
        self._do(self._break(None))

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _break(self, fault: Fault | None) -> None:
        self._fault = fault
        if fault == "cut":
            for one in self._open:
                one.transport.abort()
        for passes, faults in ((self._passing, {"silent"}), (self._answering, {"silent", "mute"})):
            (passes.clear if fault in faults else passes.set)()

    def _leads(self, connect: _Connect) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await self._relay(reader, writer, connect)
            writer.close()

        return serve

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: _Connect) -> None:
        if self._is_cut():
            return
        await self._passing.wait()
        there, back = await connect()
        if self._is_cut():
            back.close()
            return
        pair = {writer, back}
        self._open |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, back, self._passing))
                group.create_task(self._pump(there, writer, self._answering))
        except* OSError:
            pass
        finally:
            self._open -= pair
            back.close()

    def _is_cut(self) -> bool:
        return self._fault == "cut"

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        while data := await source.read(1 << 16):
            if self._fault == "slow":
                await asyncio.sleep(SLOW_S)
            await passing.wait()
            sink.write(data)
            await sink.drain()
        sink.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._break("cut")
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=CLOSE_S)
