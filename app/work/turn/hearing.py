"""The capability that connects an agent's run with its turn: news before each request, tool calls as steps."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dbos import DBOS
from dbos import error as dbos_error
from pydantic import ValidationError
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    AgentRunError,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
    UserError,
)
from pydantic_ai.messages import ModelMessage, TextContent, ToolCallPart, UserContent
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition

from shellback.exec.core.identity import origin_of, session_id
from shellback.exec.core.model import SessionId
from shellback.exec.core.pydantic_private import abandon_threads_on_cancel
from shellback.exec.reports.callback_text import NOTICE, connect_text, wake_text, watch_text
from shellback.exec.tools.registry import tool_named
from shellback.exec.wire.crashpoints import reach
from shellback.storage import sessions
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.session_rows import LIVE
from shellback.work.approvals.typed import said
from shellback.work.queue.mailbox import Letter
from shellback.work.queue.watch_wakes import Range, is_read
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.live import LiveBlocks, appended
from shellback.work.turn.looks import Look, look, nothing
from shellback.work.turn.stopping import Wish, text_of, wish_for

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

log = logging.getLogger(__name__)

T = TypeVar("T")
OURS: Final = frozenset({"exec", "process"})
SAID_CHARS: Final = 500
SIGNALS: Final = (ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred)
"""Exceptions that are results of a tool; they are recorded as such."""
ENDS: Final = (*SIGNALS, ModelRetry, ToolFailed, SkipToolExecution, ValidationError, AgentRunError, UserError)
"""Exceptions that pydantic-ai handles when a foreign tool raises them; any other one is a failure of the tool."""


class OutOfTime(AgentRunError):
    """Raised before a model request when the time limit of the turn is over, by the recorded time of a look."""


class Stopped(AgentRunError):
    """Raised before a model request when a person has stopped the turn. A look read the wish."""


class Fenced(BaseException):
    """Ends an execution that a newer one has overtaken. Not an `Exception`, so no step records it as its outcome."""


class HostLost(BaseException):
    """Ends an execution whose host is gone. Not an `Exception`: nothing is recorded, and another one continues it."""


@contextmanager
def fenced() -> Generator[None]:
    """Raise `Fenced` for `StaleTurn`, so that a step does not record it as its outcome."""
    try:
        yield
    except StaleTurn as error:
        raise Fenced from error


async def recorded(name: str, fn: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `fn` as a step: a replay gets the recorded result instead.

    Raises:
        Fenced: This execution is stale; nothing was recorded.
    """

    async def act() -> T:
        with fenced():
            return await fn()

    return await DBOS.run_step_async({"name": name}, act)


async def nothing_waits(_conversation_id: str) -> None:
    """All ends are recorded."""


