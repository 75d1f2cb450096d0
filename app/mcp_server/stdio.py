"""Standard input and output as the wire of the protocol: nothing else may read or write them."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Final

log = logging.getLogger(__name__)

LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest message that is read at all; a longer one ends the connection, because its id is unknown."""


class NotAClient(Exception):
    """Raised when standard input or output is no pipe, socket or terminal."""


class Lines:
    """The lines that the client sends, until it is gone."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        try:
            line = await self._reader.readline()
        except ValueError:
            log.error("the client sent a message of over %d MiB: the connection ends", LINE_BYTES >> 20)  # noqa: TRY400
            line = b""
        if not line:
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class Out:
    """Writes to the client, and waits while it does not read."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        """Add text to what is sent."""
        self._writer.write(text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Wait until the client reads again."""
        await self._writer.drain()


async def wire() -> tuple[Lines, Out]:
    """Both directions. From now on descriptor 0 is empty, and what others write to descriptor 1 goes to 2.

    Raises:
        NotAClient: No client has started this program.
    """
    if not all(map(_talks, (0, 1))):
        raise NotAClient(
            "standard input and output are no pipes: an MCP client starts this command and talks over them"
        )
    sys.stdout.flush()
    theirs, ours = (
        os.fdopen(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3), mode, 0) for fd, mode in ((0, "rb"), (1, "wb"))
    )
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), theirs)
    flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: flow, ours)
    writer = asyncio.StreamWriter(transport, flow, None, loop)
    return Lines(reader), Out(writer)


def _talks(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
