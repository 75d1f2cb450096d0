"""Runs of AG-UI: a message that is sent or answers to approvals, and then what the conversation tells until its end.

Pydantic AI's adapter reads the request, and its event stream writes the events. They are given what the events of the
conversation say, where they would be given an agent that runs; the turn is that of a worker, whoever listens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    Interrupt,
    Message,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    TextMessageContentEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    UserMessage,
)
from ag_ui.core import TextPart as SentText
from pydantic import ValidationError
from pydantic_ai import Agent, DeferredToolRequests, ToolApproved, ToolDenied
from pydantic_ai.exceptions import RunCancelled, UserError
from pydantic_ai.messages import (
    CustomEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.run import AgentRunResult, AgentRunResultEvent
from pydantic_ai.ui import NativeEvent
from pydantic_ai.ui.ag_ui import AGUIAdapter, AGUIEventStream

from shellback.client.caller import Caller
from shellback.client.facts import Approval, Event
from shellback.client.failures import logged
from shellback.client.following import REPEATED
from shellback.client.local import Local
from shellback.client.messages import Fate, Waiting
from shellback.client.operations import OPERATIONS, Asking
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.sending import Sent
from shellback.work.errors import ApprovalRefused, ApprovalSettled, InvalidRequest, UnknownApproval, mistakes_in
from shellback.work.queue import stream
from shellback.work.queue.queues import LOOK_S

_ASIDE: Final = "the conversation is set aside after failed turns; send a message to try again"
ENDS: Final = frozenset({"answer", "failed", "stopped", "approval", "alarm"})
"""Kinds with which a run may have ended."""
_KINDS: Final = REPEATED | ENDS
_BETWEEN: Final = ":"
"""Between the request and its digest in the id of an interrupt, so that an answer is about what was shown."""
_DENIED: Final = ToolDenied().message


@dataclass(kw_only=True)
class TextReplaced(CustomEvent, name="text_replaced"):
    """The text of this message is void: a crash made the turn ask the model again, which says something else."""

    message_id: str


async def begin(local: Local, caller: Caller, body: bytes) -> AsyncGenerator[str]:
    """Send the message of a run, or give its answers; then its events, each as a server-sent one.

    A repeat with the same run id does neither again.

    Raises:
        WorkError, StorageError: Nothing was done, or a part of the answers was given, which a repeat leaves as it is.
    """
    asked = _asked(body)
    adapter = AGUIAdapter(Agent(), asked)
    try:
        answers = adapter.deferred_tool_results
    except UserError as error:
        raise InvalidRequest(f"{error}; nothing was done") from None
    run = await local.within(
        caller, lambda at: _answered(at, asked, answers.approvals) if answers else _sent(at, asked)
    )
    return _Run(local, caller, run, asked).lines()


def _asked(body: bytes) -> RunAgentInput:
    try:
        return AGUIAdapter[None, Any].build_run_input(body)
    except ValidationError as error:
        raise InvalidRequest(f"the request is no RunAgentInput of AG-UI: {mistakes_in(error)}") from None
    except (ValueError, RecursionError):
        raise InvalidRequest("the request is not JSON; nothing was done") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What a run follows: from which place on, and whose outcome. `mine`: what is told there is its own at once."""

    after: str
    waiting: Waiting
    mine: bool


def _do(at: Asking, name: str, **given: Any) -> Any:
    return OPERATIONS[name].function(at, **OPERATIONS[name].checked(given))


def _sent(at: Asking, asked: RunAgentInput) -> _Begun:
    before = [one for one in asked.messages if isinstance(one, UserMessage) or not one.id.startswith(_own(asked))]
    newest = before[-1] if before else None
    if not isinstance(newest, UserMessage):
        raise InvalidRequest("the run neither ends with a message of the user nor resumes; nothing was done")
    parts = [SentText(text=newest.content)] if isinstance(newest.content, str) else newest.content
    texts = [part.text for part in parts if isinstance(part, SentText)]
    if len(texts) < len(parts):
        raise InvalidRequest("the message of the user has something that is not text; nothing was done: give text only")
    sent = _do(at, "send", conversation=asked.thread_id, text="\n".join(texts), key=asked.run_id)
    of = Sent(
        item_id=sent.item, conversation_id=sent.conversation, pending_approvals=sent.pending_approvals,
        blocked=sent.blocked, event=int(sent.event),
    )  # fmt: skip
    return _Begun(after=sent.event, waiting=Waiting(at.where.database, of), mine=False)


def _answered(at: Asking, asked: RunAgentInput, answers: Mapping[str, Any]) -> _Begun:
    given = {key: (_request(at, asked, key), answer) for key, answer in answers.items()}
    for key, (request, answer) in given.items():
        _require_possible(request, key, answer)
    for key, (request, answer) in given.items():
        if request.state != "pending":
            continue
        if isinstance(answer, ToolApproved):
            _do(at, "approve", id=request.id, digest=key.partition(_BETWEEN)[2])
        else:
            _do(at, "deny", id=request.id, reason=None if answer.message == _DENIED else answer.message)
    turn_id = next(request.turn_id for request, _ in given.values())
    database = at.where.database
    number = database.read_now(stream.number_of, asked.thread_id, turn_id, "decision")
    place = database.read_now(stream.last_number) if number is None else number - 1
    of = Sent(item_id="", conversation_id=asked.thread_id, pending_approvals=0, blocked=None, event=place)
    return _Begun(after=str(place), waiting=Waiting(database, of, turn_id), mine=True)


