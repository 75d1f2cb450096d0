"""A socket in the state directory at which a process of ours answers others of the same user."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from shellback.exec.wire.descriptors import short
from shellback.exec.wire.layout import ONCE
from shellback.exec.wire.peers import peer_is_ours

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Counter:
    """Talks on at most `most` connections at a time; `name` is of this process, and others of the directory differ.

    With `once` no process will have this name again, so whoever finds the socket dead may remove it. `talk` does not
    close the connection. A line has at most `line_bytes`. Its length is the number of connections.
    """

    def __init__(
        self, directory: Path, name: str, talk: Talk, *, most: int, line_bytes: int, once: bool = False
    ) -> None:
        self._path = directory / (hashlib.sha256(name.encode()).hexdigest()[:32] + (ONCE if once else ""))
        self._talk = talk
        self._most = most
        self._line_bytes = line_bytes
        self._talks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        return len(self._talks)

    async def open(self) -> None:
        """Listen; what a former process of this name has left is replaced."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self._path.with_name(f".{self._path.name}")
        new.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with short(self._path.parent) as folder:
            listener.bind(f"{folder}/{new.name}")
        listener.listen()
        new.rename(self._path)  # nobody finds it before it listens
        # `start_unix_server` looks for the path, which is gone.
        self._server = await asyncio.start_server(self._meet, sock=listener, limit=self._line_bytes)

    async def close(self) -> None:
        """Cut all connections; without an `open`, nothing happens."""
        if self._server is None:
            return
        self._path.unlink(missing_ok=True)
        self._server.close()
        self._server = None
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._talks) >= self._most or not peer_is_ours(writer.get_extra_info("socket")):
            writer.close()
            return
        talk = asyncio.get_running_loop().create_task(self._met(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        finally:
            writer.close()
