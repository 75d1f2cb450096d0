"""The console as an ASGI application: its pages, its files, and the headers that keep a browser from doing more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Mount as Below
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shellback.console.access import SignOn, secret_of, sorry
from shellback.console.auditing import Auditing
from shellback.console.changes import Changes
from shellback.console.conversations import Conversations
from shellback.console.entering import Entering
from shellback.console.pages import PREFIX, message
from shellback.console.processes import Processes
from shellback.console.records import Records
from shellback.console.terminal import Terminals
from shellback.console.waiting import Waiting
from shellback.serving.application import Mount, person
from shellback.storage import accounts
from shellback.storage.errors import StorageError

if TYPE_CHECKING:
    from shellback.client.local import Local
    from shellback.settings import Settings
    from shellback.storage.db import Database
    from shellback.wiring.wiring import Place

STATIC: Final = Path(__file__).parent / "static"
FILES: Final = f"{PREFIX}/static"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def mount(where: Place, local: Local, *, secure: bool) -> Mount:
    """The console of a state directory. With `secure` browsers send their cookies by TLS only."""
    changes, terminals = Changes(local), Terminals(where)
    there = routes(where, local, changes, terminals, secure=secure)
    app = Starlette(routes=there, exception_handlers={HTTPException: _nothing})
    # It would name this server as it is called behind a proxy.
    app.router.redirect_slashes = False
    app.state.sign_on = _sign_on(where.settings)

    @contextlib.asynccontextmanager
    async def running() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await changes.close()
            await terminals.close()

    site = _Site(app, where.database)
    return Mount(
        path=PREFIX, kind="console", app=site, running=running, secret=secret_of, open=True, sorry=_away,
        files=f"{FILES}/",
    )  # fmt: skip


def routes(where: Place, local: Local, changes: Changes, terminals: Terminals, *, secure: bool) -> list[BaseRoute]:
    """All that there is below `PREFIX`: pages, each with its role, and files that everybody may read."""
    return [
        *changes.pages(),
        *Entering(where, secure=secure).pages(),
        *Waiting(local).pages(),
        *Conversations(local).pages(),
        *Processes(local).pages(),
        *Auditing(local).pages(),
        *Records(local).pages(),
        *terminals.pages(),
        Below(FILES, StaticFiles(directory=STATIC)),
    ]


class _Site:
    """Adds headers to each answer, and notes that a login is used."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self._app = app
        self._database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store" if "etag" not in headers else "no-cache")
            await send(message)

        login = person(scope)
        # A page that is left open asks for live updates by itself.
        if login is not None and login.idle_s > accounts.USED_S and not _live(scope):
            with contextlib.suppress(StorageError):  # the page says so
                await self._database.write(accounts.used, login.digest)
        await self._app(scope, receive, sent)


def _live(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return "hx-request" in headers or "text/event-stream" in headers.get("accept", "")


def _sign_on(settings: Settings) -> SignOn | None:
    return SignOn(settings.auth_proxy_header, settings.proxies) if settings.auth_proxy_header else None


def _away(scope: Scope) -> Response:
    answer = sorry(Request(scope), "The database does not answer. Nothing was done. This page tries again by itself.")
    answer.headers.update(HEADERS | {"cache-control": "no-store"})
    return answer


async def _nothing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    nothing = error.status_code in {404, 405}
    said = "There is nothing at this address." if nothing else f"The request cannot be read: {error.detail}."
    return message(request, said, status=error.status_code, more=[("Waiting", f"{PREFIX}/")])
