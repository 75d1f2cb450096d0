"""What is admitted over HTTP, how much of it at once, and that it ends with its token and with the server."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shellback.serving import access as of_access
from shellback.serving import listening as of_listening
from shellback.serving.access import Access
from shellback.serving.application import Application, Limits, Mount, caller
from shellback.serving.listening import Address, CannotListen, listen
from shellback.storage import tables, tokens
from shellback.storage.db import Database
from shellback.storage.errors import DatabaseUnreachable
from tests.databases import unavailable
from tests.serving import web

pytestmark = pytest.mark.anyio

LIMITS = Limits(body_bytes=1000, body_s=0.5, calls=3)
PATIENCE_S = 30.0
BODY = b"x" * 500_000
"""More than the buffers of a connection take at once."""


class Site:
    """A server with a small application that is mounted at /app."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.access = Access(database)
        self.stop = asyncio.Event()
        self.url = ""
        self.begun = asyncio.Semaphore(0)
        self.left = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()

    async def told(self, request: Request) -> Response:
        """Say who calls, and how long the body is."""
        return JSONResponse({"name": caller(request.scope).name, "bytes": len(await request.body())})

    async def waits(self, _: Request) -> Response:
        """Answer when it is told to."""
        self.begun.release()
        try:
            await self.go_on.wait()
        finally:
            self.left.release()
        return JSONResponse({})

    async def stream(self, request: Request) -> Response:
        """Say one thing, and then nothing, or very much."""

        async def said() -> AsyncGenerator[bytes]:
            yield b"begun\n"
            try:
                while request.query_params:
                    yield b"x" * 65536
                await asyncio.Event().wait()
            finally:
                self.left.release()

        return StreamingResponse(said())

    def token(self, name: str, lasts_s: float | None = None) -> str:
        return self.database.write_now(tokens.add, name, kind="mcp", conversations=None, lasts_s=lasts_s, owner="test")[
            0
        ]


@asynccontextmanager
async def site(database: Database, files: tuple[Path, Path] | None = None) -> AsyncGenerator[Site]:
    made, ready = Site(database), asyncio.Event()

    def heard(url: str) -> None:
        made.url = url
        ready.set()

    app = Starlette(
        routes=[
            Route("/app/told", made.told, methods=["POST"]),
            Route("/app/waits", made.waits),
            Route("/app/stream", made.stream),
        ]
    )
    application = Application(
        [Mount(path="/app", kind="mcp", app=app)], made.access, names=["127.0.0.1"], limits=LIMITS
    )
    address = Address(host="127.0.0.1", port=0, certificate=files)
    listening = asyncio.create_task(listen(application, made.access, address, made.stop, heard))
    listening.add_done_callback(lambda _: made.ended.set())
    async with asyncio.timeout(PATIENCE_S):
        await ready.wait()
        try:
            yield made
        finally:
            made.stop.set()
            await listening


def request(secret: str, line: str, more: str = "") -> bytes:
    """A request as it is on the wire, for a client that is none of the usual ones."""
    return f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n{more}\r\n".encode()


async def test_a_request_needs_a_token_in_force_and_its_application_is_told_of_it(database: Database) -> None:
    async with site(database) as one:
        good, revoked, expired = one.token("laptop"), one.token("lost"), one.token("old", 3600.0)
        database.write_now(tokens.revoke, "lost", by="test")
        past = sa.update(tables.tokens).where(tables.tokens.c.name == "old").values(expires_at=1.0)
        database.write_now(lambda conn: conn.execute(past))
        for secret, said in ((None, ""), ("wrong", "not known"), (revoked, "revoked"), (expired, "expired")):
            async with web(secret) as client:
                refused = await client.post(f"{one.url}/app/told")
                assert refused.status_code == 401
                challenge = refused.headers["www-authenticate"]
                assert challenge.startswith('Bearer realm="shellback"')
                assert said in challenge
                assert ("error=" in challenge) is bool(secret)
                assert (await client.get(f"{one.url}/healthz")).json() == {"status": "ok"}
        async with web(good) as client:
            assert (await client.post(f"{one.url}/app/told", content=b"abc")).json() == {"name": "laptop", "bytes": 3}
            assert (await client.get(f"{one.url}/application")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:{port}"}, 421),
        ({"host": "[::1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:{port}"}, 200),
        ({"host": "127.0.0.1"}, 200),
    ],
)
async def test_a_page_of_strangers_and_a_name_of_strangers_are_refused(
    sqlite: Database, headers: dict[str, str], status: int
) -> None:
    async with site(sqlite) as one, web(one.token("laptop")) as client:
        port = str(urlsplit(one.url).port)
        sent = {name: value.replace("{port}", port) for name, value in headers.items()}
        assert (await client.post(f"{one.url}/app/told", headers=sent)).status_code == status


