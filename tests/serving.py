"""`shellback serve` as a program of its own, and clients of the SDK that connect to it with tokens."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Implementation, RequestParamsMeta

from tests.commands import OURS, PATIENCE_S, PROGRAM, facts, shellback
from tests.stage import Stage

KEY = "shellback/key"


class Served:
    """A running server; `url` is that of MCP."""

    def __init__(self, on: Stage, *options: str, **environ: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", *options], env={**OURS, **on.environ, **environ}, cwd=on.root,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines = list[str]()
        self._ready = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        assert self._ready.wait(PATIENCE_S), self.log
        (self.base,) = (line.split()[1] for line in self.lines if line.startswith("ready "))
        self.url = f"{self.base}/mcp"

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return how the program ended."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("ready "):
                self._ready.set()


@contextmanager
def served(on: Stage, *options: str, port: int = 0, **environ: str) -> Generator[Served]:
    """A server that is gone at the end of the block."""
    made = Served(on, "--port", str(port), *options, **environ)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate(timeout=PATIENCE_S)


def token(on: Stage, name: str, *options: str) -> str:
    """A new token, for the conversation of its own name unless options say another.

    One that an earlier try of the test has left is revoked.
    """
    words = "tokens", "add", name, *(options or ("--conversation", name)), "--json"
    added = shellback(on, *words)
    if "is in force: revoke it" in added.stderr:
        facts(shellback(on, "tokens", "revoke", name, "--json"))
        added = shellback(on, *words)
    return str(facts(added)["token"])


def web(secret: str | None, **headers: str) -> httpx2.AsyncClient:
    """What sends requests with this token."""
    sent = {**headers, **({"authorization": f"Bearer {secret}"} if secret else {})}
    bounds = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(headers=sent, timeout=PATIENCE_S, trust_env=False, limits=bounds)


class Caller:
    """A client of the SDK."""

    def __init__(self, on: Stage, client: Client) -> None:
        self.on = on
        self.client = client

    async def call(self, tool: str, key: str = "", **args: Any) -> CallToolResult:
        meta: RequestParamsMeta | None = {KEY: key} if key else None
        return await self.client.call_tool(tool, args, meta=meta)


@asynccontextmanager
async def connected(
    on: Stage, url: str, secret: str, mode: Any = "auto", asks: ElicitationFnT | None = None
) -> AsyncGenerator[Caller]:
    """A client named "tester"; `asks` answers questions of the server."""
    async with (
        web(secret) as http,
        Client(
            streamable_http_client(url, http_client=http),
            mode=mode,
            client_info=Implementation(name="tester", version="1"),
            elicitation_callback=asks,
        ) as client,
    ):
        yield Caller(on, client)


def known(result: CallToolResult) -> dict[str, Any]:
    """The facts of a result."""
    found: Any = result.structured_content
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
