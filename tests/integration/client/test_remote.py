"""What a client of a server does when the connection breaks."""

from __future__ import annotations

import asyncio

import pytest

from shellback.client import remote
from shellback.client.remote import Remote
from shellback.work.errors import ServerUnreachable

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CUTS = 3 * len(remote.AGAIN_S)


@pytest.mark.parametrize("held_s", [0.0, 600.0])
async def test_a_quiet_stream_that_is_cut_now_and_then_goes_on_and_one_that_is_cut_at_once_does_not(
    monkeypatch: pytest.MonkeyPatch, held_s: float
) -> None:
    monkeypatch.setattr(remote, "AGAIN_S", (0.0,) * len(remote.AGAIN_S))
    monkeypatch.setattr(remote, "HELD_S", held_s)
    cuts = 0

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cuts
        await reader.readuntil(b"\r\n\r\n")
        cuts += 1
        writer.write(HEAD + (b"event: end\ndata: {}\n\n" if cuts == CUTS else b": events\n\n"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        client = Remote(f"http://127.0.0.1:{port}", None)
        try:
            events = client.events("talk", "0", (), follow=True)
            if held_s:
                with pytest.raises(ServerUnreachable, match="ends its streams at once"):
                    await anext(events)
                assert cuts == len(remote.AGAIN_S) + 1
            else:
                assert [event async for event in events] == []
                assert cuts == CUTS
        finally:
            await client.close()