def _request(at: Asking, asked: RunAgentInput, key: str) -> Approval:
    given = key.partition(_BETWEEN)[0]
    found: Approval = _do(at, "approval", id=given)
    if found.id != given or found.conversation_id != asked.thread_id:
        raise UnknownApproval(f"interrupt {key[:200]!r} is not of this thread; nothing was done")
    return found


def _require_possible(request: Approval, key: str, answer: Any) -> None:
    """Raise unless the answer can be given, or agrees with what was decided already, here or elsewhere."""
    approves = isinstance(answer, ToolApproved)
    if approves and answer.override_args is not None:
        raise InvalidRequest("editedArgs: a call cannot be changed here; nothing was done: deny it with a reason")
    if approves and key.partition(_BETWEEN)[2] != request.digest:
        raise ApprovalRefused(f"{request.id} has changed since it was shown; nothing was done: repeat the run before")
    if request.state != "pending" and approves != (request.state in {"approved", "used"}):
        raise ApprovalSettled(
            f"{request.id} is {request.state} already, by {request.decided_by}; nothing was done: an answer that "
            "agrees with that continues the run"
        )


def _own(asked: RunAgentInput) -> str:
    """What the ids of messages begin with that this run has told; the same at each repeat."""
    return f"{asked.run_id}."


@dataclass
class _Stream(AGUIEventStream[Any, Any]):
    """That of Pydantic AI; messages have the same ids at each repeat, and interrupts are our requests."""

    requests: list[Request] = field(default_factory=list[Request], kw_only=True)
    failure: dict[str, str] | None = field(default=None, kw_only=True)
    """Type and message of what ended the run. No exception says it: that would end calls that go on."""
    _count: int = field(default=0, init=False)

    def new_message_id(self) -> str:
        """The next id."""
        assert self.run_input is not None
        self._count += 1
        self.message_id = f"{_own(self.run_input)}{self._count}"
        return self.message_id

    async def after_stream(self) -> AsyncIterator[BaseEvent]:
        """End the run."""
        if self.failure is not None:
            async for event in self.on_error(RuntimeError(self.failure["message"])):
                assert isinstance(event, RunErrorEvent)
                event.code = self.failure["type"]
                yield event
        async for event in super().after_stream():
            if isinstance(event, RunFinishedEvent) and isinstance(event.outcome, RunFinishedInterruptOutcome):
                for interrupt, request in zip(event.outcome.interrupts, self.requests, strict=True):
                    _describe(interrupt, request)
            yield event


def _describe(interrupt: Interrupt, request: Request) -> None:
    """Have an interrupt show what runs, and bind its answer to that."""
    prefix = interrupt.id.removesuffix(interrupt.tool_call_id or "")
    interrupt.id = f"{prefix}{request.id}{_BETWEEN}{request.digest}"
    interrupt.message = request.shown
    interrupt.expires_at = datetime.fromtimestamp(request.expires_at, UTC).isoformat()
    interrupt.metadata = {"approval": request.id, "tool": request.tool_name, "digest": request.digest}
    if interrupt.response_schema is not None:
        interrupt.response_schema["properties"].pop("editedArgs", None)


