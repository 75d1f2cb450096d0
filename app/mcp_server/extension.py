"""The tasks extension of the protocol, `io.modelcontextprotocol/tasks`: what is said on the wire of a task."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ClientCapabilities,
    Notification,
    RequestParams,
)

from shellback.mcp_server import eliciting
from shellback.mcp_server.answer import Answer, Talk, Task, UnknownTask

EXTENSION: Final = "io.modelcontextprotocol/tasks"
TOLD: Final = "shellback/told"
"""The name in `_meta` under which a client is told which of its answers count for nothing."""
POLL_MS: Final = 1000
"""How often a client is told to ask."""
Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """The parameters of `tasks/get`, `tasks/cancel` and, with more, `tasks/update`."""

    task_id: str
    input_responses: dict[str, Any] | None = None


def declares(ctx: Context) -> bool:
    """Whether the client of this request knows tasks. The older protocols cannot carry one."""
    found: ClientCapabilities | None = ctx.session.client_capabilities
    return eliciting.modern(ctx) and found is not None and EXTENSION in (found.extensions or {})


def said_of(task: Task, ctx: Context) -> dict[str, Any]:
    """The state of a task, without its result."""
    return {
        "taskId": task.id,
        "status": "input_required" if _asks(task, ctx) else task.state,
        "statusMessage": task.said,
        "createdAt": _iso(task.created_at),
        "lastUpdatedAt": _iso(task.updated_at),
        "ttlMs": int(task.kept_s * 1000),
        "pollIntervalMs": POLL_MS,
    }


def created(task: Task, ctx: Context) -> dict[str, Any]:
    """The answer to a call that is a task."""
    return {"resultType": "task", **said_of(task, ctx)}


def _asks(task: Task, ctx: Context) -> bool:
    return task.question is not None and eliciting.declares(ctx)


@dataclass(frozen=True, slots=True)
class TaskHandlers:
    """Answers the requests about tasks; `shown` is the result of a call on the wire."""

    talk: Callable[[], Awaitable[Talk]]
    client: Callable[[Context], str]
    shown: Callable[[Answer], CallToolResult]
    worded: Callable[[Exception], str | None]

    def serve(self, server: Server[Any]) -> None:
        """Have the server offer the extension."""
        server.extensions[EXTENSION] = {}
        for method, handler in (("get", self.get), ("update", self.update), ("cancel", self.cancel)):
            server.add_request_handler(f"tasks/{method}", TaskParams, handler)

    async def get(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """A task with its result."""
        with self.errors(ctx, params.task_id):
            task = await (await self.talk()).task(self.client(ctx), params.task_id)
            return {"resultType": "complete", **self.whole(task, ctx)}

    async def update(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """Take answers of the client. It is told which of them count for nothing, by a text in `_meta`."""
        with self.errors(ctx, params.task_id):
            talk = await self.talk()
            await talk.task(self.client(ctx), params.task_id)
            told = await eliciting.heard(talk, self.client(ctx), params.input_responses or {})
            return {"resultType": "complete", **({"_meta": {TOLD: " ".join(told)}} if told else {})}

    async def cancel(self, ctx: Context, params: TaskParams) -> dict[str, Any]:
        """Cancel a task; one that has ended stays as it is."""
        with self.errors(ctx, params.task_id):
            await (await self.talk()).cancel(self.client(ctx), params.task_id)
            return {"resultType": "complete"}

    def whole(self, task: Task, ctx: Context) -> dict[str, Any]:
        """A task with its result, or with what it asks the client."""
        more: dict[str, Any] = {}
        if task.answer is not None:
            more = {"result": self.shown(task.answer).model_dump(by_alias=True, mode="json", exclude_none=True)}
        if task.question is not None and _asks(task, ctx):
            more = eliciting.wanted(task.question)
        return {**said_of(task, ctx), **more, **({} if task.error is None else {"error": task.error})}

    @contextlib.contextmanager
    def errors(self, ctx: Context, named: str | None = None) -> Generator[None]:
        """Require the extension, and of HTTP that its header names what is `named`; have errors said as they are."""
        if not declares(ctx):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"this needs the extension {EXTENSION} in the capabilities that the request declares",
                needed,
            )
        header = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if named is not None and header is not None and header != named:
            raise MCPError(HEADER_MISMATCH, f"the header Mcp-Name is {header!r}, and not the task of the request")
        try:
            yield
        except UnknownTask as error:
            raise MCPError(
                INVALID_PARAMS,
                f"no task {str(error)!r} in this conversation, or its time to live is over",
            ) from None
        except Exception as error:
            if isinstance(error, MCPError) or (text := self.worded(error)) is None:
                raise
            raise MCPError(INTERNAL_ERROR, text) from None


class TaskNotification(Notification[dict[str, Any], Literal["notifications/tasks"]]):
    """A task that has changed."""

    method: Literal["notifications/tasks"] = "notifications/tasks"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
