"""The program of the proxy: it accepts in the network namespaces of sandboxes, and connects from its own.

The supervisor passes each listener with its list over a socket. Once the socket closes, the proxy accepts nothing more,
and ends with its last connection, so the next supervisor's proxy goes on with the same listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from typing import Any, Final

from shellback.exec.proxy.reach import BUFFER, by_system
from shellback.exec.proxy.visit import Facts, Visit
from shellback.exec.wire.hosts import Hosts

CONTROL: Final = 3
"""The descriptor of the supervisor's socket."""
CONNECTIONS: Final = 512
"""At a time, of one sandbox instance."""
RECORD_BYTES: Final = 4 << 20
"""Size of a file of records; the one before it is kept."""
_MESSAGE: Final = 1 << 18


class Journal:
    """Appends records of connections to a file: a line when one has begun, and one when it has ended."""

    def __init__(self, path: str) -> None:
        self._path = path

    def note(self, **facts: object) -> None:
        """Write one line; a full disk loses it, and the connection goes on."""
        line = json.dumps(facts).encode() + b"\n"
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size > RECORD_BYTES:
                    os.replace(self._path, f"{self._path}.1")
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


class Proxy:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._servers: dict[str, asyncio.Server] = {}
        self._lists: dict[str, tuple[Hosts, str]] = {}
        self._busy: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def obey(self, control: socket.socket) -> None:
        """Serve what the supervisor passes until it closes the socket and the last connection has ended."""
        loop = asyncio.get_running_loop()
        while True:
            await _readable(loop, control)
            data, fds, _, _ = socket.recv_fds(control, _MESSAGE, 1)
            if not data:
                break
            await self._told(json.loads(data), fds)
        for server in self._servers.values():
            server.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _told(self, message: dict[str, Any], fds: list[int]) -> None:
        key = message["key"]
        if not fds:
            self._servers.pop(key).close()
            del self._lists[key]
            return
        self._lists[key] = Hosts(message["hosts"], message["private"]), message["scope"]

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(key, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        listener = socket.socket(fileno=fds[0])
        self._servers[key] = await asyncio.start_server(accepted, sock=listener, limit=BUFFER)

    async def _serve(self, key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hosts, scope = self._lists[key]
        began, at = time.monotonic(), time.time()
        name = os.urandom(8).hex()

        def note(facts: Facts, **more: object) -> None:
            self._journal.note(id=name, at=round(at, 3), scope=scope, **asdict(facts), **more)

        visit = Visit(hosts, by_system, (reader, writer), note)
        self._busy[key] = self._busy.get(key, 0) + 1
        try:
            if self._busy[key] > CONNECTIONS:
                visit.facts.refused = f"{CONNECTIONS} connections are open at a time"
            else:
                await visit.serve()
        finally:
            self._busy[key] -= 1
            writer.close()
            if visit.facts.host or visit.facts.refused:
                note(visit.facts, seconds=round(time.monotonic() - began, 3))


async def _readable(loop: asyncio.AbstractEventLoop, control: socket.socket) -> None:
    ready = asyncio.Event()
    loop.add_reader(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(control)


def main() -> None:
    """Run the proxy; its argument is the path of its records."""
    control = socket.socket(fileno=CONTROL)
    control.setblocking(False)
    os.set_inheritable(CONTROL, False)
    with asyncio.Runner() as runner:
        runner.run(Proxy(Journal(sys.argv[1])).obey(control))
