"""A turn with a scripted model: the functions of the product in the order in which the product calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.tools import DeferredToolRequests

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import call_key, origins_in, session_id
from shellback.exec.core.model import CallOrigin, SessionId
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.policy import Approval, Grant, Verdict, grant
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed
from shellback.work.queue.items import WorkItem
from shellback.work.queue.mailbox import Letter
from shellback.work.queue.queues import Enqueuer
from shellback.work.turn import looks, stopping
from shellback.work.turn.claims import Wakes
from shellback.work.turn.closing import Closing, TurnStore, close, enter
from shellback.work.turn.hearing import texts_of
from shellback.work.turn.turn import _mended, _unheard  # pyright: ignore[reportPrivateUsage]

T = TypeVar("T")
Step = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
TTL_S = 3600.0


@dataclass(frozen=True)
class Call:
    """A command that the model wants: in the background, or waited for and perhaps left after `yield_after`."""

    text: str
    background: bool = True
    asks: bool = True
    yield_after: float | None = None


@dataclass(frozen=True)
class Thought:
    """What the model answers to one request: calls, a look at a session, words, or it breaks the turn."""

    kind: Literal["calls", "poll", "words", "breaks"] = "words"
    calls: tuple[Call, ...] = ()


class Fenced(Exception):
    """This execution was overtaken; it does nothing any more."""


class Broken(Exception):
    """A turn dies of an error that is nobody's answer."""


