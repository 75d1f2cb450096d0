"""Conversations that are bound to named workspaces, and their calls in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shellback.mcp_server import requests
from shellback.mcp_server.answer import Answer, Asked
from shellback.mcp_server.calls import Calls
from shellback.settings import Settings
from shellback.wiring import wiring
from shellback.wiring.choice import choose
from shellback.wiring.spaces import bound
from tests.commands import facts, told
from tests.stage import Stage


def added(on: Stage, name: str, *options: str) -> Path:
    """A named workspace."""
    path = on.root / name
    facts(told(on, "workspaces", "add", name, str(path), "--make", "--json", *options))
    return path


@asynccontextmanager
async def connected(on: Stage, **environ: str) -> AsyncGenerator[Calls]:
    """One process that serves all conversations of the test, with these settings beside those of the stage."""
    where = replace(on.where, settings=Settings.load({**on.environ, **environ}))
    with wiring.mcp_calls(where, choose(where.settings).backend) as calls:
        await calls.start()
        try:
            yield calls
        finally:
            await calls.stop()


async def called(on: Stage, calls: Calls, talk: str, tool: str, *, key: str = "1", **args: Any) -> Answer:
    """The answer to a call of conversation `talk`, approved by a person if one is asked."""
    one = calls.connected(talk, name=talk)
    task = asyncio.create_task(one.call(Asked(client="tester", id=key, tool=tool, args=args)))
    while not task.done():
        for request in await asyncio.to_thread(on.requests):
            await asyncio.to_thread(on.decide, request)
        await asyncio.wait({task}, timeout=0.05)
    return await task


def begun(on: Stage, talk: str, name: str) -> None:
    on.write(requests.opened, talk, on.where.host_id, bound(on.settings, name))
