"""A server of the SDK alone, over standard input and output, whose tool does nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

TOOL = "nothing"


async def _list(_ctx: Any, _: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=[Tool(name=TOOL, input_schema={"type": "object"})])


async def _call(_ctx: Any, _: CallToolRequestParams) -> CallToolResult:
    return CallToolResult(content=[TextContent(text="")])


async def _served() -> None:
    server = Server[Any]("bare", version="0", on_list_tools=_list, on_call_tool=_call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(_served())
