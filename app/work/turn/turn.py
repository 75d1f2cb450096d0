"""A turn: the workflow that DBOS runs and replays for one work item.

A replay matches steps by position. Increase `STEP_SHAPE` when their order changes, so that no worker replays a turn
that was recorded with another order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import TypeAdapter
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

from shellback.exec.core.identity import call_key, origins_in
from shellback.exec.core.pydantic_private import interrupted_in
from shellback.exec.wire.crashpoints import reach
from shellback.log import about
from shellback.storage.db import Database
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import PENDING, Proposed, changes_in, grants_of, results_of
from shellback.work.notices.notices import SILENT, Outbox
from shellback.work.queue.items import ItemType, WorkItem
from shellback.work.queue.mailbox import Letter, Workspace
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn.claims import NameLost, Wakes
from shellback.work.turn.closing import (
    Begun,
    Closed,
    Closing,
    Shows,
    TurnStore,
    close,
    enter,
    shows_nothing,
    spent_in,
)
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.failures import answerable, explain
from shellback.work.turn.hearing import Fenced, Stopped, contents_of, fenced, nothing_waits, notice
from shellback.work.turn.telling import Telling
from shellback.work.turn.watching import TurnWatch

STEP_SHAPE: Final = 11

log = logging.getLogger(__name__)

Propose = Callable[[str, str, dict[str, Any]], Awaitable[tuple[str, dict[str, Any]]]]
"""(conversation id, tool name, arguments) → (digest, display for a person)."""


async def nothing_left(_conversation_id: str) -> None:
    """End nothing after a turn."""


async def bare(_deps: TurnDeps, _workspace: Workspace) -> None:
    """Give a turn no workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of one turn."""

    requests: int = 100
    tokens: int = 1_000_000
    seconds: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRunner:
    """Runs turns. Every worker must be wired alike, or a replay fails."""

    database: Database
    enqueuer: Enqueuer
    agent: Agent[TurnDeps, Any]
    propose: Propose
    gate: Callable[[], bool]
    executor_id: str
    token: str = ""
    """Of the lease of this worker's name; a worker that lost it begins no turn."""
    budget: Budget = field(default_factory=Budget)
    wakes: Wakes = field(default_factory=Wakes)
    approval_ttl_s: float = 3600.0
    pending_limit: int = PENDING
    window: int = 0
    """As of `TurnStore`."""
    outbox: Outbox = SILENT
    equip: Callable[[TurnDeps, Workspace], Awaitable[None]] = bare
    """Gives a turn with an open gate its workspace, shell and files."""
    shows: Shows = shows_nothing
    watch: TurnWatch = field(default_factory=TurnWatch)
    telling: Telling | None = None
    """Its events that are not written yet are written when the turn closes."""
    closed: Callable[[str], Awaitable[None]] = nothing_left
    """Called with the conversation id if a turn that closes leaves sessions; it never raises."""
    recorded: Callable[[str], Awaitable[None]] = nothing_waits
    """Waits until the ends that calls of this conversation were told are recorded."""
    hosts: Container[str] | None = None
    """The hosts whose turns it runs; None: all."""
    others: Mapping[str, Agent[TurnDeps, Any]] = field(default_factory=dict[str, Agent[TurnDeps, Any]])
    """The agents of workspaces that have another than `agent`, by the names of the workspaces."""
    budgets: Mapping[str, Budget] = field(default_factory=dict[str, Budget])
    """Those of workspaces that may have another than `budget`, by the names of the workspaces."""
    running: Counter[str] = field(default_factory=Counter[str])
    """Executions per item; an item that was taken over and came back may have two."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the worker stops; at its end, threads are gone before turns are."""
    first: set[str] = field(default_factory=set[str])
    """Items whose first execution runs here, and no other: nothing is recorded of their next steps."""

    async def run(self, data: dict[str, Any]) -> dict[str, Any]:
        """Handle one item: claim, read, run the agent, close. Returns the outcome.

        After a cancellation, recorded steps stay recorded, and the sweep frees the conversation.
        """
        item = WorkItem.from_json(data)
        self.running[item.id] += 1
        try:
            return await self._run(item)
        finally:
            self.first.discard(item.id)
            self.running[item.id] -= 1
            if not self.running[item.id]:
                del self.running[item.id]

    async def _run(self, item: WorkItem) -> dict[str, Any]:
        reach("wake.entered" if item.type is ItemType.EXEC_CALLBACK else "turn.entered")
        with about(conversation=item.conversation_id, work_item=item.id):
            how: dict[str, Any] = {"executor_id": self.executor_id, "outbox": self.outbox, "hosts": self.hosts}
            how |= {"token": self.token, "wakes": self.wakes}
            try:
                entry, begun = await self.database.write(enter, item, self.gate(), self.shows, **how)
            except NameLost as lost:
                log.warning("turn not begun: %s", lost)
                await asyncio.Event().wait()  # an end would be recorded: the item is left to the holder of the name
                raise
            (self.first.add if entry.first else self.first.discard)(item.id)
            if entry.epoch is None or begun is None:
                self.outbox.ring()
                if entry.alarm is not None:
                    self.watch.failed("set_aside")
                    log.error("conversation set aside: %s", entry.alarm)
                await self.watch.began(item, entry.outcome)
                return {"outcome": entry.outcome}
            with about(epoch=entry.epoch):
                return {"outcome": await self._watched(item, entry.epoch, begun)}

    async def _watched(self, item: WorkItem, epoch: int, begun: Begun) -> str:
        await self.watch.began(item)
        began, end = time.monotonic(), Closed("superseded")
        try:
            with fenced():
                end = await self._handle(item, epoch, begun)
        except Fenced:
            log.warning("turn overtaken by a newer execution")
        except BaseException:
            end = Closed("died")
            raise
        finally:
            if self.telling is not None:
                self.telling.forget(item.id, epoch)
            self.watch.ended(item, end.outcome, time.monotonic() - began)
            self.outbox.ring()
        log.info("turn ended: %s", end.outcome)
        if end.leaves:
            await self.closed(item.conversation_id)
        return end.outcome

    async def _handle(self, item: WorkItem, epoch: int, begun: Begun) -> Closed:
        reach("turn.begun")
        seconds = self._budget(begun).seconds
        deps = TurnDeps(
            conversation_id=item.conversation_id,
            turn_id=item.id,
            epoch=epoch,
            gate=begun.gate,
            look=begun.look,
            began_at=begun.at,
            seconds=seconds,
            until=time.monotonic() + seconds - begun.ago,
            letters=list(begun.letters),
            host_id=begun.host_id,
        )
        if begun.gate:
            await self.equip(deps, begun.workspace)
        store = TurnStore(self.database, self.enqueuer, begun.record, self.window)
        conversation = await store.load(item.conversation_id) or Conversation(conversation_id=item.conversation_id)
        changed = [request for request in begun.decided if request.state == "changed"]
        if changed and conversation.deferred_tool_requests is not None:
            return await self._ask_again(item, epoch, changed)
        results = results_of(conversation, begun.decided)
        if not begun.letters and results is None:
            return await self._end(item, epoch, "nothing")
        deps.approvals = grants_of(begun.decided)
        with capture_run_messages() as messages:
            try:
                result = await self._run_agent(conversation, begun, results, deps)
            except Exception as error:
                if (cause := answerable(error, leaving=self.leaving.is_set())) is None:
                    raise
                return await self._close_with_error(store, conversation, list(messages), deps, cause)
        return await self._close(store, result, deps)

    async def _run_agent(
        self, conversation: Conversation, begun: Begun, results: DeferredToolResults | None, deps: TurnDeps
    ) -> AgentRunResult[Any]:
        changes = [notice(text, "changed") for text in changes_in(begun.decided)]
        told = [*changes, *contents_of(begun.letters)]
        spent, budget = conversation.usage, self._budget(begun)
        return await self.others.get(begun.workspace.name, self.agent).run(
            (told[0] if len(told) == 1 and isinstance(told[0], str) else told) or None,
            conversation=conversation,
            deferred_tool_results=results,
            deps=deps,
            usage_limits=UsageLimits(
                request_limit=spent.requests + budget.requests,
                total_tokens_limit=spent.total_tokens + budget.tokens,
            ),
        )

    def _budget(self, begun: Begun) -> Budget:
        return self.budgets.get(begun.workspace.name, self.budget)

    async def _ask_again(self, item: WorkItem, epoch: int, changed: Sequence[Request]) -> Closed:
        """Propose the changed calls; the conversation waits until they are decided."""
        again = {request.id: await self._changed(request) for request in changed}
        return await self._end(
            item, epoch, "pending_approval", again=again, ttl_s=self.approval_ttl_s, outbox=self.outbox
        )

    async def _end(self, item: WorkItem, epoch: int, outcome: str, **more: Any) -> Closed:
        """Close a turn that adds nothing to its history."""
        closing = Closing(conversation_id=item.conversation_id, turn_id=item.id, epoch=epoch, outcome=outcome, **more)
        return await self.database.write(close, self.enqueuer, closing, None, [], None)

    async def _changed(self, request: Request) -> Proposed:
        call = (request.tool_name, request.changed_args or {}, request.call_key, request.tool_call_id)
        proposed = await self._proposal(request.conversation_id, *call)
        return replace(proposed, display=proposed.display | {"changed_by": request.changed_by})

    async def _close(self, store: TurnStore, result: AgentRunResult[Any], deps: TurnDeps) -> Closed:
        output = result.output
        proposed: tuple[Proposed, ...] = ()
        if isinstance(output, DeferredToolRequests):
            proposed = await self._proposed(deps.conversation_id, result.all_messages(), output.approvals)
        store.closing = await self._closing(
            deps,
            result.new_messages(),
            outcome="pending_approval" if proposed else "answered",
            answer=None if proposed else answer_text(output),
            proposed=proposed,
            ttl_s=self.approval_ttl_s,
            pending_limit=self.pending_limit,
            outbox=self.outbox,
        )
        await store.save(result)
        return store.closed

    async def _close_with_error(
        self,
        store: TurnStore,
        conversation: Conversation,
        messages: list[ModelMessage],
        deps: TurnDeps,
        error: Exception,
    ) -> Closed:
        text, stopped = explain(error), isinstance(error, Stopped)
        if not stopped:
            log.warning("turn answered with an error: %s", text)
        said = None if stopped else f"{type(error).__name__}: {error}"[:4_000]
        before = len(conversation.messages)
        new = messages[before:]
        if not new or isinstance(new[-1], ModelRequest):  # a run that somebody else streams has added it itself
            new += interrupted_in(error)
        outcome = "stopped" if stopped else "failed"
        store.closing = await self._closing(deps, new, outcome=outcome, answer=text, error=said)
        conversation.messages = _mended([*conversation.messages, *new], _unheard(new, deps.letters), text)
        conversation.deferred_tool_requests = None
        await store.save(conversation)
        return store.closed

    async def _closing(self, deps: TurnDeps, added: Sequence[ModelMessage], **more: Any) -> Closing:
        """The closing of a turn whose agent has run, and has added these messages."""
        await self.recorded(deps.conversation_id)
        events = await self.telling.rest(deps.turn_id, deps.epoch) if self.telling else ()
        return Closing(
            conversation_id=deps.conversation_id,
            turn_id=deps.turn_id,
            epoch=deps.epoch,
            told=frozenset(deps.told),
            read=tuple(deps.read),
            heard=frozenset(letter.id for letter in deps.letters),
            events=events,
            spent=spent_in(added),
            **more,
        )

    async def _proposed(
        self, conversation_id: str, messages: list[ModelMessage], calls: Sequence[ToolCallPart]
    ) -> tuple[Proposed, ...]:
        origins = origins_in(messages, conversation_id, [call.tool_call_id for call in calls])
        proposals = [
            await self._proposal(
                conversation_id, call.tool_name, call.args_as_dict(), call_key(origin), call.tool_call_id
            )
            for call, origin in zip(calls, origins, strict=True)
        ]
        return tuple(proposals)

    async def _proposal(
        self, conversation_id: str, tool_name: str, args: dict[str, Any], key: str, tool_call_id: str
    ) -> Proposed:
        digest, display = await self.propose(conversation_id, tool_name, args)
        return Proposed(
            call_key=key, tool_call_id=tool_call_id, tool_name=tool_name, args=args, display=display, digest=digest
        )


