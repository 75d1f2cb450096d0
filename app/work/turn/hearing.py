"""The capability that ties an agent's run to its turn: news before each request, tool calls as steps."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
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
from pydantic_ai.messages import TextContent, ToolCallPart, UserContent
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolDefinition

from shellback.exec.core.identity import origin_of, session_id
from shellback.exec.core.model import SessionId
from shellback.exec.core.pydantic_private import abandon_threads_on_cancel
from shellback.exec.reports.blocks import Told
from shellback.exec.reports.callback_text import NOTICE, wake_text, watch_text
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
from shellback.work.turn.stopping import Wish, look, text_of, wish_for

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

log = logging.getLogger(__name__)

T = TypeVar("T")
OURS: Final = frozenset({"exec", "process"})
SAID_CHARS: Final = 500
SIGNALS: Final = (ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred)
"""Exceptions by which a tool answers; they are results and are recorded as such."""
ENDS: Final = (*SIGNALS, ModelRetry, ToolFailed, SkipToolExecution, ValidationError, AgentRunError, UserError)
"""What a tool of somebody else may raise to some effect; whatever else it raises is its failure."""


class OutOfTime(AgentRunError):
    """Raised before a model request when the turn has used up its seconds. The clock was read in a step."""


class Stopped(AgentRunError):
    """Raised before a model request when a person wants the turn to end. The wish was read in a step."""


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


Take = Callable[[TurnDeps, int], Awaitable[tuple[list[Letter], Wish | None]]]
"""News for a look, and the wish that the turn ends; with a wish nothing is taken, and what is unread waits."""
Wished = Callable[[TurnDeps], Awaitable[Wish | None]]
Ended = Callable[[SessionId], Awaitable[bool]]
"""Whether there is a session of this id, and it has ended."""


class Hearing(AbstractCapability[TurnDeps]):
    """Hears the mailbox before each model request and records each exec tool call.

    A tool body that reads the state of a session would read another on a replay; recorded as a
    step it is read once. The body itself is keyed by its call, so that a step which is cut off
    and repeated starts and writes nothing twice.
    """

    def __init__(self, take: Take, wished: Wished, ended: Ended | None = None, live: LiveBlocks | None = None) -> None:
        self._take = take
        self._wished = wished
        self._ended = ended
        self._live = live

    async def before_model_request(
        self, ctx: RunContext[TurnDeps], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Let an exit or a message that came meanwhile reach the running turn, and show what processes have done."""
        # Not the run's own step number: a retried request has the same one and would hear everything again.
        ctx.deps.looks += 1
        number = ctx.deps.looks

        async def take() -> tuple[list[Letter], Wish | None, float, Told | None]:
            # Before the letters: what has ended by then has its letter among them, and is told once.
            sessions = await self._live.sessions(ctx.deps) if self._live else []
            letters, wish = await self._take(ctx.deps, number)
            told = None
            if self._live and wish is None:
                told = await self._live.news(ctx.deps, sessions, ctx.messages, letters)
            return letters, wish, time.time(), told

        letters, wish, now, told = await recorded("mailbox", take)
        if wish is not None:
            raise Stopped(text_of(wish))
        # An end that it looked for; the close of the turn settles its row. One that it meets with in the answer to a
        # call that starts or kills is news all the same: it may have said what is to be done then.
        letters = [letter for letter in letters if not _is_told(letter, ctx.deps)]
        ctx.deps.letters += letters
        if told is not None:
            ctx.deps.shown_chars += len(told.text)
        ctx.enqueue(*contents_of(letters), *([appended(told)] if told else []))
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
            return await _theirs(ctx, call, handler(args))

        async def act() -> tuple[bool, Any]:
            wish = await self._wished(ctx.deps)
            if wish is not None and not await self._ran(ctx):
                # "More": an execution that was cut off may have begun it; its process goes on, and its end is told.
                return False, ToolFailed(f"Nothing more was done: {wish.by} stopped this turn.")
            try:
                return True, await handler(args)
            except SIGNALS as answer:
                return False, answer

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

    async def _ran(self, ctx: RunContext[TurnDeps]) -> bool:
        """Whether an execution that was cut off has run this call to its end: its result is told here or nowhere."""
        return self._ended is not None and await self._ended(session_id(origin_of(ctx)))

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[TurnDeps],  # noqa: ARG002 - the hook's signature
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """Answer calls that somebody outside would have to carry out: nobody does. Those for approval go on."""
        if not requests.calls:
            return None
        nobody = ToolFailed("Nothing was done: nobody here carries out calls of this tool outside of its agent.")
        return DeferredToolResults(calls={call.tool_call_id: nobody for call in requests.calls})


async def _theirs(ctx: RunContext[TurnDeps], call: ToolCallPart, running: Awaitable[Any]) -> Any:
    """Wait for a tool that is not ours. Its failure is told to the model: a turn that died of it would run it again.

    A function that runs in a thread goes on in it when its time is over; nobody hears what it returns.
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
        raise ToolFailed(f"The tool failed ({said}). What it did until then is not known.") from None


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


def hearing_of(database: Database, live: LiveBlocks | None = None) -> Hearing:
    """A `Hearing` that finds news and wishes in this database, and shows processes by `live`."""

    async def take(deps: TurnDeps, step: int) -> tuple[list[Letter], Wish | None]:
        return await database.write(look, deps.conversation_id, deps.turn_id, deps.epoch, step)

    async def wished(deps: TurnDeps) -> Wish | None:
        return await database.read(wish_for, deps.conversation_id, deps.turn_id)

    async def ended(session_id: SessionId) -> bool:
        session = await database.read(sessions.get, session_id)
        return session is not None and session.end is not None

    return Hearing(take, wished, ended, live)


def contents_of(letters: Sequence[Letter]) -> list[UserContent]:
    """What goes into the history, in the order the rows came: what a person said as it is, all else marked."""
    pairs = zip(letters, texts_of(letters), strict=True)
    return [text if one.kind == "message" else notice(text, one.kind, one.payload) for one, text in pairs]


def notice(text: str, kind: str, payload: Mapping[str, Any] | None = None) -> TextContent:
    """A text of ours, for the history; with it goes the session that its `payload` is about."""
    about = {key: value for key, value in (payload or {}).items() if key == "session_id"}
    return TextContent(text, metadata={NOTICE: kind, **about})


def texts_of(letters: Sequence[Letter]) -> list[str]:
    """One text per row, in the order the rows came."""
    return [_text(letter.kind, letter.payload) for letter in letters]


def _text(kind: str, payload: dict[str, Any]) -> str:
    if kind == "message":
        return str(payload["text"])
    if kind == "exit":
        return wake_text(payload)
    if kind == "watch":
        return watch_text(payload)
    if kind == "typed":
        return said(payload["session_id"], payload["bytes"], over=payload["over"])
    return turn_failed_text(payload)


def turn_failed_text(payload: dict[str, Any]) -> str:
    """Tell the model that an earlier turn broke off, and what it had already started."""
    started: list[dict[str, Any]] = payload.get("started", [])
    lines = [f"[turn failed: {payload['reason']}; it is tried again]"]
    lines += [
        f"It had started session {row['session_id']} ({row['state']}): "
        + json.dumps(row["command"], ensure_ascii=False)
        for row in started
    ]
    lines.append("Nothing above is started again by repeating it here; look before you repeat a command.")
    return "\n".join(lines)
