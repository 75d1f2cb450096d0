"""What the proxy puts into requests to a host that has a credential, and what it keeps out of the answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from shellback.exec.proxy import authority, injecting
from shellback.exec.proxy.authority import Authority, ensure
from shellback.exec.proxy.injecting import Injector, Lent
from shellback.exec.proxy.sides import Side
from shellback.exec.proxy.visit import Facts, Visit
from shellback.exec.wire.credentials import BASIC, HEADER, Credential
from shellback.exec.wire.hosts import Hosts

pytestmark = pytest.mark.anyio
VALUE = "ghp_qL7/x+0123456789abcdefZ"
KEY = "instance"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Host:
    """TLS servers of all names, which remember what they hear and answer as told, and a proxy before them."""

    authority: Authority
    trusts: Path
    port: int = 0
    proxy: int = 0
    certified: str = ""
    credential: Credential = field(default_factory=lambda: Credential(name="hub", hosts=("api.example:*",)))
    lent: Lent = field(default_factory=Lent)
    answers: list[list[bytes]] = field(default_factory=list[list[bytes]])
    heard: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    serves: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None
    visits: list[Facts] = field(default_factory=list[Facts])
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def placeholder(self) -> str:
        return self.credential.stand_in(KEY, VALUE)

    @contextlib.asynccontextmanager
    async def tls(self, host: str = "api.example", trusts: Path | None = None) -> AsyncGenerator[Streams]:
        """A connection of a client that trusts our authority; at its end the proxy has ended it too."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        try:
            writer.write(f"CONNECT {host}:{self.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await writer.start_tls(ssl.create_default_context(cafile=trusts or self.trusts), server_hostname=host)
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
            await asyncio.wait_for(self.ended.wait(), 20)
            self.ended.clear()

    async def ask(self, request: bytes, host: str = "api.example") -> bytes:
        """All that is answered to this, as a client reads it that trusts us, or for another host the world."""
        ours = host == "api.example"
        async with self.tls(host, self.trusts if ours else Path(authority.SYSTEM[0])) as (reader, writer):
            writer.write(request)
            return await asyncio.wait_for(reader.read(-1), 20)

    def answer(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        """Have the next request answered by this."""
        fields = "".join(f"{one}\r\n" for one in (*headers, f"Content-Length: {len(body)}"))
        self.answers.append([f"HTTP/1.1 {status}\r\n{fields}\r\n".encode() + body])


def get(*headers: str, host: str = "api.example", last: bool = True, method: str = "GET /") -> bytes:
    fields = "".join(f"{one}\r\n" for one in (f"Host: {host}", *headers, *(["Connection: close"] if last else [])))
    return f"{method} HTTP/1.1\r\n{fields}\r\n".encode()


@pytest.fixture
async def host(tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Host]:
    del anyio_backend
    # The authority of the world outside is another one of ours.
    (tmp_path / "nothing").touch()
    monkeypatch.setattr(authority, "SYSTEM", (str(tmp_path / "nothing"),))
    ensure(tmp_path / "world")
    monkeypatch.setattr(authority, "SYSTEM", (str(tmp_path / "world" / authority.CERTIFICATE),))
    bundle = ensure(tmp_path / "ours")
    world = Authority(tmp_path / "world")
    found = Host(authority=Authority(tmp_path / "ours"), trusts=bundle)
    found.lent.take(found.credential.lent_as, VALUE)
    tasks: list[asyncio.Future[None]] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        if found.serves is not None:
            await found.serves(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while found.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"content-length: " in head.lower():
                    head += await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))
                found.heard.append(head)
                for piece in found.answers.pop(0):
                    writer.write(piece)
                    await writer.drain()
        writer.close()

    async def visit(accepted: socket.socket) -> None:
        async def resolve(_host: str) -> list[str]:
            return ["127.0.0.1"]

        inject = partial(Injector(found.authority, found.lent).serve, KEY)
        hosts = [f"{name}.example:{found.port}" for name in ("api", "other")]
        with Side(accepted) as client:
            listed = Hosts(hosts, ["127.0.0.0/8"], [found.credential])
            one = Visit(listed, resolve, client, lambda _: None, inject=inject)
            await one.serve()
            found.visits.append(one.facts)
            found.ended.set()
            await client.leave()

    async def visits(listener: socket.socket) -> None:
        while True:
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            tasks.append(asyncio.ensure_future(visit(accepted)))

    def named(tls: ssl.SSLObject, name: str, _: object) -> None:
        tls.context = world.towards_clients(found.certified or name)

    context = world.towards_clients("none.example")
    context.sni_callback = named
    async with await asyncio.start_server(server, "127.0.0.1", 0, ssl=context) as outside:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            found.port, found.proxy = outside.sockets[0].getsockname()[1], listener.getsockname()[1]
            accepting = asyncio.ensure_future(visits(listener))
            yield found
            accepting.cancel()
            assert not tasks or not (await asyncio.wait(tasks, timeout=20))[1]


async def test_the_value_is_put_in_where_there_is_none_or_the_placeholder(host: Host) -> None:
    pair = base64.b64encode(f"me:{host.placeholder}".encode()).decode()
    real = base64.b64encode(f"me:{VALUE}".encode()).decode()
    for given, wanted in (
        ((), f"Authorization: Bearer {VALUE}"),
        ((f"Authorization: token {host.placeholder}",), f"authorization: token {VALUE}"),
        ((f"Authorization: Basic {pair}",), f"authorization: Basic {real}"),
        (("Authorization: token of-its-own",), "authorization: token of-its-own"),
    ):
        host.answer(b"fine")
        assert (await host.ask(get(*given))).endswith(b"fine")
        assert f"\r\n{wanted}\r\n".encode() in host.heard[-1]
    assert {one.credential for one in host.visits} == {"hub"}
    assert not any(one.refused for one in host.visits)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [({"kind": BASIC, "user": "x"}, b"Basic " + base64.b64encode(f"x:{VALUE}".encode())),
     ({"kind": HEADER, "header": "X-Api-Key"}, VALUE.encode())],
)  # fmt: skip
async def test_a_value_is_put_in_as_basic_or_in_a_header_of_its_own(
    host: Host, kind: dict[str, str], wanted: bytes
) -> None:
    host.credential = replace(host.credential, **kind)
    host.answer(b"fine")
    await host.ask(get())
    assert f"\r\n{host.credential.header}: ".encode() + wanted + b"\r\n" in host.heard[0]


