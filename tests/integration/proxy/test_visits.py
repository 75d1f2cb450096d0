"""What the proxy lets through, with real sockets, TLS servers and a resolver of the test."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shellback.exec.proxy import sides
from shellback.exec.proxy.sides import Side
from shellback.exec.proxy.visit import Facts, Visit
from shellback.exec.wire.hosts import Hosts
from tests.sandboxes import program_needed

pytestmark = pytest.mark.anyio
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Scene:
    """A web server, a TLS server and an echo on this machine, by the ports of their names, and a proxy before them."""

    web: int = 0
    tls: int = 0
    echo: int = 0
    late: int = 0
    mute: int = 0
    heard: list[bytes] = field(default_factory=list[bytes])
    visits: list[Facts] = field(default_factory=list[Facts])
    begun: list[Facts] = field(default_factory=list[Facts])
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"])
    proxy: int = 0
    hosts: Hosts = field(default_factory=lambda: Hosts(()))
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, *parts: bytes, whole: bool = False) -> bytes:
        """All that the proxy answers to these bytes; `whole`: it sees their end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if whole:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(-1), 20)
        finally:
            await closed(writer)
            await asyncio.wait_for(self.ended.wait(), 20)
            self.ended.clear()

    async def through(self, head: bytes, size: int) -> Streams:
        """A connection on which the proxy has answered `head` with `size` bytes, or with a whole head."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        writer.write(head)
        await (reader.readexactly(size) if size else reader.readuntil(b"\r\n\r\n"))
        return reader, writer


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


def certified(place: Path) -> ssl.SSLContext:
    """The context of a TLS server that calls itself example.org."""
    program_needed("openssl")
    key, certificate = place / "key", place / "certificate"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=example.org", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.fixture
async def scene(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Scene]:
    del anyio_backend
    found = Scene()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n") if (first := await reader.read(1)) else b""
        if not head:
            writer.close()
            return
        head = first + head
        found.heard.append(head)
        if b"chunked" in head:
            found.heard.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 first\n")
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
                return  # the client has left, as far as can be seen
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nlate")

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            pass
        await found.ended.wait()
        writer.close()

    async def visit(accepted: socket.socket) -> None:
        async def resolve(_host: str) -> list[str]:
            if not found.addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return found.addresses

        with Side(accepted) as client:
            one = Visit(found.hosts, resolve, client, found.begun.append)
            await one.serve()
            found.visits.append(one.facts)
            found.ended.set()
            await client.leave()

    async def visits(listener: socket.socket) -> None:
        while True:
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            tasks.append(asyncio.ensure_future(visit(accepted)))

    context = certified(tmp_path)
    tasks: list[asyncio.Future[None]] = []
    async with contextlib.AsyncExitStack() as stack:

        async def serving(
            call: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
            tls: ssl.SSLContext | None = None,
        ) -> int:
            async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.append(asyncio.ensure_future(call(reader, writer)))
                await asyncio.wait(tasks[-1:])
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

            server = await stack.enter_async_context(await asyncio.start_server(served, "127.0.0.1", 0, ssl=tls))
            port: int = server.sockets[0].getsockname()[1]
            return port

        found.web, found.tls, found.echo = await serving(web), await serving(echo, context), await serving(echo)
        found.late, found.mute = await serving(late), await serving(mute)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        found.proxy = listener.getsockname()[1]
        accepting = asyncio.ensure_future(visits(listener))
        ports = [f"example.org:{port}" for port in (found.web, found.tls, found.echo, found.late, found.mute)]
        found.hosts = Hosts(["example.org", *ports], ["127.0.0.0/8"])
        yield found
        accepting.cancel()
        assert not tasks or not (await asyncio.wait(tasks, timeout=20))[1]


def socks(host: str, port: int, command: int = 1) -> bytes:
    return bytes([5, 1, 0, 5, command, 0, 3, len(host)]) + host.encode() + port.to_bytes(2)


async def test_a_request_goes_to_a_listed_host_and_is_recorded(scene: Scene) -> None:
    answer = await scene.ask(f"GET http://EXAMPLE.org:{scene.web}/a?b HTTP/1.1\r\nHost: other\r\n\r\n".encode())
    assert answer.endswith(b"\r\n\r\nhello")
    (head,) = scene.heard
    assert head.startswith(f"GET /a?b HTTP/1.1\r\nHost: example.org:{scene.web}\r\n".encode())
    assert b"other" not in head
    (facts,) = scene.visits
    assert (facts.host, facts.port, facts.address, facts.refused) == ("example.org", scene.web, "127.0.0.1", "")
    assert (facts.rule, facts.up, facts.down > 5) == (f"example.org:{scene.web}", len(head), True)


@pytest.mark.parametrize(
    "target",
    ["http://example.net/", "http://example.org:81/", "http://example.org.:81/", "http://example.org@example.net/",
     "http://2130706433/", "http://[::1]/", "http://example.org\\@example.net/", "https://example.org/", "ftp://example.org/",
     "/path"],
)  # fmt: skip
async def test_a_request_elsewhere_is_refused_with_the_reason(scene: Scene, target: str) -> None:
    answer = await scene.ask(f"GET {target} HTTP/1.1\r\nHost: example.org\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"\r\n\r\nShellback: " in answer
    assert scene.visits[0].refused
    assert not scene.begun


async def test_a_name_with_a_private_address_is_refused_at_each_connection(scene: Scene) -> None:
    request = f"GET http://example.org:{scene.web}/ HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
    scene.hosts = Hosts([f"example.org:{scene.web}"])
    for address in ("127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1"):
        scene.addresses = [address]
        assert b"no public address" in await scene.ask(request)
    assert not scene.heard
    assert not scene.begun


async def test_a_name_that_does_not_resolve_is_told_as_unreachable(scene: Scene) -> None:
    scene.addresses = []
    answer = await scene.ask(f"GET http://example.org:{scene.web}/ HTTP/1.1\r\nHost: example.org\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"example.org cannot be resolved (Name or service not known)" in answer
    assert not scene.begun


async def test_a_second_request_on_the_connection_reaches_nobody(scene: Scene) -> None:
    one = f"GET http://example.org:{scene.web}/ HTTP/1.1\r\nHost: example.org\r\n\r\n".encode()
    await scene.ask(one + b"GET http://example.net/ HTTP/1.1\r\nHost: example.net\r\n\r\n")
    assert len(scene.heard) == 1


async def test_a_request_with_two_lengths_is_read_as_servers_have_to_read_it(scene: Scene) -> None:
    head = f"POST http://example.org:{scene.web}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n"
    answer = await scene.ask(
        head.encode() + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
    )
    if answer.startswith(b"HTTP/1.1 400"):
        return
    assert b"content-length" not in scene.heard[0].lower()
    assert scene.heard[1] == b"3\r\nabc\r\n0\r\n\r\n"


async def test_a_server_that_answers_late_is_waited_for(scene: Scene) -> None:
    """Servers take the end of the stream for that of the client: uvicorn, Go and Node then answer nothing."""
    request = f"GET http://example.org:{scene.late}/ HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    assert (await scene.ask(request)).endswith(b"late")
    answer = await scene.ask(request, whole=True)
    assert answer.endswith(b"late")


async def test_a_server_that_says_nothing_to_nobody_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.proxy.visit.LEFT_S", 0.2)
    assert await scene.ask(socks("example.org", scene.mute), whole=True)
    assert "said nothing" in scene.visits[0].refused


async def test_what_no_server_would_take_is_refused_with_a_reason_and_no_error(scene: Scene) -> None:
    url = f"http://example.org:{scene.web}/"
    for head in (
        f"CONNECT example.org:{'1' * 5000} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"CONNECT example.org:{scene.web} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET http://example.org:443/ HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        await scene.ask(head.encode(), whole=True)
        assert scene.visits[-1].refused
        assert "failed" not in scene.visits[-1].refused
    assert scene.heard == []
    body = "Connection: content-length\r\nContent-Length: 3\r\nTransfer_Encoding: chunked\r\n\r\nabc"
    assert (await scene.ask(f"POST {url} HTTP/1.1\r\nHost: a\r\n{body}".encode())).endswith(b"hello")
    assert b"content-length: 3" in scene.heard[0].lower()
    assert b"chunked" not in scene.heard[0].lower()  # some servers read it as the field with a dash


async def test_a_head_in_very_many_pieces_is_refused(scene: Scene) -> None:
    reader, writer = await scene.through(f"CONNECT example.org:{scene.tls} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 0)
    writer.write(b"\x16")
    with contextlib.suppress(ConnectionError):
        while not scene.ended.is_set():
            writer.write(b"\x03")
            await writer.drain()
            await asyncio.sleep(0)
    assert "pieces" in scene.visits[0].refused or "damaged" in scene.visits[0].refused
    del reader
    await closed(writer)


async def test_headers_for_the_proxy_stay_with_it(scene: Scene) -> None:
    url = f"http://example.org:{scene.web}/"
    fields = "Proxy-Authorization: secret\r\nConnection: X-Hop\r\nX-Hop: 1\r\nUpgrade: websocket\r\nX-Stays: 1\r\n"
    await scene.ask(f"GET {url} HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode())
    head = scene.heard[0].lower()
    assert b"x-stays: 1" in head
    assert not [word for word in (b"secret", b"x-hop", b"upgrade") if word in head]


async def test_a_tunnel_carries_tls_whose_name_is_the_host(scene: Scene) -> None:
    reader, writer = await scene.through(f"CONNECT example.org:{scene.tls} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 0)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    await writer.start_tls(context, server_hostname="example.org")
    assert await reader.readline() == b"220 first\n"
    writer.write(b"over TLS\n")
    assert await reader.readline() == b"over TLS\n"
    await closed(writer)


@pytest.mark.parametrize("name", ["example.net", "sub.example.org", None])
async def test_a_tunnel_refuses_tls_for_another_name_or_none(scene: Scene, name: str | None) -> None:
    _, writer = await scene.through(f"CONNECT example.org:{scene.tls} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 0)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await writer.start_tls(context, server_hostname=name or "")
    await asyncio.wait_for(scene.ended.wait(), 20)
    assert "TLS names" in scene.visits[0].refused
    await closed(writer)


async def test_a_tunnel_lets_the_server_speak_first_and_carries_other_protocols(scene: Scene) -> None:
    for head, size in (
        (f"CONNECT example.org:{scene.echo} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 0),
        (socks("example.org", scene.echo), 12),
    ):
        reader, writer = await scene.through(head, size)
        assert await reader.readline() == b"220 first\n"
        writer.write(b"SSH-2.0-x\r\n")
        assert await reader.readline() == b"SSH-2.0-x\r\n"
        await closed(writer)


@pytest.mark.parametrize(
    "inside",
    [b"GET / HTTP/1.1\r\nHost: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\nHost: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\n\r\n", b"GET http://example.net/ HTTP/1.1\nhost : example.org\n\n",
     b"\r\nGET / HTTP/1.1\r\nHost: example.net\r\n\r\n", b"get / http/1.1\r\nHost: example.net\r\n\r\n",
     b"CONNECT example.net:1 HTTP/1.1\r\nHost: example.org\r\n\r\n",
     b"GET http://example.net/ HTTP/1.1\r\nHost: example.org\r\n\r\n"],
)  # fmt: skip
async def test_a_request_in_a_tunnel_has_to_name_the_host_of_the_tunnel(scene: Scene, inside: bytes) -> None:
    answer = await scene.ask(f"CONNECT example.org:{scene.echo} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), inside)
    assert b"example.net" not in answer
    assert "in the tunnel" in scene.visits[0].refused or "no HTTP request" in scene.visits[0].refused


@pytest.mark.parametrize(
    "inside",
    [b" GET / HTTP/1.1\r\nHost: example.net\r\n\r\n", b"GET\t/\tHTTP/1.1\r\nHost: example.net\r\n\r\n",
     b"GET\f/\fHTTP/1.1\r\nHost: example.net\r\n\r\n", b"M-SEARCH / HTTP/1.1\r\nHost: example.net\r\n\r\n",
     b"A" * 30 + b" / HTTP/1.1\r\nHost: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\nHost : example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\n\tHost: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nX: 1\r\n Host: example.net\r\nHost: example.org\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\nHost\0: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\nX: 1\rHost: example.net\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: example.org\r\n @example.net\r\n\r\n"],
)  # fmt: skip
async def test_a_request_in_a_tunnel_that_servers_read_differently_reaches_nobody(scene: Scene, inside: bytes) -> None:
    answer = await scene.ask(f"CONNECT example.org:{scene.echo} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), inside)
    assert b"example.net" not in answer
    assert scene.visits[0].refused


async def test_only_tls_goes_to_443_and_only_http_to_80(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []
    real = sides.connected

    async def redirected(address: str, port: int) -> Side:
        reached.append(port)
        return await real(address, {80: scene.web, 443: scene.tls}.get(port, port))

    monkeypatch.setattr("shellback.exec.proxy.reach.connected", redirected)
    for port, word in ((443, "only TLS"), (80, "no HTTP request")):
        await scene.ask(
            f"CONNECT example.org:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), b"\x00\x01 anything\r\n\r\n"
        )
        assert word in scene.visits[-1].refused
    inside = b"GET /x HTTP/1.1\r\nHost: example.org\r\n\r\nGET /y HTTP/1.1\r\nHost: example.net\r\n\r\n"
    assert b"hello" in await scene.ask(b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n", inside)
    assert [head.split(b"\r\n")[0] for head in scene.heard] == [b"GET /x HTTP/1.1"]
    reader, writer = await scene.through(b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n", 0)
    writer.write(b"GET /later HTTP/1.1\r\nHost: example.org\r\n\r\n")
    assert b"hello" in await asyncio.wait_for(reader.read(-1), 20)
    await closed(writer)
    assert scene.heard.pop().startswith(b"GET /later")
    await scene.ask(
        b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: example.net\r\n\r\n"
    )
    assert len(scene.heard) == 1
    assert 80 in reached


async def test_socks_gives_connections_only(scene: Scene) -> None:
    assert (await scene.ask(socks("example.org", scene.echo, command=3)))[2:4] == b"\x05\x07"
    assert (await scene.ask(socks("example.net", 443)))[2:4] == b"\x05\x02"
    assert (await scene.ask(b"\x05\x01\x01")) == b"\x05\xff"
    assert not scene.begun


async def test_the_user_of_the_proxy_is_the_session_and_reaches_no_server(scene: Scene) -> None:
    word = base64.b64encode(b"s1.a:x").decode()
    url = f"http://example.org:{scene.web}/"
    await scene.ask(f"GET {url} HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic {word}\r\n\r\n".encode())
    login, goal = b"\x05\x02\x00\x02\x01\x04s1.b\x01x", socks("example.org", scene.web)[3:]
    request = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"
    for cut in (2, 5, 9, len(login)):
        answer = await scene.ask(login[:cut], login[cut:] + goal + request)
        assert answer.startswith(b"\x05\x02\x01\x00\x05\x00")
        assert answer.endswith(b"hello")
    for said in ("Basic !", "Basic", f"Bearer {word}", "Basic " + base64.b64encode(b"../x y").decode()):
        await scene.ask(f"GET {url} HTTP/1.1\r\nHost: a\r\nProxy-Authorization: {said}\r\n\r\n".encode())
    assert [one.session for one in scene.visits] == ["s1.a", *["s1.b"] * 4, *[""] * 4]
    assert not [head for head in scene.heard if word.encode() in head or b"s1." in head]


@pytest.mark.parametrize(
    "data", [b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b"\x00" * 99, b"\xff\xfe", b"\r\n\r\n", b"GET\r\n\r\n"]
)
async def test_what_is_no_request_reaches_nobody(scene: Scene, data: bytes) -> None:
    await scene.ask(data, whole=True)
    assert not scene.begun
    assert not scene.heard


async def test_a_host_that_does_not_answer_is_told_as_unreachable(scene: Scene) -> None:
    scene.hosts = Hosts(["example.org:1"], ["127.0.0.0/8"])
    assert (await scene.ask(b"GET http://example.org:1/ HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
    assert (await scene.ask(socks("example.org", 1)))[2:4] == b"\x05\x04"
