"""Output and screens of sessions as resources of the protocol: what `process_log` and `process_screen` show."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from shellback.mcp_server.answer import Answer, Asked, Talk, UnknownTool

LINES: Final = 500
"""The last lines of output that one reading has."""
OFF: Final = "shellback://off"
_URI: Final = re.compile(r"shellback://sessions/(?P<session>[a-z0-9]{1,64})/(?P<kind>log|screen)")
_KINDS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "log": ("process_log", {"offset": -LINES, "limit": LINES}, f"The last {LINES} lines that a process has printed."),
    "screen": ("process_screen", {}, "What the terminal of a process shows now."),
}
Context = ServerRequestContext[Any, Any]


def session_in(uri: str) -> str | None:
    """The session that a resource is about; None for others."""
    found = _URI.fullmatch(uri)
    return found and found["session"]


@dataclass(frozen=True, slots=True)
class Resources:
    """Answers the requests about resources; with `off`, which says why, there is nothing but that."""

    talk: Callable[[], Awaitable[Talk]]
    client: Callable[[Context], str]
    off: str

    def serve(self, server: Server[Any]) -> None:
        """Have the server offer the resources."""
        server.add_request_handler("resources/list", PaginatedRequestParams, self.list)
        server.add_request_handler("resources/templates/list", PaginatedRequestParams, self.templates)
        server.add_request_handler("resources/read", ReadResourceRequestParams, self.read)

    async def list(self, ctx: Context, _: PaginatedRequestParams) -> ListResourcesResult:
        """The log of each session that `process_list` lists, and the screen of each that has one."""
        if self.off:
            return ListResourcesResult(
                resources=[Resource(uri=OFF, name="why there are no tools", mime_type="text/plain")]
            )
        found = await self._called(ctx, "process_list", {})
        rows: list[dict[str, Any]] = found.facts["result"]
        return ListResourcesResult(
            resources=[
                Resource(
                    uri=f"shellback://sessions/{row['session_id']}/{kind}",
                    name=f"{kind} of {row['session_id']}",
                    description=f"{row['state']}: {row['command']}"[:200],
                    mime_type="text/plain",
                )
                for row in rows
                for kind in (("log", "screen") if row["pty"] else ("log",))
            ]
        )

    async def templates(self, ctx: Context, _: PaginatedRequestParams) -> ListResourceTemplatesResult:  # noqa: ARG002
        """The form of the addresses."""
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(
                    uri_template=f"shellback://sessions/{{session_id}}/{kind}",
                    name=kind,
                    description=about,
                    mime_type="text/plain",
                )
                for kind, (_, _, about) in _KINDS.items()
                if not self.off
            ]
        )

    async def read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        """The text of one resource."""
        uri = str(params.uri)
        found = _URI.fullmatch(uri)
        if self.off and uri == OFF:
            text = self.off
        elif self.off or found is None:
            raise MCPError(INVALID_PARAMS, f"no resource {uri!r}: resources/list names those there are", {"uri": uri})
        else:
            tool, args, _ = _KINDS[found["kind"]]
            answer = await self._called(ctx, tool, {"session_id": found["session"], **args})
            text = "\n".join(answer.texts)
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)])

    async def _called(self, ctx: Context, tool: str, args: dict[str, Any]) -> Answer:
        """The answer of a tool that only reads."""
        asked = Asked(client=self.client(ctx), id=f"resource:{uuid.uuid4().hex}", tool=tool, args=args)
        try:
            answer = await (await self.talk()).call(asked)
        except UnknownTool:
            raise MCPError(INVALID_PARAMS, f"the tools of this connection are without {tool}") from None
        if answer.failed:
            raise MCPError(INVALID_PARAMS, answer.texts[0])
        return answer
