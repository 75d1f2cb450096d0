"""A client of `shellback mcp`: the SDK's own, over standard input and output of the real program."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.session import ElicitationFnT, LoggingFnT
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, Implementation, RequestParamsMeta, TextContent

from tests.commands import OURS, PROGRAM, shellback
from tests.stage import Stage

KEY = "shellback/key"


class Client:
    """A client and the server that it has started."""

    def __init__(self, on: Stage, session: ClientSession, said: Path, pid: Path) -> None:
        self.on = on
        self.session = session
        self._said = said
        self._pid = pid

    @property
    def log(self) -> str:
        return self._said.read_text()

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        os.kill(pid := self.pid, number)
        return pid

    async def call(self, tool: str, key: str = "", **args: Any) -> CallToolResult:
        meta: RequestParamsMeta | None = {KEY: key} if key else None
        result = await self.session.call_tool(tool, args, meta=meta)
        assert isinstance(result, CallToolResult)
        return result

    async def approved(self, tool: str, key: str = "", *, order: str = "approve", **args: Any) -> CallToolResult:
        """The result of a call about which a person decides on the command line."""
        task = asyncio.create_task(self.call(tool, key, **args))
        (request,) = await asyncio.to_thread(self.on.until, "a request", self.on.requests)
        done = await asyncio.to_thread(shellback, self.on, "approvals", order, request.id)
        assert done.returncode == 0, done.stderr
        return await task


@asynccontextmanager
async def client(
    on: Stage, *options: str, asks: ElicitationFnT | None = None, hears: LoggingFnT | None = None, **environ: str
) -> AsyncGenerator[Client]:
    """A client named "tester"; nothing is left of its server at the end.

    `asks` answers questions of the server, `hears` is told its logs.
    """
    said, pid = (on.root / f"{uuid.uuid4().hex}.{kind}" for kind in ("log", "pid"))
    line = f"echo $$ > {pid}; exec {shlex.join([*PROGRAM, 'mcp', *options])}"
    started = StdioServerParameters(
        command="/bin/sh", args=["-c", line], env={**OURS, **on.environ, **environ}, cwd=on.root
    )
    with said.open("w") as log:
        try:
            async with (
                stdio_client(started, errlog=log) as streams,
                ClientSession(
                    *streams,
                    client_info=Implementation(name="tester", version="1"),
                    elicitation_callback=asks,
                    logging_callback=hears,
                ) as session,
            ):
                await session.initialize()
                yield Client(on, session, said, pid)
        finally:
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)


def text_of(result: CallToolResult) -> str:
    (first, *_) = result.content
    assert isinstance(first, TextContent)
    return first.text


def known(result: CallToolResult) -> dict[str, Any]:
    found: Any = result.structured_content
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
