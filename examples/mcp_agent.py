"""An agent with the tools of `shellback mcp`, by Pydantic AI's own MCP client.

Run it with `python examples/mcp_agent.py MODEL MESSAGE`; its calls are approved with `shellback approvals`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable
from pathlib import Path

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, AgentStreamEvent, FunctionToolCallEvent, RunContext
from pydantic_ai.mcp import MCPToolset


async def main(model: str, message: str) -> None:
    """One message, the calls that it leads to, the answer."""
    shellback = StdioTransport(
        "shellback",
        ["mcp", "--conversation", "build"],
        env={
            "ENABLE_EXECUTE": "true",
            "WORKSPACE_ROOT": str(Path("workspace").absolute()),
            "SHELLBACK_HOME": str(Path("state").absolute()),
        },
    )
    # The first start takes seconds. A refusal is a result, not a call that failed and is tried again.
    tools = MCPToolset(shellback, init_timeout=60, tool_error_behavior="failed")
    async with Agent(model, toolsets=[tools]) as agent:
        result = await agent.run(message, event_stream_handler=show)
    print(result.output)


async def show(_: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Print each call when it is made: it may wait for a person."""
    async for event in events:
        if isinstance(event, FunctionToolCallEvent):
            print(event.part.tool_name, event.part.args_as_json_str(), file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
