"""One connection from a sandbox: SOCKS5, an HTTP tunnel, or one HTTP request.

What goes through a tunnel is read as far as it names a server: that has to be the host that was allowed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Final

import h11

from shellback.exec.proxy import hello
from shellback.exec.proxy.reach import Deny, Goal, Reached, Refused, Resolve, goal, reach
from shellback.exec.proxy.requests import (
    HEAD_BYTES,
    HEAD_S,
    PORTS,
    explained,
    host_in,
    passed_on,
    path_inside,
    place_of,
)
from shellback.exec.proxy.sides import Side
from shellback.exec.wire.credentials import Credential
from shellback.exec.wire.fields import SESSION_ID
from shellback.exec.wire.hosts import Entry, Hosts, canonical, is_address, number, split

LEFT_S: Final = 60.0
"""How long a server may say nothing once the client has ended."""
_PIECES: Final = 64
"""In so many pieces the head of a connection may come."""
_SOCKS: Final = 5
_OK, _DENIED, _UNREACHABLE, _UNKNOWN = 0, 2, 4, 7
_NAME, _IPV4, _IPV6 = 3, 1, 4
_PASSWORD: Final = 2
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NOWHERE: Final = bytes([1, 0, 0, 0, 0, 0, 0])
_URL: Final = re.compile(r"http://([^/?#@\\]+)([/?].*)?", re.IGNORECASE)
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*(?:\s|$)")
_VERSION: Final = re.compile(rb"\sHTTP/", re.IGNORECASE)
_STRANGE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x70"
"""Fatal: unrecognized_name; RFC 8446, 6."""


@dataclass(slots=True)
class Facts:
    """What is known about a connection; `up` and `down` are bytes. `session` is what the program says of itself.

    `decision` is `allow` or `deny`, and `rule` what decided so: an entry of the list, a rule, or a request. Without
    both, nothing has allowed it. `limit` is the setting that has cut it.
    """

    session: str = ""
    host: str = ""
    port: int = 0
    address: str = ""
    decision: str = ""
    rule: str = ""
    refused: str = ""
    up: int = 0
    down: int = 0
    credential: str = ""
    limit: str = ""
    counted: Callable[[int, int], None] | None = None
    """Told of bytes as they flow."""

    def count(self, up: int = 0, down: int = 0) -> None:
        """Add these bytes."""
        self.up += up
        self.down += down
        if self.counted is not None:
            self.counted(up, down)

    def known(self) -> dict[str, str | int]:
        """What a record has."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "counted"}


Inject = Callable[[Credential, Goal, tuple[Side, Side], bytes, Facts], Awaitable[None]]
"""Serves TLS to a host with a credential, between client and server; gets what the client has said, and the facts."""


