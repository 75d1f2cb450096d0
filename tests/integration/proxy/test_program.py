"""The proxy as the supervisor has it: what waits at a listener when the supervisor ends."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from shellback.exec.proxy.asking import Asking
from shellback.exec.proxy.denied import Denied
from shellback.exec.proxy.journal import Journal
from shellback.exec.proxy.program import Proxy

pytestmark = pytest.mark.anyio
MANY = 5


async def test_all_connections_that_wait_when_the_supervisor_ends_are_served() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    message: dict[str, object] = {"op": "serve", "key": "one", "hosts": [], "private": [], "scope": "one"}
    with socket.create_server(("127.0.0.1", 0), backlog=MANY) as listener:
        streams = [await asyncio.open_connection(*listener.getsockname()) for _ in range(MANY)]
        socket.send_fds(ours, [json.dumps(message).encode()], [listener.fileno()])
    ours.close()
    for _, writer in streams:
        writer.write(b"GET http://x.example/ HTTP/1.1\r\nHost: x.example\r\n\r\n")
    with theirs, Journal(None) as journal:
        async with asyncio.timeout(20):
            await Proxy(None, Asking(None), Denied(None), journal, room=2 * MANY).obey(theirs)
    for reader, writer in streams:
        assert (await reader.readline()).startswith(b"HTTP/1.1 403 ")
        writer.close()