class _Run:
    """The events of a run: from those of the conversation those of Pydantic AI, and from them those of AG-UI."""

    def __init__(self, local: Local, caller: Caller, begun: _Begun, asked: RunAgentInput) -> None:
        self._local = local
        self._caller = caller
        self._begun = begun
        self._conversation = asked.thread_id
        self._stream = _Stream(asked)
        self._mine = begun.mine
        self._fate: Fate | None = None
        self._looked = -LOOK_S
        self._parts = 0
        self._writing = self._said = False
        """Whether a text is open; whether something was said since the last call or result."""
        mine = [one for one in asked.messages if one.id.startswith(_own(asked))]
        others = [one for one in asked.messages if one not in mine]
        self._known = {call.id for call in _calls(others)}
        """Calls that the client knows of: the turn that goes on after an approval tells of them again."""
        self._had = {one.id: len(one.content) for one in mine if isinstance(one.content, str)}
        self._had_args = {call.id for call in _calls(mine) if call.function.arguments}
        """What a client has of this run that comes again after its connection broke."""

    async def lines(self) -> AsyncGenerator[str]:
        """The events as text."""
        async with contextlib.aclosing(self._native()) as native:
            async for event in self._stream.transform_stream(native):
                if self._is_new(event):
                    yield self._stream.encode_event(event)

    def _is_new(self, event: BaseEvent) -> bool:
        """Whether the client has not got this; a text keeps what is new of it."""
        match event:
            case TextMessageContentEvent():
                cut = min(self._had.get(event.message_id, 0), len(event.delta))
                if cut:
                    self._had[event.message_id] -= cut
                    event.delta = event.delta[cut:]
                return bool(event.delta)
            case ToolCallArgsEvent():
                return event.tool_call_id not in self._had_args
            case ToolCallResultEvent():
                return event.message_id not in self._had
            case _:
                return True

    async def _native(self) -> AsyncGenerator[NativeEvent]:
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    for told in self._translated(event):
                        yield told
            for told in self._ended():
                yield told
        except RunCancelled:
            raise
        except Exception as error:  # noqa: BLE001 - the client is told of each
            for told in self._closed():
                yield told
            self._stream.failure = logged(error)[1]["error"]

    async def _events(self) -> AsyncGenerator[Event]:
        """What the turns of the run tell, until it has ended."""
        place = self._begun.after
        for follow in (True, False):
            found = self._local.events(self._conversation, place, _KINDS, self._caller, follow=follow)
            async with contextlib.aclosing(found):
                async for event in found:
                    if event is not None:
                        place = event.id
                        if await self._is_mine(event):
                            yield event
                    # An end comes with an event, but for one that was before the run, or whose event is not kept.
                    due = self._looked + LOOK_S <= time.monotonic() if event is None else event.kind in ENDS
                    if due and await self._is_over(event):
                        if event is not None:
                            return
                        break  # what was committed between the look at events and that at the outcome is read below

    async def _is_mine(self, event: Event) -> bool:
        """Whether a turn of the run tells it. While one waits for approval, no other turn runs."""
        if event.kind in REPEATED and not self._mine:
            await self._look()
            heard = self._begun.waiting.heard
            self._mine = heard is not None and heard.begun == event.turn_id
        return event.kind in REPEATED and self._mine

    async def _is_over(self, event: Event | None) -> bool:
        """Whether the run has ended, and not later than with this event."""
        await self._look()
        if self._fate is None or event is None:
            return self._fate is not None
        waiting = self._begun.waiting
        if self._fate == "pending_approval":
            return event.turn_id in {request.turn_id for request in waiting.requests}
        return event.kind == "alarm" or (waiting.heard is not None and waiting.heard.turn_id == event.turn_id)

    async def _look(self) -> None:
        self._looked = time.monotonic()
        self._fate = await self._local.within(self._caller, lambda _: self._begun.waiting.look())

    def _translated(self, event: Event) -> Iterator[NativeEvent]:
        told = event.payload
        if event.kind == "text":
            yield from self._text(told["text"], replaces=event.replaces)
            return
        yield from self._closed()
        self._said = False
        call_id = str(told.get("tool_call_id", event.id))
        if event.kind == "tool_result":
            result = ToolReturnPart(told["tool"], told["text"], call_id, outcome=told["outcome"])
            yield FunctionToolResultEvent(result)
            return
        call = ToolCallPart(told["tool"], told["args"], call_id)
        if call_id not in self._known:
            self._known.add(call_id)
            self._parts += 1
            yield PartStartEvent(index=self._parts, part=call)
            yield PartEndEvent(index=self._parts, part=call)
        yield FunctionToolCallEvent(call)

    def _text(self, text: str, *, replaces: bool = False) -> Iterator[NativeEvent]:
        if replaces and self._said:
            yield from self._closed()
            yield TextReplaced(message_id=self._stream.message_id)
        if self._writing:
            yield PartDeltaEvent(index=self._parts, delta=TextPartDelta(text))
        else:
            self._parts += 1
            yield PartStartEvent(index=self._parts, part=TextPart(text))
        self._writing = self._said = True

    def _closed(self) -> Iterator[NativeEvent]:
        if self._writing:
            self._writing = False
            yield PartEndEvent(index=self._parts, part=TextPart(""))

    def _ended(self) -> Iterator[NativeEvent]:
        waiting, fate = self._begun.waiting, self._fate
        if waiting.answer and fate in {"answered", "denied", "stopped"} and not self._said:
            yield from self._text(waiting.answer)
        yield from self._closed()
        match fate:
            case "answered" | "denied":
                yield AgentRunResultEvent(AgentRunResult(waiting.answer))
            case "pending_approval":
                self._stream.requests = waiting.requests
                calls = [
                    ToolCallPart(one.tool_name, one.changed_args or one.args, one.tool_call_id)
                    for one in waiting.requests
                ]
                yield AgentRunResultEvent(AgentRunResult(DeferredToolRequests(approvals=calls)))
            case "stopped":
                raise RunCancelled(waiting.answer or "")
            case _:
                self._stream.failure = {"type": fate or "unknown", "message": waiting.answer or _ASIDE}


def _calls(of: Iterable[Message]) -> Iterator[ToolCall]:
    return chain.from_iterable(one.tool_calls or () for one in of if isinstance(one, AssistantMessage))