class Visit:
    """Serves one connection; `begun` is called once an allowed host is reached.

    `allow` decides about other hosts, for the session that the program names; `deny` goes before it, and the list.
    """

    def __init__(
        self,
        hosts: Hosts,
        resolve: Resolve,
        client: Side,
        begun: Callable[[Facts], None],
        allow: Callable[[str, str, int], Awaitable[Entry]] | None = None,
        inject: Inject | None = None,
        deny: Deny | None = None,
    ) -> None:
        self.facts = Facts()
        self._hosts = hosts
        self._resolve = resolve
        self._client = client
        self._begun = begun
        self._allow = allow
        self._inject = inject
        self._deny = deny
        self._reached: Reached | None = None
        self._pieces = 0

    async def serve(self, full: str = "", status: int = 503) -> None:
        """Serve until one side has ended; what was refused is in `facts`. `full`: why all is refused, with `status`."""
        try:
            async with asyncio.timeout(HEAD_S):
                first = await self._client.read()
            if full:
                self._say(status, Refused(full))
                self.facts.refused = full
            elif first[:1] == bytes([_SOCKS]):
                await self._socks(first)
            elif first:
                await self._http(first)
        except Refused as refusal:
            self.facts.refused = str(refusal)
        except TimeoutError:
            self.facts.refused = f"nothing came for {HEAD_S:g} s"
        except h11.ProtocolError as error:
            self.facts.refused = f"no HTTP request: {error}"
        except OSError:
            pass  # One side has gone; the other one goes with it.
        except Exception as error:  # noqa: BLE001 - it is about this connection only
            self.facts.refused = f"the proxy failed: {type(error).__name__}"
        finally:
            if self._reached is not None:
                self._reached.side.close()

    # -- ways in ---------------------------------------------------------------------------------

    async def _socks(self, data: bytes) -> None:
        data = await self._more(data, lambda got: len(got) >= 2 and len(got) >= 2 + got[1])
        ways, data = data[2 : 2 + data[1]], data[2 + data[1] :]
        if _PASSWORD in ways:
            # RFC 1929. It is no secret, but tells the session.
            self._client.tell(bytes([_SOCKS, _PASSWORD]))
            data = await self._more(data, lambda got: len(got) >= 2 and len(got) > 2 + got[1] + _last(got))
            self._named(data[2 : 2 + data[1]])
            self._client.tell(b"\x01\x00")
            data = data[3 + data[1] + _last(data) :]
        elif 0 in ways:
            self._client.tell(bytes([_SOCKS, 0]))
        else:
            self._client.tell(bytes([_SOCKS, 0xFF]))
            raise Refused("SOCKS with another kind of login")
        data = await self._more(data, lambda got: len(got) >= 7 and len(got) >= _socks_size(got))
        size = _socks_size(data)
        if data[:2] != bytes([_SOCKS, 1]):
            self._client.tell(bytes([_SOCKS, _UNKNOWN, 0]) + _NOWHERE)
            raise Refused("SOCKS asks for something else than a connection, such as UDP")
        kind, host = data[3], data[4 : size - 2]
        name = host[1:].decode("latin-1") if kind == _NAME else str(ipaddress.ip_address(bytes(host)))
        try:
            to, reached = await self._reach(
                name, str(int.from_bytes(data[size - 2 : size])), bytes([_SOCKS, _OK, 0]) + _NOWHERE
            )
        except Refused as refusal:
            self._client.tell(bytes([_SOCKS, _UNREACHABLE if refusal.unreachable else _DENIED, 0]) + _NOWHERE)
            raise
        await self._tunnel(to, reached, data[size:])

    async def _http(self, data: bytes, tunnel: tuple[Goal, Reached] | None = None) -> None:
        """Carry out one request; inside of a `tunnel`, one that goes to its host."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        if data:  # without, it is the end of the client
            parser.receive_data(data)
        try:
            asked = await self._event(parser)
            if not isinstance(asked, h11.Request):
                return
            connects = asked.method == b"CONNECT" and tunnel is None
            if tunnel is None:
                self._named(_user(asked))
            where, path = (
                (_authority(asked.target, ""), b"") if connects else _asked(asked, tunnel[0] if tunnel else None)
            )
            if connects:
                await self._event(parser)
            to, reached = tunnel or await self._reach(*where, _ESTABLISHED if connects else b"")
        except h11.ProtocolError as error:
            refusal = Refused(f"no HTTP request: {error}")
            self._say(400, refusal)
            raise refusal from None
        except Refused as refusal:
            self._say(502 if refusal.unreachable else 403, refusal)
            raise
        if connects:
            await self._tunnel(to, reached, parser.trailing_data[0])
        else:
            await self._ask(parser, asked, path, to, reached)

    async def _ask(self, parser: h11.Connection, asked: h11.Request, path: bytes, to: Goal, reached: Reached) -> None:
        upstream = h11.Connection(h11.CLIENT)
        request = h11.Request(
            method=asked.method,
            target=path,
            headers=[place_of(to, "http"), *passed_on(asked.headers), (b"Connection", b"close")],
        )

        async def body() -> AsyncIterator[bytes]:
            yield upstream.send(request) or b""
            if parser.they_are_waiting_for_100_continue:
                self._client.tell(b"HTTP/1.1 100 Continue\r\n\r\n")
            while isinstance(event := await self._event(parser, None), h11.Data | h11.EndOfMessage):
                yield upstream.send(event if isinstance(event, h11.Data) else h11.EndOfMessage()) or b""
                if isinstance(event, h11.EndOfMessage):
                    break
            # What follows reaches nobody. Servers take the end of the stream for that of the client.
            while await self._client.read():
                pass

        await self._both(reached, body(), rest=False)

    async def _tunnel(self, to: Goal, reached: Reached, first: bytes) -> None:
        async def named() -> AsyncIterator[bytes]:
            yield await self._checked(to, first)

        credential = self._hosts.credential(to.host, to.port)
        if to.port == PORTS["http"]:
            await self._http(first, (to, reached))
        elif credential is None or self._inject is None:
            await self._both(reached, named(), rest=True)
        elif data := await self._checked(to, first or await self._said_first()):
            if data[0] != hello.RECORD:
                raise Refused(f"only TLS goes to {to.host}:{to.port}, which has the credential {credential.name}")
            await self._inject(credential, to, (self._client, reached.side), data, self.facts)

    async def _said_first(self) -> bytes:
        """What a client of TLS says first: at once, and nothing else would end the connection of a silent one."""
        try:
            async with asyncio.timeout(HEAD_S):
                return await self._client.read()
        except TimeoutError:
            raise Refused(f"nothing came for {HEAD_S:g} s") from None

    async def _checked(self, to: Goal, data: bytes) -> bytes:
        """What a client says first, once it names the host that was allowed, or is no HTTP; nothing if it has ended."""
        if not (data := data or await self._client.read()):
            return data
        try:
            async with asyncio.timeout(HEAD_S):
                if data[0] == hello.RECORD:
                    return await self._hello(to, data)
                if to.port == PORTS["https"]:
                    raise Refused(f"only TLS goes to port {to.port}")
                while not _names(data, to):
                    data += await self._due()
        except TimeoutError:
            raise Refused(f"the first message was not complete after {HEAD_S:g} s") from None
        except (hello.Unreadable, ValueError) as error:
            self._client.tell(_ALERT)
            raise Refused(str(error)) from None
        return data

    async def _hello(self, to: Goal, data: bytes) -> bytes:
        while (name := hello.server_name(data)) is None:
            data += await self._due()
        if (canonical(name) if name else "") != ("" if is_address(to.host) else to.host):
            raise hello.Unreadable(f"TLS names {name[:80]!r}, not {to.host}")
        return data

    async def _due(self) -> bytes:
        more = await self._client.read()
        self._pieces += 1
        if not more or self._pieces > _PIECES:
            raise Refused("the first message ends in the middle" if not more else "it comes in too many pieces")
        return more

    def _named(self, user: bytes) -> None:
        name = user.decode("latin-1")
        if SESSION_ID.match(name):
            self.facts.session = name

    # -- parts -----------------------------------------------------------------------------------

    async def _reach(self, host: str, port: str, answer: bytes) -> tuple[Goal, Reached]:
        """Reach a host that is allowed; the client is told by this answer, and goes on while the record is made."""
        self.facts.host = host[:255]
        with contextlib.suppress(ValueError):
            self.facts.port = number(port)
        try:
            to = await goal(
                self._hosts, host, port, self._allow and partial(self._allow, self.facts.session), self._deny
            )
        except Refused as refusal:
            self.facts.decision, self.facts.rule = "deny" if refusal.by else "", refusal.by
            raise
        self.facts.host, self.facts.decision, self.facts.rule = to.host, "allow", to.by.text
        self._reached = reached = await reach(self._hosts, to, self._resolve)
        self.facts.address = reached.address
        self._client.tell(answer)
        self._begun(self.facts)
        return to, reached

    async def _both(self, reached: Reached, up: AsyncIterator[bytes], *, rest: bool) -> None:
        """Carry bytes both ways until the server has ended, or one side fails.

        With `rest`, all that the client says after `up`, and its end.
        """

        async def send() -> None:
            async for data in up:
                self._sent(len(data))
                await reached.side.write(data)
            if rest:
                await self._client.carry(reached.side, self._sent)
                reached.side.end()
            before = -1
            while before != self.facts.down:
                before = self.facts.down
                await asyncio.sleep(LEFT_S)
            raise Refused(f"the client has ended, and the server said nothing for {LEFT_S:g} s")

        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(send())
                await reached.side.carry(self._client, self._got)
                self._client.end()
                sending.cancel()
        except* (Refused, h11.ProtocolError) as wrong:
            raise wrong.exceptions[0] from None
        except* OSError:
            pass

    def _sent(self, size: int) -> None:
        self.facts.count(up=size)

    def _got(self, size: int) -> None:
        self.facts.count(down=size)

    async def _event(self, parser: h11.Connection, patience_s: float | None = HEAD_S) -> object:
        if (event := parser.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(patience_s):
                while (event := parser.next_event()) is h11.NEED_DATA:
                    parser.receive_data(await self._client.read())
        return event

    async def _more(self, data: bytes, enough: Callable[[bytes], bool]) -> bytes:
        async with asyncio.timeout(HEAD_S):
            while not enough(data):
                data += await self._due()
        return data

    def _say(self, status: int, refusal: Refused) -> None:
        text, body = explained(refusal)
        self._client.tell(
            f"HTTP/1.1 {status} {text}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )


def _last(data: bytes) -> int:
    """The length of the password in a login of SOCKS, as far as it has come."""
    after = 2 + data[1]
    return data[after] if len(data) > after else 0


def _user(asked: h11.Request) -> bytes:
    """The user of the proxy whom a request names."""
    given = next((value for key, value in asked.headers if key == b"proxy-authorization"), b"")
    kind, _, word = given.partition(b" ")
    with contextlib.suppress(ValueError):
        return base64.b64decode(word, validate=True).partition(b":")[0] if kind.lower() == b"basic" else b""
    return b""


def _socks_size(data: bytes) -> int:
    """The length of a SOCKS request, from its first five bytes."""
    sizes = {_IPV4: 4, _IPV6: 16, _NAME: 1 + data[4]}
    if data[3] not in sizes:
        raise Refused("SOCKS names no address")
    return 4 + sizes[data[3]] + 2


def _authority(target: bytes, default: str) -> tuple[str, str]:
    try:
        return split(target.decode("ascii"), default=default)
    except ValueError:
        raise Refused(f"{target[:80].decode('latin-1')!r} is no host and port") from None


def _asked(asked: h11.Request, inside: Goal | None) -> tuple[tuple[str, str], bytes]:
    """Host and port, and path, of a request; of one in a tunnel the host has to be the tunnel's."""
    target = asked.target.decode("latin-1")
    if inside is None:
        url = _URL.fullmatch(target)
        if url is None:
            raise Refused(f"{target[:80]!r} is no http:// address: for https:// a client asks for a tunnel (CONNECT)")
        path = url[2] or "/"
        host, port = _authority(url[1].encode("latin-1"), "80")
        if port == str(PORTS["https"]):
            raise Refused(f"only TLS goes to port {port}")
        return (host, port), (path if path.startswith("/") else f"/{path}").encode("latin-1")
    path_inside(asked.target, host_in(asked.headers), inside)
    return (inside.host, str(inside.port)), asked.target


def _names(data: bytes, to: Goal) -> bool:
    """Whether these first bytes are a request that names the host, or no HTTP; False as long as that is not known.

    What servers could read in different ways is refused.
    """
    line, whole, _ = data.lstrip().partition(b"\n")
    if not _METHOD.match(line) or (whole and not _VERSION.search(line)):
        return True
    if _STRANGE.search(data.partition(b"\r\n\r\n")[0]):
        raise Refused("no HTTP request: a line is folded, or ends with a line feed only")
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    parser.receive_data(data)
    asked = parser.next_event()
    if not isinstance(asked, h11.Request):
        return False
    path_inside(asked.target, host_in(asked.headers), to)
    return True
