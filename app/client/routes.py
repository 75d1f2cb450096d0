"""The client API over HTTP: JSON below `/v1`, server-sent events, and their description."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Final, cast

from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from shellback.client.caller import Caller
from shellback.client.facts import Event
from shellback.client.failures import logged
from shellback.client.local import Local
from shellback.client.openapi import described
from shellback.client.operations import OPERATIONS, Operation
from shellback.exec.core.threads import cancelled
from shellback.serving.application import Mount, caller
from shellback.work.errors import InvalidRequest

PREFIX: Final = "/v1"
PING_S: Final = 15.0
_EVENT: Final = TypeAdapter(Event)
_STREAM: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_FOLLOW: Final = {"true": True, "false": False}


def mount(local: Local) -> Mount:
    """The client API, for an application that checks tokens."""
    return Mount(path=PREFIX, kind="api", app=Router(Routes(local).all()))


def caller_of(request: Request) -> Caller:
    """Who asks, by the token of the request."""
    token = caller(request.scope)
    return Caller(by=f"token:{token.name}", conversations=token.conversations, token=True)


class Routes:
    """The routes of the client API. A request is answered for the token that it came with."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def all(self) -> list[Route]:
        """The routes, each with its whole path."""
        return [
            *(
                Route(PREFIX + one.path.replace("}", ":path}"), partial(self._answer, one), methods=[one.method])
                # The longer ones first: an id in a path may hold anything, a slash too.
                for one in sorted(OPERATIONS.values(), key=lambda one: one.path.endswith("}"))
            ),
            Route(f"{PREFIX}/conversations/{{conversation:path}}/events", self._events, methods=["GET"]),
            Route(f"{PREFIX}/ag-ui", self._ag_ui, methods=["POST"]),
            Route(f"{PREFIX}/openapi.json", self._description, methods=["GET"]),
        ]

    async def _answer(self, operation: Operation, request: Request) -> Response:
        try:
            of_text = operation.method == "GET"
            given = dict(request.query_params) if of_text else await _body(request)
            given |= request.path_params
            found = await self._local.ask(operation.name, given, caller_of(request), texts=of_text)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the caller is told of each
            return _failed(error)
        return Response(operation.result.dump_json(found), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        try:
            wanted = _wanted(request)
            events = self._local.events(**wanted, caller=caller_of(request))
            first = await anext(events, None)
        except Exception as error:  # noqa: BLE001 - the caller is told of each
            return _failed(error)
        sent = _sent(events, first, follow=wanted["follow"])
        return StreamingResponse(sent, media_type="text/event-stream", headers=_STREAM)

    async def _ag_ui(self, request: Request) -> Response:
        try:
            body = await request.body()
            # Not before it is wanted: it loads all that an agent needs.
            runs = await asyncio.to_thread(importlib.import_module, "shellback.client.ag_ui")
            lines = await runs.begin(self._local, caller_of(request), body)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the caller is told of each
            return _failed(error)
        return StreamingResponse(kept(lines), media_type="text/event-stream", headers=_STREAM)

    async def _description(self, _: Request) -> Response:
        return JSONResponse(described())


def _wanted(request: Request) -> dict[str, Any]:
    given = dict(request.query_params)
    follow = _FOLLOW.get(given.pop("follow", "true"))
    if not given.keys() <= {"after", "kinds"} or follow is None:
        raise InvalidRequest("events take after, kinds (separated by commas) and follow (true or false)")
    return {
        "conversation": request.path_params["conversation"],
        "after": request.headers.get("last-event-id") or given.get("after") or "0",
        "kinds": [kind for kind in given.get("kinds", "").split(",") if kind],
        "follow": follow,
    }


async def _sent(events: AsyncGenerator[Event | None], first: Event | None, *, follow: bool) -> AsyncGenerator[bytes]:
    """The events as they are sent. The next one is read when the connection has room for it."""
    said = time.monotonic()
    try:
        yield b": events\n\n" if first is None else _line(first)
        async for event in events:
            if event is None and time.monotonic() - said < PING_S:
                continue
            said = time.monotonic()
            yield b": nothing new\n\n" if event is None else _line(event)
        if not follow:
            yield b"event: end\ndata: {}\n\n"
    except Exception as error:  # noqa: BLE001 - the reader is told of it
        yield f"event: failure\ndata: {json.dumps(logged(error)[1])}\n\n".encode()
    finally:
        await events.aclose()


async def kept(lines: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """The lines as they are sent; a comment when there was none for a while."""
    async with contextlib.aclosing(lines):
        while True:
            following = asyncio.ensure_future(anext(lines, None))
            try:
                while not (await asyncio.wait([following], timeout=PING_S))[0]:
                    yield ": nothing new\n\n"
            finally:
                await cancelled([following])
            if (line := following.result()) is None:
                return
            yield line


def _line(event: Event) -> bytes:
    return f"id: {event.id}\ndata: ".encode() + _EVENT.dump_json(event) + b"\n\n"


async def _body(request: Request) -> dict[str, Any]:
    try:
        found = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError):
        raise InvalidRequest("the request is not JSON; nothing was done") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the request is not a JSON object with arguments; nothing was done")
    return cast("dict[str, Any]", found)


def _failed(error: Exception) -> Response:
    status, facts = logged(error)
    return JSONResponse(facts, status_code=status)
