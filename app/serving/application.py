"""The application: it admits requests, and hands them to what is mounted.

A `Mount` is an ASGI application for the paths that begin with its own. It sees these paths whole, and only requests
with a credential in force of its kind. `caller(scope)` is the token, with the conversations that it is for:

    async def send(request: Request) -> Response:
        if not caller(request.scope).may(conversation):
            return refusal(403, "this token is not for that conversation", "name one of ...")

    Mount(path="/v1", kind="api", app=Starlette(routes=[Route("/v1/send", send, methods=["POST"])]))

For pages the credential is the login of a person, in a cookie (`in_cookie`), and `open` lets requests in without one.
`person(scope)` is the login then, or None.

The body is within `Limits.body_bytes` and was read. When the credential ends, and when the server stops, the task of
the request is cancelled. A response that had begun, as a stream of events, is ended in order then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shellback.exec.core.threads import cancelled
from shellback.log import about
from shellback.serving.access import STOPS, Access, Credential, Use, noun, why_not
from shellback.storage.accounts import Login
from shellback.storage.errors import StorageError
from shellback.storage.tokens import Kind, Token, digest_of

log = logging.getLogger(__name__)

HEALTH: Final = "/healthz"
LATE: Final = 408
NOBODYS_BYTES: Final = 16 * 1024
NOBODYS_S: Final = 5.0
"""The body of a request without a token or login in force, and the time until it is here: it is a login."""
LEAVE_S: Final = 1.0
"""A client that does not read has this long to take the end of its stream."""
_CALLER: Final = "shellback.caller"
_SCHEME: Final = "bearer "


def in_header(headers: Headers) -> str | None:
    """The token that a request brings."""
    said = headers.get("authorization", "")
    return said[len(_SCHEME) :].strip() if said[: len(_SCHEME)].lower() == _SCHEME else None


def in_cookie(name: str) -> Callable[[Headers], str | None]:
    """What finds the secret of a login in the cookie of this name."""
    return lambda headers: cookie_parser(headers.get("cookie", "")).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """What answers the requests below a path; `running` is entered before the first one and left after the last.

    Credentials of another `kind` are refused. `secret` finds one in the headers of a request. `open`: a request
    without one in force is let in too, as that of nobody. `sorry` answers while the database does not, except for what
    is below `files`, which everybody may read.
    """

    path: str
    kind: Kind | Literal["console"]
    app: ASGIApp
    running: Callable[[], contextlib.AbstractAsyncContextManager[object]] = contextlib.nullcontext
    secret: Callable[[Headers], str | None] = in_header
    open: bool = False
    sorry: Callable[[Scope], Response] = lambda _: refusal(
        503, "the database does not answer; nothing was done", "repeat the request"
    )
    files: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is taken at once."""

    body_bytes: int = 1024 * 1024 + 256 * 1024
    """Of one request: the longest arguments of a call, and what is around them."""
    body_s: float = 30.0
    """A body is here by then."""
    calls: int = 256
    """Requests with one credential, or with none, that are being answered, streams among them."""


def caller(scope: Scope) -> Token:
    """The token of this request."""
    token = scope[_CALLER]
    assert isinstance(token, Token)
    return token


def person(scope: Scope) -> Login | None:
    """The login of this request; None if it brings none in force."""
    login = scope[_CALLER]
    assert login is None or isinstance(login, Login)
    return login


