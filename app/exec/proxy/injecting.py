"""Requests to a host that has a credential: the proxy ends TLS, puts the value in, and keeps it out of the answer.

A connection carries as many requests as both sides want, one after the other: git and npm would otherwise begin TLS
anew, twice, for each file. All of them are for the one host that was allowed, and each is written anew.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import h11

from shellback.exec.proxy.authority import Authority, NoTrust
from shellback.exec.proxy.masking import Mask
from shellback.exec.proxy.reach import Goal, Refused
from shellback.exec.proxy.requests import (
    HEAD_BYTES,
    HEAD_S,
    HOPS,
    Headers,
    explained,
    host_in,
    passed_on,
    path_inside,
    place_of,
)
from shellback.exec.proxy.sides import Side
from shellback.exec.proxy.tls import Tls
from shellback.exec.wire.credentials import BASIC, BEARER, Credential, Unusable
from shellback.exec.wire.ring import Ring

if TYPE_CHECKING:
    from shellback.exec.proxy.visit import Facts

IDLE_S: Final = 60.0
"""How long a client may say nothing between requests, and a server once its client has ended."""
LEND_S: Final = 10.0
"""How long a request waits for a value: after the death of a supervisor, the worker lends it anew."""
_KEPT_BYTES: Final = 4 << 20
_WHOLE: Final = frozenset({b"accept-encoding", b"range", b"if-range"})
"""Not asked of the server: an answer is searched, so it comes plain and as a whole."""
_DROPPED: Final = HOPS - {b"connection"} | {b"transfer-encoding"}
_BASIC: Final = b"basic "


class Lent:
    """The values that workers lend, each by what it is lent as; in memory only."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._came = Ring()

    def take(self, name: str, value: str) -> None:
        """Have this value from now on."""
        self._values[name] = value
        self._came.ring()

    async def of(self, credential: Credential) -> str:
        """The value of a credential as it is now; raises Refused."""
        if credential.file:
            try:
                return await asyncio.to_thread(credential.current)
            except Unusable as error:
                raise Refused(f"credential {credential.name}: {error}", unreachable=True) from None
        try:
            async with asyncio.timeout(LEND_S):
                while credential.lent_as not in self._values:
                    await self._came.next.wait()
        except TimeoutError:
            raise Refused(
                f"credential {credential.name}: no worker has lent its value since the supervisor began: start one",
                unreachable=True,
            ) from None
        return self._values[credential.lent_as]


class Injector:
    """Serves connections to hosts that have a credential."""

    def __init__(self, authority: Authority, lent: Lent) -> None:
        self._authority = authority
        self._lent = lent
        # Once it has had a block of this size back, glibc keeps as much for the next one, see mallopt(3). Otherwise
        # each piece of an answer may take pages from the kernel and return them: up to a third of all processor time.
        bytes(_KEPT_BYTES)

    def lend(self, name: str, text: str) -> None:
        """Have a value that was sealed as this text; one that cannot be opened is missed by whoever asks for it."""
        with contextlib.suppress(OSError, ValueError):
            self._lent.take(name, self._authority.opened(text))

    async def serve(
        self, key: str, credential: Credential, to: Goal, sides: tuple[Side, Side], first: bytes, facts: Facts
    ) -> None:
        """Serve a client of the instance `key` that has begun TLS with `first`; `sides` are its own and the server's.

        Raises Refused, and OSError if a side has gone.
        """
        facts.credential = credential.name
        try:
            context = self._authority.towards_clients(to.host)
            towards_servers = self._authority.towards_servers
        except (OSError, ValueError, NoTrust) as error:
            raise Refused(f"the proxy has no authority ({error}): restart the worker") from None
        client = Tls(sides[0], context, first=first)
        exchanges = _Exchanges(client, to, facts, credential.name)
        try:
            async with asyncio.timeout(HEAD_S):
                await client.greet()
            try:
                value = await self._lent.of(credential)
                server = Tls(sides[1], towards_servers, verifies=to.host)
                await _greeted(server, to)
            except Refused as refusal:
                await exchanges.refuse(refusal)
                raise
            await exchanges.carry(server, _Put(credential, value, key))
        except ssl.SSLError as error:
            raise Refused(
                f"TLS with the client failed ({error.reason}): if it trusts certain certificates only, take {to.host}"
                f" out of the hosts of the credential {credential.name}"
            ) from None
        finally:
            await exchanges.stop()