async def test_a_placeholder_elsewhere_stays_a_placeholder(host: Host) -> None:
    """In metadata, a path or a body, others could read the value later."""
    body = host.placeholder.encode()
    note = [f"X-Amz-Meta-Note: {host.placeholder}", f"Content-Length: {len(body)}"]
    for own in ([], [f"Authorization: Bearer {host.placeholder}"]):
        host.answer(b"fine")
        await host.ask(get(*note, *own, method=f"PUT /{host.placeholder}") + body)
        assert host.heard[-1].count(VALUE.encode()) == 1
        assert host.heard[-1].count(body) == 3


async def test_another_host_gets_the_placeholder_and_its_tls_is_passed_through(host: Host) -> None:
    host.answer(f"I got {VALUE}".encode())
    answer = await host.ask(get(f"Authorization: Bearer {host.placeholder}", host="other.example"), "other.example")
    assert answer.endswith(VALUE.encode())  # it is unread: what this server knows, it knows from elsewhere
    assert f"Authorization: Bearer {host.placeholder}".encode() in host.heard[0]
    assert host.visits[0].credential == ""


async def test_http_without_tls_never_gets_the_value(host: Host) -> None:
    for tunnel in (False, True):
        reader, writer = await asyncio.open_connection("127.0.0.1", host.proxy)
        place = f"api.example:{host.port}"
        if tunnel:
            writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(get())
        else:
            writer.write(f"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        await asyncio.wait_for(reader.read(-1), 20)
        writer.close()
        await asyncio.wait_for(host.ended.wait(), 20)
        host.ended.clear()
    assert host.heard == []
    assert "only TLS" in host.visits[1].refused


FORMS = {
    "plain": VALUE,
    "percent": quote(VALUE, safe=""),
    "small percent": quote(VALUE, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "json": json.dumps(VALUE).replace("/", "\\/"),
    "basic": base64.b64encode(f"user:{VALUE}".encode()).decode(),
    "base64 in the middle": base64.b64encode(f"a{VALUE}bc".encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"ab{VALUE}".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_the_value_is_replaced_in_an_answer_however_it_is_cut(host: Host, form: str, size: int) -> None:
    body = f"gh ghp_ {FORMS[form]} ghp_qL7{FORMS[form]}ghp_".encode()
    head = f"HTTP/1.1 200 {VALUE}\r\nX-Echo: {VALUE}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    host.answers.append([head, *(body[at : at + size] for at in range(0, len(body), size))])
    answer = await host.ask(get())
    for one in FORMS.values():
        assert one.encode() not in answer
    assert VALUE[4:] not in base64.b64decode(answer.split(b" ")[-2] + b"==", validate=False).decode("latin-1")
    assert f"X-Echo: {host.placeholder}".lower().encode() in answer.lower()
    assert len(answer.partition(b"\r\n\r\n")[2]) == len(body)


async def test_an_answer_in_chunks_is_searched_across_them_and_what_begins_like_the_value_arrives(host: Host) -> None:
    halves = [f"{len(one):x}\r\n{one}\r\n".encode() for one in (f"x{VALUE[:9]}", f"{VALUE[9:]}y ghp_q")]
    host.answers.append([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *halves, b"0\r\n\r\n"])
    answer = await host.ask(get())
    body = b"".join(answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2])
    assert body == f"x{host.placeholder}y ghp_q".encode()


async def test_an_answer_that_is_encoded_all_the_same_is_refused(host: Host) -> None:
    host.answer(gzip.compress(VALUE.encode()), "Content-Encoding: gzip")
    answer = await host.ask(get("Accept-Encoding: gzip", "Range: bytes=0-3"))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"encoding gzip" in answer
    assert b"\r\naccept-encoding: identity\r\n" in host.heard[0].lower()
    assert b"range" not in host.heard[0].lower()
    host.answer(b"", "Content-Encoding: gzip", status="304 Not Modified")
    assert (await host.ask(get())).startswith(b"HTTP/1.1 304 ")


@pytest.mark.parametrize("name", [VALUE.replace("/", "").replace("+", ""), quote(VALUE, safe="")])
async def test_the_value_in_the_name_of_a_header_is_refused(host: Host, name: str) -> None:
    host.lent.take(host.credential.lent_as, unquote(name))
    host.answer(b"", f"X-{name}: 1")
    answer = await host.ask(get())
    assert name.lower().encode() not in answer.lower()
    assert answer.startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "said",
    [f"2x0 {VALUE}\r\n\r\n", f"200 OK\r\nX y: {VALUE}\r\n\r\n",
     f"200 OK\r\nContent-Encoding: {VALUE}\r\nContent-Length: 0\r\n\r\n",
     f"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{VALUE}\r\n"],
)  # fmt: skip
async def test_an_answer_that_is_refused_is_quoted_without_the_value(host: Host, said: str) -> None:
    """What is refused is said to the command, and is in the records."""
    host.answers.append([f"HTTP/1.1 {said}".encode()])
    answer = (await host.ask(get())).decode()
    assert host.visits[0].refused
    for part in (VALUE[at : at + 8] for at in range(4, len(VALUE) - 8)):
        assert part not in answer + host.visits[0].refused


async def test_a_connection_carries_several_requests_to_the_one_host(host: Host) -> None:
    for number in range(3):
        host.answer(b"n%d" % number)
    async with host.tls() as (reader, writer):
        for number in range(3):
            body = b"" if number != 1 else b"abc"
            length = [f"Content-Length: {len(body)}"] if body else []
            writer.write(get(*length, last=number == 2, method="POST /" if body else "GET /") + body)
            await reader.readuntil(b"n%d" % number)
        assert await asyncio.wait_for(reader.read(-1), 20) == b""
    assert host.connections == 1
    assert [VALUE.encode() in one for one in host.heard] == [True] * 3
    assert host.heard[1].endswith(b"\r\n\r\nabc")


async def test_a_client_that_waits_to_be_told_to_go_on_is_told(host: Host) -> None:
    host.answer(b"fine")
    async with host.tls() as (reader, writer):
        writer.write(get("Expect: 100-continue", "Content-Length: 3", method="POST /"))
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.write(b"abc")
        assert (await asyncio.wait_for(reader.read(-1), 20)).endswith(b"fine")
    assert host.heard[0].endswith(b"\r\n\r\nabc")
    assert b"expect" not in host.heard[0].lower()


@pytest.mark.parametrize("stays", [False, True])
async def test_an_answer_before_the_end_of_a_request_arrives_also_if_the_server_reads_no_more(
    host: Host, stays: bool
) -> None:
    full, done = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await full.wait()
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly")
        if stays:
            await done.wait()

    async def upload(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x" * (1 << 16))
                try:
                    await asyncio.wait_for(writer.drain(), 0.5)
                except TimeoutError:
                    full.set()  # nobody reads

    host.serves = serve
    async with host.tls() as (reader, writer):
        writer.write(get("Content-Length: 99999999999", method="PUT /"))
        sending = asyncio.ensure_future(upload(writer))
        try:
            assert (await asyncio.wait_for(reader.readuntil(b"early"), 20)).startswith(b"HTTP/1.1 413 ")
        finally:
            done.set()
            sending.cancel()
            await asyncio.wait([sending])
            writer.transport.abort()


async def test_an_answer_without_a_length_is_carried_to_its_end(host: Host) -> None:
    host.answers.append([b"HTTP/1.0 200 OK\r\n\r\n", b"until the end\n"])
    answer = await host.ask(get(last=False))
    assert b"until the end" in answer
    assert host.visits[0].refused == ""


@pytest.mark.parametrize(
    "request_",
    [get(host="other.example"), get("Host: other.example"), get(method="GET https://other.example/"),
     get(method="CONNECT other.example:443"),
     get("Content-Length: 3", "Transfer-Encoding: chunked", method="POST /") + b"zz\r\n"],
)  # fmt: skip
async def test_a_request_for_another_host_or_of_two_lengths_never_gets_the_value(host: Host, request_: bytes) -> None:
    async with host.tls() as (reader, writer):
        writer.write(request_)
        writer.write_eof() if writer.can_write_eof() else None
        answer = await asyncio.wait_for(reader.read(-1), 20)
    assert host.heard == []
    assert host.visits[0].refused
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(f"Shellback: {host.visits[0].refused}\n".encode())


async def test_what_follows_a_request_is_read_as_the_next_one(host: Host) -> None:
    host.answer(b"one")
    host.answer(b"two")
    smuggled = get(host="other.example")
    answer = await host.ask(get("Content-Length: 0", last=False) + smuggled)
    assert b"one" in answer
    assert b"names 'other.example'" in answer
    assert len(host.heard) == 1


@pytest.mark.parametrize("certified", ["wrong.example", "ours"])
async def test_a_server_that_does_not_verify_gets_nothing_and_the_client_the_reason(
    host: Host, certified: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if certified == "ours":
        # Its authority is ours, which only sandboxes trust.
        monkeypatch.setattr(authority, "SYSTEM", (str(host.trusts.parent / authority.CERTIFICATE),))
    else:
        host.certified = certified
    host.answer(b"never")
    answer = await host.ask(get())
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"the certificate of api.example is not accepted: " in answer
    assert host.heard == []


async def test_what_the_machine_trusts_anew_is_trusted_without_a_new_proxy(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = authority.trusted().read_bytes()
    changing = tmp_path / "changing.pem"
    monkeypatch.setattr(authority, "SYSTEM", (str(changing),))
    changing.write_bytes((host.trusts.parent / authority.CERTIFICATE).read_bytes())
    host.answer(b"fine")
    assert b"is not accepted" in await host.ask(get())
    changing.write_bytes(changing.read_bytes() + world)
    assert (await host.ask(get())).endswith(b"fine")


async def test_a_client_that_does_not_trust_us_is_told_about_in_the_records(host: Host) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with host.tls(trusts=Path(authority.SYSTEM[0])):
            pass
    assert "take api.example out of the hosts of the credential hub" in host.visits[0].refused
    assert host.heard == []


async def test_a_value_that_is_lent_late_is_waited_for_and_one_that_is_not_is_missed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.lent = Lent()
    host.answer(b"fine")
    async with host.tls() as (reader, writer):
        writer.write(get())
        host.lent.take(host.credential.lent_as, VALUE)
        assert (await asyncio.wait_for(reader.read(-1), 20)).endswith(b"fine")
    monkeypatch.setattr(injecting, "LEND_S", 0.1)
    host.lent = Lent()
    # Of a worker whose file has this name for another host: what began with the former file never gets it.
    host.lent.take(replace(host.credential, hosts=("other.example",)).lent_as, VALUE)
    assert b"no worker has lent its value" in await host.ask(get())
    assert len(host.heard) == 1


async def test_a_value_in_a_file_is_read_for_each_connection(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "token"
    host.credential = replace(host.credential, file=str(file))
    for value in (VALUE, VALUE[::-1]):
        file.write_text(f"{value}\n")
        host.answer(b"fine")
        await host.ask(get())
        assert f"Bearer {value}".encode() in host.heard[-1]
    file.unlink()
    assert b"make it a file that the worker may read" in await host.ask(get())


async def test_the_placeholder_of_a_former_value_of_another_shape_still_stands_for_the_value(host: Host) -> None:
    """A token that is renewed may have other signs, and a command that runs has the placeholder that it began with."""
    former = host.credential.stand_in(KEY, "eyJhbGciOi.JSUz-I1NiIsInR5cCI6.abc")
    pair, real = (base64.b64encode(f"me:{one}".encode()).decode() for one in (former, VALUE))
    strange = host.credential.stand_in("another", "eyJhbGciOi.JSUz-I1NiIsInR5cCI6.abc")
    for given, wanted in (
        (f"Bearer {former}", f"Bearer {VALUE}"),
        (former, VALUE),
        (f"Basic {pair}", f"Basic {real}"),
        (f"Bearer {strange}", f"Bearer {strange}"),
    ):
        host.answer(b"fine")
        await host.ask(get(f"Authorization: {given}"))
        assert f"\r\nauthorization: {wanted}\r\n".encode() in host.heard[-1]


async def test_a_client_that_says_nothing_to_a_host_with_a_credential_keeps_no_place(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellback.exec.proxy.visit.HEAD_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", host.proxy)
    writer.write(f"CONNECT api.example:{host.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 20) == b""
    await asyncio.wait_for(host.ended.wait(), 20)
    writer.close()
    assert host.visits[-1].refused == "nothing came for 0.3 s"


async def test_a_server_that_ends_an_idle_connection_ends_it_for_the_client(host: Host) -> None:
    host.answer(b"once")
    async with host.tls() as (reader, writer):
        writer.write(get(last=False))
        assert (await asyncio.wait_for(reader.read(-1), 20)).endswith(b"once")
    assert host.visits[0].refused == ""
