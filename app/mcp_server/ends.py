"""Log notifications about processes that end, to clients that have asked for them.

In the older protocols a client sets a level, and is told on its connection. In the newest one a request names a level,
and is told on its own stream while it is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp_types import (
    LOG_LEVEL_META_KEY,
    EmptyResult,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    RequestId,
    SetLevelRequestParams,
)

from shellback.exec.core.threads import cancelled
from shellback.mcp_server import eliciting
from shellback.mcp_server.answer import Talk

log = logging.getLogger(__name__)

LEVELS: Final[tuple[LoggingLevel, ...]] = get_args(LoggingLevel)
"""The mildest first."""
MOST: Final = 256
"""Connections that are told; the one that was set first makes room."""
Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Ends:
    """Tells the connections of one endpoint."""

    talk: Callable[[], Awaitable[Talk]]
    client: Callable[[Context], str]
    connection: Callable[[Context], str]
    """Names the connection of a request in the older protocols."""
    _told: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])

    def serve(self, server: Server[Any]) -> None:
        """Have the server offer levels."""
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self.set_level)

    async def set_level(self, ctx: Context, params: SetLevelRequestParams) -> EmptyResult:
        """From now on tell this connection of ends, of this level or above."""
        name = self.connection(ctx)
        before = [self._told.pop(name)] if name in self._told else []
        while len(self._told) >= MOST:
            before.append(self._told.pop(next(iter(self._told))))
        self._told[name] = asyncio.create_task(self._tell(ctx, params.level, None))
        await cancelled(before)
        return EmptyResult()

    @contextlib.asynccontextmanager
    async def telling(self, ctx: Context) -> AsyncGenerator[bool]:
        """Within the block a request of the newest protocol is told, if it has named a level. Yields whether it has."""
        level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY) if eliciting.modern(ctx) else None
        if level not in LEVELS:
            yield False
            return
        telling = asyncio.create_task(self._tell(ctx, level, ctx.request_id))
        try:
            yield True
        finally:
            await cancelled([telling])

    async def close(self) -> None:
        """Tell nobody any more."""
        await cancelled([*self._told.values()])
        self._told.clear()

    async def _tell(self, ctx: Context, least: LoggingLevel, request: RequestId | None) -> None:
        try:
            async with contextlib.aclosing((await self.talk()).ends(self.client(ctx))) as ends:
                async for end in ends:
                    level: LoggingLevel = "info" if end.well else "warning"
                    if LEVELS.index(level) >= LEVELS.index(least):
                        params = LoggingMessageNotificationParams(level=level, logger="shellback", data=end.facts)
                        await ctx.session.send_notification(LoggingMessageNotification(params=params), request)
        except Exception as error:  # noqa: BLE001 - the engine does not start, or the client is gone
            log.info("a client is told of no more ends: %s", error)