def refusal(status: int, error: str, remedy: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that names cause and remedy."""
    return JSONResponse({"error": error, "remedy": remedy}, status, headers)


class Application:
    """Admits requests to what is mounted; `names` are the hosts under which clients reach this server."""

    def __init__(
        self, mounts: Sequence[Mount], access: Access, *, names: Collection[str], limits: Limits | None = None
    ) -> None:
        self._mounts = mounts
        self._access = access
        self._names = {name.lower() for name in names}
        self._limits = limits or Limits()
        self._calls = Counter[str]()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Within the block requests are answered. `Access.close` ends the open ones."""
        async with contextlib.AsyncExitStack() as stack:
            for mount in self._mounts:
                await stack.enter_async_context(mount.running())
            watching = asyncio.create_task(self._access.watch())
            try:
                yield
            finally:
                await cancelled([watching])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path, headers = scope["path"], Headers(scope=scope)
        mount = next((one for one in self._mounts if f"{path}/".startswith(f"{one.path}/")), None)
        if path == HEALTH:
            await _last(JSONResponse({"status": "ok"}), scope, receive, send)
        elif (foreign := self._foreign(headers)) is not None:
            await _last(foreign, scope, receive, send)
        elif mount is None:
            there = ", ".join(one.path for one in self._mounts)
            nothing = refusal(404, "nothing is at this path", f"the paths are {there}")
            await _last(nothing, scope, receive, send)
        else:
            await self._to(mount, headers, scope, receive, send)

    def _foreign(self, headers: Headers) -> Response | None:
        """The refusal of a browser that was led here under another name (DNS rebinding), or by a page of others."""
        host, origin = headers.get("host", ""), headers.get("origin")
        with contextlib.suppress(ValueError):
            if (urlsplit(f"//{host}").hostname or "") not in self._names:
                return refusal(421, "clients do not reach this server under that host", "serve with --name HOST")
            if origin is None or urlsplit(origin).netloc.lower() == host.lower():
                return None
        return refusal(403, "a page of another origin cannot use this server", "use a program that is no page")

    async def _to(self, mount: Mount, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        secret = mount.secret(headers)
        if secret is None and not mount.open:
            await _last(_unauthorised(None), scope, receive, send)
            return
        with self._access.used("") as nobodys, self._access.used(digest_of(secret or "")) as use:
            try:
                found = None if secret is None else await self._access.credential(use)
            except StorageError as error:
                if mount.files is not None and scope["path"].startswith(mount.files):
                    await self._admitted(mount, None, nobodys, scope, receive, send)
                    return
                log.warning("a token cannot be looked up: %s", error)
                await _last(mount.sorry(scope), scope, receive, send)
                return
            if mount.open and (found is None or found.state != "active" or found.kind != mount.kind):
                await self._admitted(mount, None, nobodys, scope, receive, send)
                return
            if found is None or found.state != "active":
                await _last(_unauthorised(why_not(found)), scope, receive, send)
                return
            if found.kind != mount.kind:
                await self._of_another_kind(mount, found)(scope, receive, send)
                return
            with about(**{noun(found): found.name}):
                await self._admitted(mount, found, use, scope, receive, send)

    def _of_another_kind(self, mount: Mount, found: Credential) -> Response:
        there = ", ".join(one.path for one in self._mounts if one.kind == found.kind) or "no path of this server"
        how = "with --api" if mount.kind == "api" else "without --api"
        return refusal(
            403,
            f"this token is for {there}, not for {mount.path}; nothing was done",
            f"`shellback tokens add` makes another one, {how}: what asks for a call must not decide about it",
        )

    async def _admitted(
        self, mount: Mount, found: Credential | None, use: Use, scope: Scope, receive: Receive, send: Send
    ) -> None:
        limits, whose, refused = self._limits, found.digest if found else "", _refused
        if found is None:
            limits, refused = replace(limits, body_bytes=NOBODYS_BYTES, body_s=NOBODYS_S), _last
        if self._calls[whose] >= limits.calls:
            answer = refusal(
                429,
                f"{limits.calls} requests with this token are being answered; nothing was done",
                "repeat this one when one of them is answered, or use another token",
                {"retry-after": "1"},
            )
            await refused(answer, scope, receive, send)
            return
        self._calls[whose] += 1
        try:
            whole = await _whole(Headers(scope=scope), receive, limits)
            if isinstance(whole, Response):
                await refused(whole, scope, receive, send)
            elif whole is not None:
                told = send if found else _last_answer(send)
                await _until_over(use, mount.app, {**scope, _CALLER: found}, whole, told)
        finally:
            self._calls[whose] -= 1
            self._calls += Counter()  # without those at zero


def _last_answer(send: Send) -> Send:
    """Sends an answer after which the connection is closed."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["connection"] = "close"
        await send(message)

    return sent


async def _refused(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer, and keep the connection: uvicorn reads what is left of the body."""
    await answer(scope, receive, send)


async def _last(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer without a token in force, and close the connection: nobody holds one without a token.

    What is left of the body is read before, within bounds, and thrown away: a connection that is closed while bytes
    of it are unread is reset, and then the client loses the answer (RFC 9112, section 9.6).
    """
    left, more = Limits().body_bytes, answer.status_code != LATE
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(NOBODYS_S):
            while more and left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                more = message.get("more_body", False)
    await answer(scope, receive, _last_answer(send))


def _unauthorised(why: str | None) -> Response:
    """The refusal of a request without a token in force; `why` is None if it names none."""
    challenge = 'Bearer realm="shellback"'
    if why is not None:
        challenge += f', error="invalid_token", error_description="{why}"'
    return refusal(
        401,
        why or "no token is given",
        "send `Authorization: Bearer TOKEN`; `shellback tokens add` makes one",
        {"www-authenticate": challenge},
    )


async def _whole(headers: Headers, receive: Receive, limits: Limits) -> Receive | Response | None:
    """What gives the body of a request again, and then what else comes; None if the client has gone meanwhile.

    Of a body that is too long or late, the refusal.
    """
    long = refusal(413, f"the request is longer than {limits.body_bytes} bytes; nothing was done", "give less at once")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.body_bytes:
        return long
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(limits.body_s):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limits.body_bytes:
                    return long
    except TimeoutError:
        late = f"the request was not here within {limits.body_s:g} s; nothing was done"
        return refusal(LATE, late, "repeat it", {"connection": "close"})
    first = deque[Message]([{"type": "http.request", "body": bytes(body), "more_body": False}])

    async def again() -> Message:
        return first.popleft() if first else await receive()

    return again


async def _until_over(use: Use, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have `app` answer, until the use is over: then its task is cancelled, and what it has begun to say is ended."""
    begun = complete = False

    async def noted(message: Message) -> None:
        nonlocal begun, complete
        begun = True
        await send(message)
        complete = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def answer() -> None:
        await app(scope, receive, noted)

    answering, ending = asyncio.create_task(answer()), asyncio.create_task(use.over.wait())
    try:
        await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = not answering.done()
        await cancelled([answering, ending])
    if not ended:
        await answering
    elif not begun:
        again = refusal(503, use.why, "repeat the request in a moment")
        await (again if use.why == STOPS else _unauthorised(use.why))(scope, receive, send)
    elif not complete:
        # As to one that does not read, the end may not be written: then the connection is closed.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
