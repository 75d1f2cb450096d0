"""A client of `shellback mcp`: from its start to the list of tools, and what a call costs above the same tool."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Bench, Figure, Options, Reading, absent, alternate, ms
from benchmarks.rig import CONVERSATION, Ground, ground, leave

if TYPE_CHECKING:
    from mcp import ClientSession

    from shellback.mcp_server.calls import Calls

STARTS: Final = 10
CALLS: Final = 60
"""The fewest calls that a median is of."""
TOOL: Final = "execute"
ARGS: Final = {"command": "true"}
RULES: Final = '[[rules]]\neffect = "allow"\nprefix = ["true"]\n'


def mcp(options: Options) -> Mapping[str, Reading]:
    if importlib.util.find_spec("mcp") is None:
        return absent(FIGURES, "the package mcp is missing")
    where = ground(options.directory)
    policy = where.root / "shellback.toml"
    policy.write_text(RULES)
    environ = {
        "PATH": os.environ["PATH"],
        "SHELLBACK_HOME": str(where.home),
        "WORKSPACE_ROOT": str(where.workspace),
        "POLICY_FILE": str(policy),
        "ENABLE_EXECUTE": "true",
        "BACKEND": "host",
    }
    with _calls(environ) as calls:
        try:
            return asyncio.run(_measured(options, where, environ, calls))
        finally:
            asyncio.run(leave(where.home))


@contextmanager
def _calls(environ: Mapping[str, str]) -> Generator[Calls]:
    """The tools as an agent has them, with the same state directory."""
    from shellback.settings import Settings
    from shellback.wiring import wiring
    from shellback.wiring.choice import choose

    settings = Settings.load(environ)
    with wiring.place(settings) as place, wiring.mcp_calls(place, choose(settings).backend) as calls:
        yield calls


async def _measured(options: Options, where: Ground, environ: Mapping[str, str], calls: Calls) -> Mapping[str, Reading]:
    from benchmarks import bare_mcp
    from shellback.mcp_server.answer import Asked
    from shellback.mcp_server.connection import context_of

    number = 0

    async def alone() -> float:
        nonlocal number
        number += 1
        asked = Asked(client="bench", id=f"call-{number}", tool=TOOL, args=ARGS)
        began = time.perf_counter()
        ctx = context_of(CONVERSATION, calls.process, asked, None)
        toolset = calls.tools_of.toolset()
        tool = (await toolset.get_tools(ctx))[TOOL]
        await toolset.call_tool(TOOL, tool.args_validator.validate_python(ARGS), ctx, tool)
        return time.perf_counter() - began

    await calls.start()
    try:
        started_s: list[float] = []
        for _ in range(options.samples(STARTS)):
            began = time.perf_counter()
            async with _client(where, environ) as session:
                await session.list_tools()
                started_s.append(time.perf_counter() - began)
        async with _client(where, environ) as session, _session(where, environ, (bare_mcp.__file__,)) as bare:

            async def floor() -> float:
                began = time.perf_counter()
                await bare.call_tool(bare_mcp.TOOL)
                return time.perf_counter() - began

            async def called() -> float:
                began = time.perf_counter()
                result: Any = await session.call_tool(TOOL, ARGS)
                if result.is_error:
                    raise RuntimeError(str(result.content))
                return time.perf_counter() - began

            await called()  # which begins the conversation
            by_mcp, as_tool, nothing = await alternate(max(CALLS, options.samples()), called, alone, floor)
    finally:
        await calls.stop()
    return {
        "mcp start": Reading(measured=ms(statistics.median(started_s)), note=f"longest {ms(max(started_s)):.0f} ms"),
        "mcp call": Reading(measured=ms(by_mcp), baseline=ms(as_tool), note=f"{ms(nothing):.1f} ms are `mcp floor`"),
        "mcp floor": Reading(measured=ms(nothing)),
    }


def _client(where: Ground, environ: Mapping[str, str]) -> AbstractAsyncContextManager[ClientSession]:
    return _session(where, environ, ("-m", "shellback", "mcp", "--conversation", CONVERSATION))


@asynccontextmanager
async def _session(where: Ground, environ: Mapping[str, str], words: Sequence[str]) -> AsyncGenerator[ClientSession]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    line = f"exec {shlex.join((sys.executable, '-P', *words))} 2>>{where.root}/mcp.log"
    server = StdioServerParameters(command="/bin/sh", args=["-c", line], env=dict(environ), cwd=where.root)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        yield session


FIGURES: Final = (
    Figure(name="mcp start", says="start of `shellback mcp` to the list of its tools, asked by the SDK", limit=800.0),
    Figure(
        name="mcp call",
        says="`true` called by a client over standard input and output / the same tool, called as an agent does",
        compare="difference",
        limit=3.0,
    ),
    Figure(name="mcp floor", says="a tool that does nothing, by a server of the SDK alone: its part of `mcp call`"),
)
BENCHES = (Bench(name="mcp", run=mcp, figures=FIGURES),)
