"""The capability that ties an agent's run to its turn: news before each request, tool calls as steps."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dbos import DBOS
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, ToolDefinition

from app.exec.model import LIVE_STATES, SessionId
from app.exec.supervisor.crashpoints import reach
from app.storage.errors import StaleTurn
from app.work.deps import TurnDeps
from app.work.mailbox import Letter
from app.work.prompt import texts_of

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

T = TypeVar("T")
OURS: Final = frozenset({"exec", "process"})
LIVE: Final = frozenset(state.value for state in LIVE_STATES)
SIGNALS: Final = (ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred)
"""Exceptions by which a tool answers; they are results and are recorded as such."""


class OutOfTime(AgentRunError):
    """Raised before a model request when the turn has used up its seconds. The clock was read in a step."""


class Fenced(BaseException):
    """Ends an execution that a newer one has overtaken. Not an `Exception`: no step may record it as its outcome."""


async def recorded(name: str, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `fn` as a step: a replay gets the recorded result instead.

    Raises:
        Fenced: This execution is stale; nothing was recorded.
    """

    async def fenced() -> T:
        try:
            return await fn()
        except StaleTurn as error:
            raise Fenced from error

    return await DBOS.run_step_async({"name": name}, fenced)


Take = Callable[[TurnDeps, int], Awaitable[list[Letter]]]


class Hearing(AbstractCapability[TurnDeps]):
    """Hears the mailbox before each model request and records each exec tool call.

    A tool body that reads the state of a session would read another on a replay; recorded as a
    step it is read once. The body itself is keyed by its call, so that a step which is cut off
    and repeated starts and writes nothing twice.
    """

    def __init__(self, take: Take) -> None:
        self._take = take

    async def before_model_request(
        self, ctx: RunContext[TurnDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Let an exit or a message that came meanwhile reach the running turn."""
        # Not the run's own step number: a retried request has the same one and would hear everything again.
        ctx.deps.looks += 1
        look = ctx.deps.looks

        async def take() -> tuple[list[Letter], float]:
            return await self._take(ctx.deps, look), time.time()

        letters, now = await recorded("mailbox", take)
        if letters:
            ctx.deps.letters += letters
            ctx.enqueue(*texts_of(letters))
        if now - ctx.deps.began_at > ctx.deps.seconds:
            raise OutOfTime(f"{ctx.deps.seconds:g} s")
        return request_context

    async def wrap_tool_execute(
        self,
        ctx: RunContext[TurnDeps],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Record what an exec tool answered, and note which ends the agent has been told of."""
        if (tool_def.metadata or {}).get("category") not in OURS:
            return await handler(args)

        async def act() -> tuple[bool, Any]:
            try:
                return True, await handler(args)
            except SIGNALS as answer:
                return False, answer

        answered, result = await recorded(f"tool.{call.tool_name}", act)
        reach("tool.returned")
        if not answered:
            raise result
        ctx.deps.told.update(_ends_in(result))
        return result


def _ends_in(result: Any) -> list[SessionId]:
    metadata: dict[str, Any] = getattr(result, "metadata", None) or {}
    session_id, state = metadata.get("session_id"), metadata.get("state")
    return [SessionId(session_id)] if session_id and state and state not in LIVE else []
