"""The page of a live terminal: its output as server-sent events, the keyboard of one page, and its recording."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shellback.client.failures import logged
from shellback.client.processes import the_session
from shellback.client.recording import Recording
from shellback.console.access import Page, account_of
from shellback.console.pages import page
from shellback.console.terminal_feed import Feed
from shellback.exec.core.model import Session, WindowSize
from shellback.wiring import supervision
from shellback.work.errors import InvalidRequest

if TYPE_CHECKING:
    from shellback.exec.core.ports import SupervisorPort
    from shellback.wiring.wiring import Place

TERMINALS: Final = 50
"""Terminals that are watched at once."""
STYLED: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The policy of this page alone: xterm.js makes style sheets for colours and sizes."""
_STREAM: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Terminals:
    """Pages of terminals. Each terminal that is watched has one reader."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._port: SupervisorPort | None = None
        self._feeds: dict[str, Feed] = {}

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/processes/{id}/terminal", self._page, role="viewer"),
            Page("/processes/{id}/terminal/output", self._output, role="viewer"),
            Page("/processes/{id}/terminal/keyboard", self._keyboard, role="operator", method="POST"),
            Page("/processes/{id}/terminal/keys", self._keys, role="operator", method="POST"),
            Page("/processes/{id}/terminal/size", self._size, role="operator", method="POST"),
            Page("/processes/{id}/recording", self._recording, role="viewer"),
        ]

    async def close(self) -> None:
        """Give back all keyboards, and end all readers."""
        await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
        if self._port is not None:
            await self._port.close()

    async def _page(self, request: Request) -> Response:
        session = await self._session(request)
        policy = {"content-security-policy": STYLED}
        return page(request, "terminal.html", headers=policy, of=session, live=session.live)

    async def _output(self, request: Request) -> Response:
        feed = await self._feed(request)
        events = feed.view(account_of(request).name)
        first = await anext(events)
        return StreamingResponse(self._sent(events, first), media_type="text/event-stream", headers=_STREAM)

    async def _sent(
        self, events: AsyncGenerator[tuple[str, dict[str, object]]], first: tuple[str, dict[str, object]]
    ) -> AsyncGenerator[bytes]:
        try:
            yield _line(first)
            async for one in events:
                yield _line(one)
        finally:
            await events.aclose()

    async def _keyboard(self, request: Request) -> Response:
        feed, form = self._watched(request), await request.form()
        act = feed.take if form.get("take") == "yes" else feed.give_back
        return await _done(act(str(form.get("viewer", "")), account_of(request).name))

    async def _keys(self, request: Request) -> Response:
        feed, form = self._watched(request), await request.form()
        data = str(form.get("data", "")).encode("utf-8", "replace")
        return await _done(feed.type(str(form.get("viewer", "")), account_of(request).name, data))

    async def _size(self, request: Request) -> Response:
        feed, form = self._watched(request), await request.form()
        try:
            size = WindowSize(int(str(form.get("rows"))[:5]), int(str(form.get("cols"))[:5]))
        except ValueError:
            raise InvalidRequest("rows and cols are whole numbers") from None
        return await _done(feed.resize(str(form.get("viewer", "")), account_of(request).name, size))

    async def _recording(self, request: Request) -> Response:
        session = await self._session(request)
        version = 2 if request.query_params.get("version") == "2" else 3
        recording = await asyncio.to_thread(Recording, self._where, session, version=version)
        lines = (line for part in (recording.begin(), recording.end(session.end)) for line in part)
        named = {"content-disposition": f'attachment; filename="{session.id}.cast"'}
        return StreamingResponse(lines, media_type="application/x-asciicast", headers=named)

    async def _session(self, request: Request) -> Session:
        session = await asyncio.to_thread(the_session, self._where, request.path_params["id"])
        if not session.pty:
            raise InvalidRequest(f"session {session.id} has no terminal: its page shows its output")
        return session

    def _watched(self, request: Request) -> Feed:
        feed = self._feeds.get(request.path_params["id"])
        if feed is None or feed.gone:
            raise InvalidRequest("this page does not show the terminal any more: load it again")
        return feed

    async def _feed(self, request: Request) -> Feed:
        session = await self._session(request)
        self._feeds = {name: feed for name, feed in self._feeds.items() if not feed.gone}
        if session.id not in self._feeds:
            if len(self._feeds) >= TERMINALS:
                raise InvalidRequest(f"{TERMINALS} terminals are watched: close the page of another one")
            if self._port is None:
                self._port = supervision.supervisors(self._where.settings)
            self._feeds[session.id] = Feed(self._where, self._port, session)
        return self._feeds[session.id]


async def _done(work: Coroutine[Any, Any, None]) -> Response:
    """An answer without text, or the error in one sentence for the page's status line."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the person is told of each
        status, facts = logged(error)
        return PlainTextResponse(facts["error"]["message"], status)
    return Response(status_code=204)


def _line(one: tuple[str, dict[str, object]]) -> bytes:
    return f"event: {one[0]}\ndata: {json.dumps(one[1])}\n\n".encode()
