"""A bridge between a public test of the protocol and `shellback serve`: it adds the token, and the names of test tools.

Conformance scenarios call tools that a server is to have for them alone. Here each is a call of one of our tools.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.commands import PATIENCE_S
from tests.serving import web

_HOP: Final = frozenset({"content-length", "transfer-encoding", "connection", "host", "authorization"})
Call = tuple[str, dict[str, Any]]

AS_OURS: Final[dict[str, Callable[[dict[str, Any]], Call]]] = {
    "greet": lambda args: ("execute", {"command": f"echo Hello, {shlex.quote(args['name'])}!"}),
    "slow_compute": lambda args: (
        "execute", {"command": f"sleep {args['seconds']}; echo {shlex.quote(str(args.get('label', '')))}"},
    ),
    # A person has to be asked, and nobody decides in time.
    "failing_job": lambda _: ("write_file", {"path": "written", "content": "nothing"}),
}  # fmt: skip


def _renamed(body: bytes, headers: dict[str, str]) -> bytes:
    """The message as our server knows it."""
    try:
        message: Any = json.loads(body)
        name = message["params"]["name"]
        tool, args = AS_OURS[name](message["params"].get("arguments") or {})
    except (ValueError, KeyError, TypeError):
        return body
    message["params"] |= {"name": tool, "arguments": args}
    if headers.get("mcp-name") == name:
        headers["mcp-name"] = tool
    return json.dumps(message).encode()


@contextmanager
def bridge(url: str, secret: str) -> Generator[str]:
    """The URL at which clients without a token reach the server at `url`."""
    client = web(secret)

    async def forward(request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        body = _renamed(await request.body(), headers)
        sent = client.build_request(request.method, url, headers=headers, content=body)
        answer = await client.send(sent, stream=True)

        async def parts() -> AsyncGenerator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
        return StreamingResponse(parts(), answer.status_code, kept)

    @asynccontextmanager
    async def connected(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    methods = ["GET", "POST", "DELETE"]
    app = Starlette(routes=[Route("/mcp", forward, methods=methods)], lifespan=connected)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    running = threading.Thread(target=server.run, daemon=True)
    running.start()
    try:
        while not server.started and running.is_alive():
            running.join(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        running.join(PATIENCE_S)