def _unheard(messages: Sequence[ModelMessage], letters: Sequence[Letter]) -> list[UserContent]:
    """Texts of the letters that the messages lack, because the run ended before they were added."""
    had: set[object] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                had |= set(map(_text, [part.content] if isinstance(part.content, str) else part.content))
    return [told for told in contents_of(letters) if _text(told) not in had]


def _text(piece: UserContent) -> str:
    return piece.content if isinstance(piece, TextContent) else str(piece)


def _mended(messages: Sequence[ModelMessage], unheard: list[UserContent], text: str) -> list[ModelMessage]:
    """A history that the next run accepts: it answers every call, contains all news, and ends with `text`."""
    kept = list(messages)
    last = kept[-1] if kept else None
    content = "Not known: the turn ended before this call's answer. Look before repeating it."
    if isinstance(last, ModelResponse) and (
        parts := [
            ToolReturnPart(part.tool_name, content, part.tool_call_id, outcome="failed")
            for part in last.parts
            if isinstance(part, ToolCallPart)
        ]
    ):
        kept.append(ModelRequest(parts=parts))
    if unheard:
        kept.append(ModelRequest(parts=[UserPromptPart(unheard)]))
    return [*kept, ModelResponse(parts=[TextPart(text)])]


_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)


def answer_text(output: object) -> str:
    """A string unchanged; any other output as JSON."""
    return output if isinstance(output, str) else _ANY.dump_json(output, indent=2, fallback=str).decode()
