"""One handling of one work item by the agent: the workflow that DBOS runs, repeats and recovers.

The order of its steps is its shape: a replay matches them by position. Change the shape and
`STEP_SHAPE` goes up, so that no worker replays a turn that another shape has recorded.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, capture_run_messages
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.run import AgentRunResult
from pydantic_ai.usage import UsageLimits

from shellback.agent.answer import answer_text
from shellback.exec.core.identity import call_key, origins_in
from shellback.exec.wire.crashpoints import reach
from shellback.log import about
from shellback.storage.db import Database
from shellback.work.approvals.answers import changes_in, grants_of, results_of
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import PENDING, Proposed
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue.items import ItemType, WorkItem
from shellback.work.queue.mailbox import Letter
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import claims
from shellback.work.turn.beginning import Begun, begin
from shellback.work.turn.claims import Entry, Wakes
from shellback.work.turn.closing import Closing, TurnStore, close, outcome_of
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.failures import answerable, explain
from shellback.work.turn.hearing import Fenced, Stopped, recorded
from shellback.work.turn.prompt import contents_of, notice
from shellback.work.turn.watching import TurnWatch, Unwatched

STEP_SHAPE: Final = 6

log = logging.getLogger(__name__)

Propose = Callable[[str, str, dict[str, Any]], Awaitable[tuple[str, dict[str, Any]]]]
"""Digest and display of a call: (conversation id, tool name, arguments) → (digest, what a person is shown)."""


async def nothing_left(_conversation_id: str) -> None:
    """What a turn starts runs as long as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of one turn."""

    requests: int = 100
    tokens: int = 1_000_000
    seconds: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRunner:
    """Runs turns. Wired alike in every worker: a replay under another wiring fails."""

    database: Database
    enqueuer: Enqueuer
    agent: Agent[TurnDeps, Any]
    propose: Propose
    gate: Callable[[], bool]
    executor_id: str
    budget: Budget = field(default_factory=Budget)
    wakes: Wakes = field(default_factory=Wakes)
    approval_ttl_s: float = 3600.0
    pending_limit: int = PENDING
    outbox: Outbox = SILENT
    equip: Callable[[TurnDeps], None] = lambda _: None
    """Gives a turn whose gate is open what the code of tools works with."""
    watch: TurnWatch = field(default_factory=Unwatched)
    closed: Callable[[str], Awaitable[None]] = nothing_left
    """Called with a conversation after the close of each of its turns; it never raises."""
    host_id: str = ""
    running: Counter[str] = field(default_factory=Counter[str])
    """Items that are executed at present, and how often: one that was taken over and came back may be twice."""

    async def run(self, data: dict[str, Any]) -> dict[str, Any]:
        """Handle one item: claim, hear, run the agent, close. Returns the outcome for whoever looks it up.

        Cancelling leaves what the recorded steps did; the sweep frees the conversation.
        """
        item = WorkItem.from_json(data)
        self.running[item.id] += 1
        try:
            return await self._run(item)
        finally:
            self.running[item.id] -= 1
            if not self.running[item.id]:
                del self.running[item.id]

    async def _run(self, item: WorkItem) -> dict[str, Any]:
        reach("wake.entered" if item.type is ItemType.EXEC_CALLBACK else "turn.entered")
        with about(conversation=item.conversation_id, work_item=item.id):
            entry: Entry = await self.database.write(
                _enter, item, self.executor_id, self.wakes, self.outbox, self.host_id
            )
            if entry.epoch is None:
                self.outbox.ring()
                if entry.alarm is not None:
                    self.watch.failed("set_aside")
                    log.error("conversation set aside: %s", entry.alarm)
                await self.watch.began(item, entry.outcome)
                return {"outcome": entry.outcome}
            with about(epoch=entry.epoch):
                return {"outcome": await self._watched(item, entry.epoch)}

    async def _watched(self, item: WorkItem, epoch: int) -> str:
        await self.watch.began(item)
        began, outcome = time.monotonic(), "superseded"
        try:
            outcome = await self._handle(item, epoch)
        except Fenced:
            log.warning("turn overtaken by a newer execution")
        except BaseException:
            outcome = "died"
            raise
        finally:
            self.watch.ended(item, outcome, time.monotonic() - began)
            self.outbox.ring()
        log.info("turn ended: %s", outcome)
        await self.closed(item.conversation_id)
        return outcome

    async def _handle(self, item: WorkItem, epoch: int) -> str:
        async def read() -> Begun:
            return await self.database.write(begin, item, epoch, self.gate())

        begun = await recorded("begin", read)
        reach("turn.begun")
        deps = TurnDeps(
            conversation_id=item.conversation_id,
            turn_id=item.id,
            epoch=epoch,
            gate=begun.gate,
            began_at=begun.at,
            seconds=self.budget.seconds,
            letters=list(begun.letters),
        )
        if begun.gate:
            self.equip(deps)
        store = TurnStore(self.database, self.enqueuer, begun.record)
        conversation = await store.load(item.conversation_id) or Conversation(conversation_id=item.conversation_id)
        changed = [request for request in begun.decided if request.state == "changed"]
        if changed and conversation.deferred_tool_requests is not None:
            return await self._ask_again(item, epoch, changed)
        results = results_of(conversation, begun.decided)
        if not begun.letters and results is None:
            return await self._close_without_news(item, epoch)
        deps.approvals = grants_of(begun.decided)
        with capture_run_messages() as messages:
            try:
                result = await self._run_agent(conversation, begun.letters, results, deps, changes_in(begun.decided))
            except Exception as error:
                if (cause := answerable(error)) is None:
                    raise
                return await self._close_with_error(item, store, conversation, list(messages), deps, cause)
        return await self._close(item, store, result, deps)

    async def _run_agent(
        self,
        conversation: Conversation,
        letters: Sequence[Letter],
        results: DeferredToolResults | None,
        deps: TurnDeps,
        changes: Sequence[str] = (),
    ) -> AgentRunResult[Any]:
        told = [*(notice(text, "changed") for text in changes), *contents_of(letters)]
        spent = conversation.usage
        return await self.agent.run(
            (told[0] if len(told) == 1 and isinstance(told[0], str) else told) or None,
            conversation=conversation,
            deferred_tool_results=results,
            deps=deps,
            usage_limits=UsageLimits(
                request_limit=spent.requests + self.budget.requests,
                total_tokens_limit=spent.total_tokens + self.budget.tokens,
            ),
        )

    async def _ask_again(self, item: WorkItem, epoch: int, changed: Sequence[Request]) -> str:
        """Propose what a person wants instead; nothing else of the conversation goes on until that is decided."""

        async def act() -> str:
            closing = Closing(
                conversation_id=item.conversation_id,
                turn_id=item.id,
                epoch=epoch,
                outcome="pending_approval",
                again={request.id: await self._changed(request) for request in changed},
                ttl_s=self.approval_ttl_s,
                outbox=self.outbox,
            )
            return await self.database.write(close, self.enqueuer, closing, None, [], None)

        return await recorded("close", act)

    async def _changed(self, request: Request) -> Proposed:
        args = request.changed_args or {}
        digest, display = await self.propose(request.conversation_id, request.tool_name, args)
        return Proposed(
            call_key=request.call_key,
            tool_call_id=request.tool_call_id,
            tool_name=request.tool_name,
            args=args,
            display=display | {"changed_by": request.changed_by},
            digest=digest,
        )

    async def _close_without_news(self, item: WorkItem, epoch: int) -> str:
        closing = Closing(conversation_id=item.conversation_id, turn_id=item.id, epoch=epoch, outcome="nothing")

        async def act() -> str:
            return await self.database.write(close, self.enqueuer, closing, None, [], None)

        return await recorded("close", act)

    async def _close(self, item: WorkItem, store: TurnStore, result: AgentRunResult[Any], deps: TurnDeps) -> str:
        async def act() -> str:
            output = result.output
            proposed: tuple[Proposed, ...] = ()
            if isinstance(output, DeferredToolRequests):
                proposed = await self._proposed(item.conversation_id, result.all_messages(), output.approvals)
            store.closing = Closing(
                conversation_id=item.conversation_id,
                turn_id=item.id,
                epoch=deps.epoch,
                outcome="pending_approval" if proposed else "answered",
                answer=None if proposed else answer_text(output),
                proposed=proposed,
                told=frozenset(deps.told),
                read=tuple(deps.read),
                heard=_ids(deps.letters),
                ttl_s=self.approval_ttl_s,
                pending_limit=self.pending_limit,
                outbox=self.outbox,
            )
            await store.save(result)
            return await self.database.read(_outcome, item.id)

        return await recorded("close", act)

    async def _close_with_error(
        self,
        item: WorkItem,
        store: TurnStore,
        conversation: Conversation,
        messages: list[ModelMessage],
        deps: TurnDeps,
        error: Exception,
    ) -> str:
        text, stopped = explain(error), isinstance(error, Stopped)
        if not stopped:
            log.warning("turn answered with an error: %s", text)
        store.closing = Closing(
            conversation_id=item.conversation_id,
            turn_id=item.id,
            epoch=deps.epoch,
            outcome="stopped" if stopped else "failed",
            answer=text,
            error=None if stopped else f"{type(error).__name__}: {error}"[:4_000],
            told=frozenset(deps.told),
            read=tuple(deps.read),
            heard=_ids(deps.letters),
        )
        before = len(conversation.messages)
        new = messages[before:] if len(messages) > before else []
        conversation.messages = _mended([*conversation.messages, *new], _unheard(new, deps.letters), text)
        conversation.deferred_tool_requests = None

        async def act() -> str:
            await store.save(conversation)
            return await self.database.read(_outcome, item.id)

        return await recorded("close", act)

    async def _proposed(
        self, conversation_id: str, messages: list[ModelMessage], calls: Sequence[ToolCallPart]
    ) -> tuple[Proposed, ...]:
        origins = origins_in(messages, conversation_id, [call.tool_call_id for call in calls])
        found: list[Proposed] = []
        for call, origin in zip(calls, origins, strict=True):
            args = call.args_as_dict()
            digest, display = await self.propose(conversation_id, call.tool_name, args)
            found.append(
                Proposed(
                    call_key=call_key(origin),
                    tool_call_id=call.tool_call_id,
                    tool_name=call.tool_name,
                    args=args,
                    display=display,
                    digest=digest,
                )
            )
        return tuple(found)


def _enter(conn: sa.Connection, item: WorkItem, executor_id: str, wakes: Wakes, outbox: Outbox, host_id: str) -> Entry:
    return claims.enter(conn, item, executor_id=executor_id, wakes=wakes, outbox=outbox, host_id=host_id)


def _outcome(conn: sa.Connection, turn_id: str) -> str:
    return outcome_of(conn, turn_id) or "open"


def _ids(letters: Sequence[Letter]) -> frozenset[int]:
    return frozenset(letter.id for letter in letters)


def _unheard(messages: Sequence[ModelMessage], letters: Sequence[Letter]) -> list[UserContent]:
    """Texts the run was given that its messages do not have: it was stopped before they were put there."""
    had: set[object] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                had |= set(map(_text, [part.content] if isinstance(part.content, str) else part.content))
    return [told for told in contents_of(letters) if _text(told) not in had]


def _text(piece: UserContent) -> str:
    return piece.content if isinstance(piece, TextContent) else str(piece)


def _mended(messages: Sequence[ModelMessage], unheard: list[UserContent], text: str) -> list[ModelMessage]:
    """A history that the next run accepts: every call answered, all news in it, the failure said by the agent."""
    kept = list(messages)
    last = kept[-1] if kept else None
    if isinstance(last, ModelResponse):
        open_calls = [part for part in last.parts if isinstance(part, ToolCallPart)]
        if open_calls:
            kept.append(
                ModelRequest(
                    parts=[
                        ToolReturnPart(
                            tool_name=part.tool_name,
                            content="Not known: the turn ended before this call's answer. Look before repeating it.",
                            tool_call_id=part.tool_call_id,
                            outcome="failed",
                        )
                        for part in open_calls
                    ]
                )
            )
    if unheard:
        kept.append(ModelRequest(parts=[UserPromptPart(unheard)]))
    return [*kept, ModelResponse(parts=[TextPart(text)])]