async def _greeted(server: Tls, to: Goal) -> None:
    try:
        async with asyncio.timeout(HEAD_S):
            await server.greet()
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"the certificate of {to.host} is not accepted: {error.verify_message}", unreachable=True
        ) from None
    except (OSError, TimeoutError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "no answer"
        raise Refused(f"TLS with {to.host}:{to.port} failed ({why})", unreachable=True) from None


class _Put:
    """What is put into a request, and in place of what."""

    def __init__(self, credential: Credential, value: str, key: str) -> None:
        self.value, self.placeholder = value, credential.stand_in(key, value)
        self._stood_in = partial(credential.stood_in, key)
        self._name = credential.header.encode()
        self._value, self._placeholder = value.encode(), self.placeholder.encode()
        self._new = self._value
        if credential.kind == BEARER:
            self._new = b"Bearer " + self._value
        elif credential.kind == BASIC:
            self._new = b"Basic " + base64.b64encode(f"{credential.user}:{value}".encode())

    def into(self, headers: Headers) -> Headers:
        """The headers with the value: in its header alone, in place of the placeholder, or if there is no such header.

        Elsewhere, such as in what an object store keeps with a file, the value could be read by others.
        """
        name = self._name.lower()
        if not any(key == name for key, _ in headers):
            return [*headers, (self._name, self._new)]
        return [(key, self._with_value(value) if key == name else value) for key, value in headers]

    def _with_value(self, text: bytes) -> bytes:
        if text[: len(_BASIC)].lower() == _BASIC:
            with contextlib.suppress(binascii.Error):
                pair = base64.b64decode(text[len(_BASIC) :].strip(), validate=True)
                return b"Basic " + base64.b64encode(self._replaced(pair, b":"))
        return self._replaced(text, b" ")

    def _replaced(self, text: bytes, between: bytes) -> bytes:
        """With the value in place of the placeholder, or of a word that is one of a former value."""
        if self._placeholder in text:
            return text.replace(self._placeholder, self._value)
        words = text.split(between, 2)
        return between.join(self._value if self._stood_in(word.decode("latin-1")) else word for word in words)


class _Ahead:
    """One read that goes on, whoever waits for it: none is cancelled, so nothing that has come is lost."""

    def __init__(self, read: Callable[[], Awaitable[bytes]]) -> None:
        self._read = read
        self._task: asyncio.Future[bytes] | None = None

    def begun(self) -> asyncio.Future[bytes]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
        return self._task

    async def take(self) -> bytes:
        data = await asyncio.shield(self.begun())
        self._task = None
        return data

    async def stop(self) -> None:
        """End the read, before anybody closes its socket."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()  # nobody asks for it any more


class _Exchanges:
    """The requests of one connection, and their answers."""

    def __init__(self, client: Tls, to: Goal, facts: Facts, name: str) -> None:
        self._client = client
        self._to = to
        self._facts = facts
        self._name = name
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._said = _Ahead(client.read)

    async def stop(self) -> None:
        """End what still reads."""
        await self._said.stop()

    async def refuse(self, refusal: Refused) -> None:
        """Answer the first request with the reason."""
        if await self._next() is not None:
            await self._say(refusal)

    async def carry(self, server: Tls, put: _Put) -> None:
        """Carry requests and answers until one side has ended, or they can no longer be told apart; raises Refused."""
        upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        answers = _Ahead(server.read)
        mask = Mask(put.value, put.placeholder)
        states = {h11.DONE}
        try:
            while states == {h11.DONE} and (asked := await self._next(answers)) is not None:
                refusal = None
                try:
                    request = self._request(asked, put)
                    async with asyncio.TaskGroup() as group:
                        sending = group.create_task(self._send(request, upstream, server))
                        await self._receive(asked, upstream, answers, mask)
                        sending.cancel()
                except* (Refused, h11.ProtocolError) as wrong:
                    refusal = _first(wrong)
                except* OSError:
                    pass  # One side has gone; the states tell.
                if refusal is not None:
                    await self._say(refusal)
                    raise refusal
                states = {self._parser.our_state, self._parser.their_state, upstream.our_state, upstream.their_state}
                if states == {h11.DONE}:
                    self._parser.start_next_cycle()
                    upstream.start_next_cycle()
            await self._client.end()
        finally:
            await answers.stop()

    async def _next(self, answers: _Ahead | None = None) -> h11.Request | None:
        """The next request, as `_asked` has it; one that is none is answered, and raises Refused."""
        try:
            return await self._asked(answers)
        except h11.ProtocolError as error:
            refusal = Refused(f"no HTTP request: {error}")
            await self._say(refusal)
            raise refusal from None

    async def _asked(self, answers: _Ahead | None = None) -> h11.Request | None:
        """The next request; None if the client ends or says nothing for long, or the server ends first."""
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            waits = {one.begun() for one in (self._said, answers) if one is not None}
            done, _ = await asyncio.wait(waits, timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED)
            if done != {self._said.begun()}:
                return None
            self._parser.receive_data(await self._said.take())
        return event if isinstance(event, h11.Request) else None

    def _request(self, asked: h11.Request, put: _Put) -> h11.Request:
        headers = [(key, value) for key, value in passed_on(asked.headers) if key not in _WHOLE]
        return h11.Request(
            method=asked.method,
            target=path_inside(asked.target, host_in(asked.headers), self._to),
            headers=[place_of(self._to, "https"), *put.into(headers), (b"Accept-Encoding", b"identity")],
        )

    async def _send(self, request: h11.Request, upstream: h11.Connection, server: Tls) -> None:
        async def pass_on(event: h11.Event) -> None:
            data = upstream.send(event) or b""
            self._facts.count(up=len(data))
            # A server may answer before it has everything, and hear no more; what it has answered is still there.
            with contextlib.suppress(OSError):
                await server.write(data)

        await pass_on(request)
        if self._parser.they_are_waiting_for_100_continue:
            await self._give(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await self._heard(), h11.Data):
            await pass_on(event)
        await pass_on(h11.EndOfMessage())
        data = await self._said.take()
        self._parser.receive_data(data)
        before = -1
        while not data and before != self._facts.down:
            before = self._facts.down
            await asyncio.sleep(IDLE_S)
        if not data:
            raise Refused(f"the client has ended, and the server said nothing for {IDLE_S:g} s")

    async def _heard(self) -> object:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._said.take())
        return event

    async def _receive(self, asked: h11.Request, upstream: h11.Connection, answers: _Ahead, mask: Mask) -> None:
        while True:
            try:
                while (event := upstream.next_event()) is h11.NEED_DATA:
                    upstream.receive_data(await answers.take())
            except (h11.RemoteProtocolError, ssl.SSLError) as error:
                # What follows a colon is what the server said, with the value perhaps.
                why = str(error).partition(":")[0]
                raise Refused(f"{self._to.host} does not answer with HTTP: {why}", unreachable=True) from None
            if isinstance(event, h11.Response):
                await self._give(self._response(event, asked, mask))
            elif isinstance(event, h11.Data):
                await self._data(mask.piece(bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._data(mask.rest())
                await self._give(h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise Refused(f"{self._to.host} does not answer with HTTP", unreachable=True)

    def _response(self, event: h11.Response, asked: h11.Request, mask: Mask) -> h11.Response:
        coded = [value for key, value in event.headers if key == b"content-encoding" and value.lower() != b"identity"]
        if coded and asked.method != b"HEAD" and event.status_code not in {204, 304}:
            shown = mask.whole(coded[0])[:20].decode("latin-1")
            raise Refused(
                f"{self._to.host} answers in the encoding {shown}, which it was not asked for and in which the value of"
                f" {self._name} cannot be found",
                unreachable=True,
            )
        names = b"\n".join(key for key, _ in event.headers)
        if mask.in_small(names):
            raise Refused(f"{self._to.host} answers with the value of {self._name} in a name", unreachable=True)
        kept = [(key, mask.whole(value)) for key, value in event.headers if key not in _DROPPED]
        return h11.Response(status_code=event.status_code, headers=kept, reason=mask.whole(bytes(event.reason)))

    async def _data(self, data: bytes) -> None:
        if data:
            await self._give(h11.Data(data=data))

    async def _give(self, event: h11.Event) -> None:
        data = self._parser.send(event) or b""
        self._facts.count(down=len(data))
        await self._client.write(data)

    async def _say(self, refusal: Refused) -> None:
        if self._parser.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            return
        reason, body = explained(refusal)
        headers = [
            ("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("Connection", "close"),
        ]  # fmt: skip
        status = 502 if refusal.unreachable else 403
        await self._give(h11.Response(status_code=status, headers=headers, reason=reason.encode()))
        await self._data(body)
        await self._give(h11.EndOfMessage())
        await self._client.end()


def _first(wrong: BaseExceptionGroup[Refused | h11.ProtocolError]) -> Refused:
    error = wrong.exceptions[0]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Refused) else Refused(f"no HTTP request: {error}")