async def test_a_body_that_is_too_long_or_late_is_refused_before_anybody_sees_it(sqlite: Database) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with site(sqlite) as one, web(one.token("laptop")) as client:
        for content in (b"x" * 1001, chunks()):
            refused = await client.post(f"{one.url}/app/told", content=content)
            assert (refused.status_code, refused.json()["error"][:34]) == (413, "the request is longer than 1000 by")
        slow = await asyncio.open_connection("127.0.0.1", urlsplit(one.url).port)
        slow[1].write(request(one.token("slow"), "POST /app/told", "Content-Length: 10\r\n") + b"x")
        assert (await slow[0].readline()).startswith(b"HTTP/1.1 408 ")
        slow[1].close()
        assert (await client.post(f"{one.url}/app/told", content=b"x" * 1000)).json()["bytes"] == 1000


async def test_a_connection_that_says_half_of_what_it_wants_is_closed_also_after_its_first_request(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_listening, "HEADERS_S", 0.2)
    async with site(sqlite) as one, web(one.token("laptop")) as client:
        waiting = asyncio.create_task(client.get(f"{one.url}/app/waits"))
        await one.begun.acquire()
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(one.url).port)
        writer.write(request(one.token("phone"), "POST /app/told"))
        assert b"phone" in await reader.readuntil(b"}")
        # Each byte would begin the time anew, if it were that of a silent connection.
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"G")
                with contextlib.suppress(TimeoutError):
                    assert await asyncio.wait_for(reader.read(), 0.05) == b""
        writer.close()
        # A request that is here may be answered later.
        assert not waiting.done()
        one.go_on.set()
        assert (await waiting).status_code == 200


@pytest.mark.parametrize("line", ["GET /healthz", "POST /app/told", "GET /nothing"])
async def test_a_connection_that_gave_no_token_is_closed_after_its_answer(sqlite: Database, line: str) -> None:
    async with site(sqlite) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(one.url).port)
        writer.write(request("of nobody", line))
        async with asyncio.timeout(PATIENCE_S):
            assert b"connection: close" in (await reader.read()).lower()
        writer.close()


@pytest.mark.parametrize(
    ("line", "host", "status"),
    [
        ("GET /healthz", "", 200),
        ("POST /app/told", "", 401),
        ("POST /nothing", "", 404),
        ("POST /app/told", "evil", 421),
    ],
)
async def test_the_last_answer_of_a_connection_reaches_a_client_whose_body_comes_later(
    sqlite: Database, line: str, host: str, status: int
) -> None:
    async with site(sqlite) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(one.url).port)
        head = request("of nobody", line, f"Content-Length: {len(BODY)}\r\n").decode()
        writer.write(head.replace("Host: 127.0.0.1", f"Host: {host or '127.0.0.1'}").encode() + BODY[:1])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        writer.write(BODY[1:])
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.read()
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert answer.endswith(b"}")
        writer.close()


async def test_one_token_cannot_take_more_than_its_share(sqlite: Database) -> None:
    async with site(sqlite) as one, web(one.token("greedy")) as client, web(one.token("other")) as other:
        waiting = [asyncio.create_task(client.get(f"{one.url}/app/waits")) for _ in range(3)]
        for _ in waiting:
            await one.begun.acquire()
        refused = await client.post(f"{one.url}/app/told")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert "repeat this one" in refused.json()["remedy"]
        assert (await other.post(f"{one.url}/app/told")).status_code == 200
        one.go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200, 200]
        assert (await client.post(f"{one.url}/app/told")).status_code == 200


async def revoked(one: Site, name: str) -> None:
    await one.database.write(tokens.revoke, name, by="test")


async def test_what_is_open_ends_when_its_token_is_revoked_and_nothing_else_does(database: Database) -> None:
    async with site(database) as one, web(one.token("lost")) as client, web(one.token("kept")) as other:
        async with client.stream("GET", f"{one.url}/app/stream") as stream:
            said = stream.aiter_raw()
            assert await anext(said) == b"begun\n"
            waiting = asyncio.create_task(client.get(f"{one.url}/app/waits"))
            kept = asyncio.create_task(other.get(f"{one.url}/app/waits"))
            for _ in range(2):
                await one.begun.acquire()
            await revoked(one, "lost")
            one.access.ring()
            assert [part async for part in said] == []
        assert (await waiting).status_code == 401
        for _ in range(2):
            await one.left.acquire()
        assert not kept.done()
        one.go_on.set()
        assert (await kept).status_code == 200