@dataclass
class Turn:
    """One execution of one item."""

    db: Database
    enqueuer: Enqueuer
    engine: Engine
    item: WorkItem
    executor_id: str
    step: Step
    think: Callable[[str], Thought]
    stamp: Callable[[], tuple[str, float]]
    """A run id and a time that no other response has."""
    epoch: int = 0
    letters: list[Letter] = field(default_factory=list[Letter])
    told: set[SessionId] = field(default_factory=set[SessionId])
    messages: list[Any] = field(default_factory=list[Any])

    async def run(self) -> str:
        """Returns the outcome that stands."""
        try:
            return await self._run()
        except (Fenced, StaleTurn):
            return "superseded"

    async def _run(self) -> str:
        entry, begun = await self.db.write(enter, self.item, True, executor_id=self.executor_id, wakes=Wakes())
        if entry.epoch is None or begun is None:
            return entry.outcome or ""
        self.epoch = entry.epoch
        self.letters += begun.letters
        store = TurnStore(self.db, self.enqueuer, begun.record)
        conversation = await store.load(self.item.conversation_id) or Conversation(
            conversation_id=self.item.conversation_id
        )
        deferred = conversation.deferred_tool_requests
        if not begun.letters and deferred is None:
            closed = await self.db.write(close, self.enqueuer, self._closing("nothing"), None, [], None)
            return closed.outcome
        self.messages = list(conversation.messages)
        before = len(self.messages)
        if deferred is not None:
            await self._resume(deferred, begun.decided)
        if begun.letters:
            self.messages.append(ModelRequest(parts=[UserPromptPart(texts_of(begun.letters))]))
        look = 0
        while True:
            look += 1
            found = await self._look(look)
            if found.wish is not None:
                text = stopping.text_of(found.wish)
                new = self.messages[before:]
                self.messages = _mended(self.messages, _unheard(new, self.letters), text)
                return await self._close(store, conversation, replace(self._closing("stopped"), answer=text))
            if found.letters:
                self.letters += found.letters
                self.messages.append(ModelRequest(parts=[UserPromptPart(texts_of(found.letters))]))
            thought, run_id, at = await self.step("model", self._model)
            if thought.kind == "breaks":
                raise Broken
            if thought.kind == "words":
                self.messages.append(ModelResponse(parts=[TextPart("said")]))
                return await self._close(store, conversation, replace(self._closing("answered"), answer="said"))
            if thought.kind == "poll":
                self.messages.append(ModelRequest(parts=[UserPromptPart(await self.step("tool.poll", self._poll))]))
                continue
            asked = await self._call(thought.calls, run_id, at)
            if asked:
                proposed = tuple(self._proposed(asked))
                conversation.deferred_tool_requests = DeferredToolRequests(approvals=[part for part, _ in asked])
                closing = replace(self._closing("pending_approval"), proposed=proposed)
                return await self._close(store, conversation, closing, paused=True)

    async def _look(self, look: int) -> looks.Look:
        return await self.db.write(looks.look, self.item.conversation_id, self.item.id, self.epoch, look)

    async def _model(self) -> tuple[Thought, str, float]:
        return self.think(self.item.conversation_id), *self.stamp()

    async def _poll(self) -> str:
        """Tell the model how its oldest session stands; an end that it hears of here is no news any more."""
        found = await self.engine.store.list(conversation_id=self.item.conversation_id)
        for session in found:
            if session.end is not None and session.id not in self.told:
                self.told.add(session.id)
                return f"polled {session.id} {session.state}"
        return "polled nothing"

    async def _call(self, calls: tuple[Call, ...], run_id: str, at: float) -> list[tuple[ToolCallPart, Call]]:
        """Execute the calls that nobody has to be asked about; returns the others."""
        parts = [
            ToolCallPart(
                tool_name="execute",
                args={"command": call.text, "background": call.background, "yield_after": call.yield_after},
                tool_call_id=f"call_{number}",
            )
            for number, call in enumerate(calls)
        ]
        self.messages.append(ModelResponse(parts=list(parts), run_id=run_id, timestamp=datetime.fromtimestamp(at, UTC)))
        asked = [(part, call) for part, call in zip(parts, calls, strict=True) if call.asks]
        free = [part for part, call in zip(parts, calls, strict=True) if not call.asks]
        answers = [await self._tool(part, None) for part in free]
        if answers:
            self.messages.append(ModelRequest(parts=answers))
        return asked

    async def _resume(self, deferred: DeferredToolRequests, decided: list[Request]) -> None:
        by_call = {request.tool_call_id: request for request in decided}
        answers: list[Any] = []
        for part in deferred.approvals:
            request = by_call.get(part.tool_call_id)
            if request is not None and request.state in {"approved", "used"}:
                answers.append(await self._tool(part, Approval(request.id, request.digest)))
            else:
                state = request.state if request else "undecided"
                answers.append(
                    ToolReturnPart(tool_name="execute", content=f"not run: {state}", tool_call_id=part.tool_call_id)
                )
        self.messages.append(ModelRequest(parts=answers))

    async def _tool(self, part: ToolCallPart, approval: Approval | None) -> ToolReturnPart:
        said, ended = await self.step("tool.execute", lambda: self._execute(part, approval))
        if ended is not None:
            self.told.add(ended)
        return ToolReturnPart(tool_name="execute", content=said, tool_call_id=part.tool_call_id)

    async def _execute(self, part: ToolCallPart, approval: Approval | None) -> tuple[str, SessionId | None]:
        wished = await self.db.read(stopping.wish_for, self.item.conversation_id, self.item.id) is not None
        before = await self.engine.store.get(session_id(self._origin(part)))
        if wished and (before is None or before.end is None):
            return "nothing was done: stopped", None
        args = part.args_as_dict()
        try:
            spec = self._spec(args)
            made = self._grant(spec, approval)
            if spec.background:
                session = await self.engine.launch(made, self._origin(part))
            else:
                session = (await self.engine.run(made, self._origin(part), yield_after=args["yield_after"])).session
        except StaleTurn:
            raise
        except ExecError as error:
            return f"failed: {error}", None
        end = session.end
        return f"ran {session.id} {session.state} {end.exit_code if end else None}", session.id if end else None

    def _spec(self, args: dict[str, Any]) -> Any:
        return command_spec(
            command=args["command"],
            background=args["background"],
            workspace=self.engine.workspace,
            limits=self.engine.limits,
        )

    def _grant(self, spec: Any, approval: Approval | None) -> Grant:
        verdict = Verdict(decision="allow" if approval is None else "ask", reason="the script says so")
        made = grant(proposal_for(spec, self.engine.backend), verdict, approval)
        assert made is not None
        return made

    def _origin(self, part: ToolCallPart) -> CallOrigin:
        (origin,) = origins_in(self.messages, self.item.conversation_id, [part.tool_call_id])
        return replace(origin, turn_id=self.item.id, epoch=self.epoch)

    def _proposed(self, asked: list[tuple[ToolCallPart, Call]]) -> list[Proposed]:
        found: list[Proposed] = []
        for part, call in asked:
            args = part.args_as_dict()
            proposal = proposal_for(self._spec(args), self.engine.backend)
            found.append(
                Proposed(
                    call_key=call_key(self._origin(part)),
                    tool_call_id=part.tool_call_id,
                    tool_name="execute",
                    args=args,
                    display={"command": call.text},
                    digest=proposal.digest,
                )
            )
        return found

    def _closing(self, outcome: str) -> Closing:
        return Closing(
            conversation_id=self.item.conversation_id,
            turn_id=self.item.id,
            epoch=self.epoch,
            outcome=outcome,
            ttl_s=TTL_S,
            told=frozenset(self.told),
            heard=frozenset(letter.id for letter in self.letters),
        )

    async def _close(
        self, store: TurnStore, conversation: Conversation, closing: Closing, *, paused: bool = False
    ) -> str:
        store.closing = closing
        conversation.messages = self.messages
        if not paused:
            conversation.deferred_tool_requests = None

        await store.save(conversation)
        return store.closed.outcome