class Hearing(AbstractCapability[TurnDeps]):
    """Reads the mailbox before each model request and records each exec tool call as a step.

    A replay gets the recorded look and result, because a session's state may have changed. A step that was cut off is
    repeated; its body is keyed by its call, so it starts and writes nothing twice.
    """

    def __init__(
        self,
        database: Database,
        live: LiveBlocks | None = None,
        recorded: Callable[[str], Awaitable[None]] = nothing_waits,
    ) -> None:
        self._db = database
        self._live = live
        self._recorded = recorded

    async def look(self, deps: TurnDeps, step: int, messages: Sequence[ModelMessage]) -> Look:
        """Take unread rows, and read the wish to stop the turn and what `messages` lack of its processes."""
        news = partial(self._live.news, deps, messages) if self._live else nothing
        return await self._db.write(look, deps.conversation_id, deps.turn_id, deps.epoch, step, news)

    async def wished(self, deps: TurnDeps) -> Wish | None:
        """The wish to stop the turn, or None."""
        return await self._db.read(wish_for, deps.conversation_id, deps.turn_id)

    async def ended(self, session_id: SessionId) -> bool:
        """Whether a session with this id exists and has ended."""
        session = await self._db.read(sessions.get, session_id)
        return session is not None and session.end is not None

    async def before_model_request(
        self, ctx: RunContext[TurnDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Add new exits, messages and process output to the running turn."""
        # Not the run's step number: a retried request has the same one, and would take the same rows again.
        ctx.deps.looks += 1
        number = ctx.deps.looks
        if number == 1 and not ctx.deps.look:
            return request_context
        with fenced():
            found = await self.look(ctx.deps, number, ctx.messages)
        if found.wish is not None:
            raise Stopped(text_of(found.wish))
        # Skip ends that the agent asked about; the close of the turn settles their rows. An end in the result of a
        # start or kill stays news: the agent may have planned something for it.
        letters = [letter for letter in found.letters if not _is_told(letter, ctx.deps)]
        ctx.deps.letters += letters
        if found.told is not None:
            ctx.deps.shown_chars += len(found.told.text)
        ctx.enqueue(*contents_of(letters), *([appended(found.told)] if found.told else []))
        if found.at - ctx.deps.began_at > ctx.deps.seconds:
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
        """Record the result of an exec tool, and note the ends that it reports."""
        if (tool_def.metadata or {}).get("category") not in OURS:
            try:
                return await _theirs(ctx, call, handler(args))
            finally:
                await self._recorded(ctx.deps.conversation_id)

        async def act() -> tuple[bool, Any]:
            wish = await self.wished(ctx.deps)
            # An earlier execution may have run this call to its end: then its result must be told here.
            if wish is not None and not await self.ended(session_id(origin_of(ctx))):
                # "More": an earlier execution may have begun it. Its process continues, and its end is told.
                return False, ToolFailed(f"Nothing more was done: {wish.by} stopped this turn.")
            try:
                return True, await handler(args)
            except SIGNALS as answer:
                return False, answer
            finally:
                # A result that is kept while its end is not would be told a second time after a crash.
                await self._recorded(ctx.deps.conversation_id)

        answered, result = await recorded(f"tool.{call.tool_name}", act)
        reach("tool.returned")
        if not answered:
            raise result
        ends = _ends_in(result)
        ctx.deps.told.update(ends)
        if not tool_named(call.tool_name).asks:
            ctx.deps.asked.update(ends)
        ctx.deps.read += _ranges_in(result)
        return result

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[TurnDeps],  # noqa: ARG002 - the hook's signature
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """Fail calls of external tools, which nothing here executes. Calls for approval are left alone."""
        if not requests.calls:
            return None
        nobody = ToolFailed("Nothing was done: only the agent that defines this tool can execute its calls.")
        return DeferredToolResults(calls={call.tool_call_id: nobody for call in requests.calls})


async def _theirs(ctx: RunContext[TurnDeps], call: ToolCallPart, running: Awaitable[Any]) -> Any:
    """Wait for a foreign tool, and tell the model when it fails; a failed turn would run it again.

    After a timeout, a function in a thread continues there, and its result is discarded.
    """
    task, seconds = asyncio.current_task(), ctx.deps.seconds
    timeout = asyncio.timeout(seconds)
    try:
        with abandon_threads_on_cancel():
            async with timeout:
                return await running
    except ENDS:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        if isinstance(error, dbos_error.DBOSException) and not isinstance(error, dbos_error.DBOSMaxStepRetriesExceeded):
            raise
        log.exception("the tool %s failed; the model is told", call.tool_name)
        said = f"{type(error).__name__}: {str(error)[:SAID_CHARS]}"
        if timeout.expired():
            said = f"it had not returned after {seconds:g} s"
        raise ToolFailed(f"The tool failed ({said}). It may have done a part of its work.") from None


def _is_told(letter: Letter, deps: TurnDeps) -> bool:
    if letter.kind == "watch":
        return is_read(letter.payload, deps.read)
    return letter.kind == "exit" and letter.payload.get("session_id") in deps.asked


def _about(result: Any) -> list[dict[str, Any]]:
    metadata: dict[str, Any] = getattr(result, "metadata", None) or {}
    return [metadata, *metadata.get("sessions", ())]


def _ranges_in(result: Any) -> list[Range]:
    found = [(one.get("session_id"), one.get("read")) for one in _about(result)]
    return [(SessionId(name), read[0], read[1]) for name, read in found if name and read]


def _ends_in(result: Any) -> list[SessionId]:
    states = {one.get("session_id"): one.get("state") for one in _about(result)}
    return [SessionId(name) for name, state in states.items() if name and state and state not in LIVE]


def contents_of(letters: Sequence[Letter]) -> list[UserContent]:
    """The content for the history, in the order of the rows: messages as plain text, all else as marked notices."""
    pairs = zip(letters, texts_of(letters), strict=True)
    return [text if one.kind == "message" else notice(text, one.kind, one.payload) for one, text in pairs]


def notice(text: str, kind: str, payload: Mapping[str, Any] | None = None) -> TextContent:
    """A text of ours for the history, with the session that its `payload` names."""
    about = {key: value for key, value in (payload or {}).items() if key == "session_id"}
    return TextContent(text, metadata={NOTICE: kind, **about})


def texts_of(letters: Sequence[Letter]) -> list[str]:
    """One text per row, in the order of the rows."""
    return [TEXTS[letter.kind](letter.payload) for letter in letters]


def turn_failed_text(payload: dict[str, Any]) -> str:
    """Tell the model that an earlier turn failed, and which sessions it had started."""
    started: list[dict[str, Any]] = payload.get("started", [])
    lines = [f"[turn failed: {payload['reason']}; it is tried again]"]
    lines += [
        f"It had started session {row['session_id']} ({row['state']}): "
        + json.dumps(row["command"], ensure_ascii=False)
        for row in started
    ]
    lines.append("Nothing above is started again by repeating it here; look before you repeat a command.")
    return "\n".join(lines)


TEXTS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "message": lambda payload: str(payload["text"]),
    "exit": wake_text,
    "watch": watch_text,
    "connect": connect_text,
    "typed": lambda payload: said(payload["session_id"], payload["bytes"], over=payload["over"]),
    "turn_failed": turn_failed_text,
}
"""The text of a row, by its kind."""