async def test_a_stream_ends_when_its_token_expires_or_the_ring_is_lost(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(sqlite) as one:
        async with web(one.token("short", 3.0)) as client, client.stream("GET", f"{one.url}/app/stream") as stream:
            assert b"".join([part async for part in stream.aiter_raw()]) == b"begun\n"
        monkeypatch.setattr(of_access, "LOOK_S", 0.05)
        one.access.ring()
        async with web(one.token("lost")) as client, client.stream("GET", f"{one.url}/app/stream") as stream:
            said = stream.aiter_raw()
            await anext(said)
            await revoked(one, "lost")
            assert [part async for part in said] == []


async def test_while_the_database_does_not_answer_a_stream_ends_with_its_token_and_the_log_is_not_filled(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def down(*_: object) -> object:
        looks.append(1)
        raise DatabaseUnreachable("no connection")

    async with site(sqlite) as one:
        async with web(one.token("short", 3.0)) as client, client.stream("GET", f"{one.url}/app/stream") as stream:
            monkeypatch.setattr(one.database, "read", down)
            one.access.ring()
            assert b"".join([part async for part in stream.aiter_raw()]) == b"begun\n"
        for _ in range(50):
            one.access.ring()
            await asyncio.sleep(0)
        assert len(looks) <= 2


async def test_a_client_that_reads_nothing_slows_no_other_and_does_not_keep_the_server(sqlite: Database) -> None:
    async with site(sqlite) as one:
        with socket.create_connection(("127.0.0.1", int(urlsplit(one.url).port or 0))) as deaf:
            deaf.setblocking(False)
            asked = request(one.token("deaf"), "GET /app/stream?much=1")
            await asyncio.get_running_loop().sock_sendall(deaf, asked)
            async with web(one.token("other")) as client:
                for _ in range(20):
                    assert (await client.post(f"{one.url}/app/told")).status_code == 200
            one.stop.set()
            await one.ended.wait()


async def test_at_its_end_the_server_ends_streams_and_tells_those_who_wait(sqlite: Database) -> None:
    async with site(sqlite) as one, web(one.token("laptop")) as client:
        async with client.stream("GET", f"{one.url}/app/stream") as stream:
            said = stream.aiter_raw()
            await anext(said)
            waiting = asyncio.create_task(client.get(f"{one.url}/app/waits"))
            await one.begun.acquire()
            one.stop.set()
            assert [part async for part in said] == []
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]) == (503, "the server stops")


async def test_while_the_database_does_not_answer_nobody_is_let_in(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(sqlite) as one, web(one.token("laptop")) as client:

        async def down(*_: object) -> object:
            raise DatabaseUnreachable("no connection")

        monkeypatch.setattr(one.database, "read", down)
        assert (await client.post(f"{one.url}/app/told")).status_code == 503
        monkeypatch.undo()
        assert (await client.post(f"{one.url}/app/told")).status_code == 200


async def test_with_a_certificate_it_speaks_tls_and_nothing_else(sqlite: Database, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        unavailable("no openssl to make a certificate with")
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    await asyncio.to_thread(certificate, *files)
    async with site(sqlite, files) as one:
        secret, context = one.token("laptop"), ssl.create_default_context(cafile=str(files[0]))
        async with httpx2.AsyncClient(verify=context, trust_env=False) as client:
            sent = {"authorization": f"Bearer {secret}"}
            assert one.url.startswith("https://")
            assert (await client.post(f"{one.url}/app/told", headers=sent)).json()["name"] == "laptop"
        async with web(secret) as client:
            with pytest.raises(httpx2.HTTPError):
                await client.post(f"{one.url.replace('https', 'http')}/app/told")


def certificate(chain: Path, key: Path) -> None:
    """A certificate for this machine, of its own making."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *named, "-keyout", key, "-out", chain], check=True, capture_output=True)


async def test_an_address_that_is_taken_is_named(sqlite: Database) -> None:
    async with site(sqlite) as one:
        port = int(urlsplit(one.url).port or 0)
        application = Application([], one.access, names=[])
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1, port {port}: .*in use"):
            await listen(application, one.access, Address(host="127.0.0.1", port=port), asyncio.Event(), print)
