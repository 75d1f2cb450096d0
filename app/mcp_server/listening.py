"""Streams of changes, `subscriptions/listen` of the protocol: of tasks, and of the output of sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp_types import (
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)

from shellback.exec.core.threads import cancelled
from shellback.mcp_server.answer import Talk, UnknownTask
from shellback.mcp_server.ends import Ends
from shellback.mcp_server.extension import TaskHandlers, TaskNotification
from shellback.mcp_server.resources import session_in

MOST: Final = 256
"""The tasks, and the resources, about which one stream tells."""
_SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Listening:
    """Answers `subscriptions/listen`."""

    of_tasks: TaskHandlers
    of_ends: Ends

    def serve(self, server: Server[Any]) -> None:
        """Have the server offer the streams."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)

    async def listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Tell of changes until nothing that the client has named can change any more."""
        asked, meta, talk = params.notifications, {_SUBSCRIPTION: ctx.request_id}, await self.of_tasks.talk()
        wanted = cast("list[object] | None", (asked.model_extra or {}).get("taskIds"))
        tasks = list[str]()
        for one in (wanted or [])[:MOST]:
            with self.of_tasks.errors(ctx), contextlib.suppress(UnknownTask):
                tasks.append((await talk.task(self.of_tasks.client(ctx), str(one))).id)
        uris = [uri for uri in (asked.resource_subscriptions or [])[:MOST] if session_in(uri)]
        honored: dict[str, Any] = {
            "taskIds": None if wanted is None else tasks,
            "resourceSubscriptions": uris or None,
            "toolsListChanged": asked.tools_list_changed or None,
        }
        told = SubscriptionsAcknowledgedNotificationParams(
            notifications=SubscriptionFilter.model_validate(
                {name: one for name, one in honored.items() if one is not None}
            ),
            _meta=meta,
        )
        await ctx.session.send_notification(SubscriptionsAcknowledgedNotification(params=told), ctx.request_id)
        streams: list[Coroutine[Any, Any, object]] = [self._growing(ctx, talk, uri, meta) for uri in uris]
        if tasks:
            streams.append(self._changing(ctx, talk, tasks, meta))
        async with self.of_ends.telling(ctx) as endless:
            if asked.tools_list_changed or endless:
                streams.append(asyncio.Event().wait())  # tools never change, which a stream that ends would not say
            running = [asyncio.ensure_future(stream) for stream in streams]
            try:
                await asyncio.gather(*running)
            finally:
                await cancelled(running)
        return SubscriptionsListenResult(_meta=meta)

    async def _changing(self, ctx: Context, talk: Talk, tasks: list[str], meta: dict[str, Any]) -> None:
        with self.of_tasks.errors(ctx):
            async for task in talk.changes(self.of_tasks.client(ctx), tasks):
                change = TaskNotification(params={**self.of_tasks.whole(task, ctx), "_meta": meta})
                await ctx.session.send_notification(cast("Any", change), ctx.request_id)

    async def _growing(self, ctx: Context, talk: Talk, uri: str, meta: dict[str, Any]) -> None:
        async for _ in talk.grows(self.of_tasks.client(ctx), session_in(uri) or ""):
            update = ResourceUpdatedNotification(params=ResourceUpdatedNotificationParams(uri=uri, _meta=meta))
            await ctx.session.send_notification(update, ctx.request_id)
