"""The calls of one connection of a client, carried out with the tools that agents have: same claim, policy, approval.

A call is keyed by its conversation and its id, as a model's call is by the response that proposed it. So a repeat finds
what the first one has started, in this process or after `kill -9` in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn
from pydantic_ai.usage import RunUsage

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import call_key, origin_of, session_id
from shellback.exec.core.model import TURN, CallKey, CallOrigin, Delivery, SessionState
from shellback.exec.core.threads import cancelled
from shellback.exec.policy.policy import Approval
from shellback.exec.tools.registry import tools as all_tools
from shellback.log import about
from shellback.mcp_server import asking, progress, requests
from shellback.mcp_server.answer import Answer, Ask, Asked, Ended, Reply, Task, UnknownTool, Way
from shellback.mcp_server.listing import group_of
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed, refusal
from shellback.work.errors import ApprovalSettled, mistakes_in
from shellback.work.queue.mailbox import Workspace

if TYPE_CHECKING:
    from shellback.mcp_server.calls import Calls

WITHIN_S: Final = 45.0
"""A call is answered by then: many clients give up after 60 s."""
LATE_S: Final = 3.0
"""A call that was told to return has this long to do so, and an end that was told to be recorded."""
LOOK_S: Final = 5.0
"""The time between two looks for a decision whose ring was lost."""
FRESH_S: Final = 600.0
"""The time for which a conversation is known to exist, and what others left in it to be settled."""
ARGS_BYTES: Final = 1024 * 1024
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)


@dataclass(slots=True, kw_only=True)
class CallDeps:
    """The dependencies of one call, as `TurnDeps` are those of a turn; epoch 0 means that no turn holds it."""

    conversation_id: str
    turn_id: str
    approval: Approval | None
    epoch: int = 0
    gate: bool = True
    until: float = field(default_factory=lambda: time.monotonic() + WITHIN_S)

    def left(self) -> float:
        """The seconds that the call has left."""
        return self.until - time.monotonic()

    def approval_for(self, _: CallKey) -> Approval | None:
        """The approval of this call, or None."""
        return self.approval


@dataclass(eq=False, repr=False, kw_only=True)
class Connection:
    """The calls of one client in its conversation; without a name it is that of the client's name and workspace."""

    calls: Calls
    conversation: str | None
    groups: Collection[str]
    """Tools of other groups are unknown here."""
    turn_id: str
    """Names the connection where a turn's calls name their turn; no row of `turns` has it."""
    _opened: dict[str, float] = field(init=False, default_factory=dict[str, float])
    """When each conversation was known to exist."""
    _bound: dict[str, Workspace] = field(init=False, default_factory=dict[str, Workspace])
    """Where each works, also if it was deleted meanwhile and begins again."""
    _leaving: set[asyncio.Task[Any]] = field(init=False, default_factory=set[asyncio.Task[Any]])

    async def call(self, asked: Asked, ask: Ask | None = None, *, way: Way | None = None) -> Answer:
        """See `Talk.call`. Answers within 45 s; what was started goes on, and a request for approval stays."""
        way = way or Way(within_s=WITHIN_S, ask=ask)
        until = asyncio.get_running_loop().time() + way.within_s
        if (refused := _too_long(asked)) is not None:
            return refused
        if not self._has(asked.tool):  # before its key is compared: a protocol error, whatever was asked before
            raise UnknownTool(asked.tool)
        name = self._name(asked.client)
        with self._serves(name, asked):
            # What answers before it told, this call finds in the store.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATE_S):
                    await self.calls.engine.recorded(name)
            joined, turn_id = requests.Before()
            if not asked.new:
                joined, turn_id = await self.calls.database.read(requests.before, asked, partial(self.origin, name))
            if joined is not None:
                asked = replace(asked, id=joined)
                if way.carried is not None:
                    await way.carried(asked)
            with self._serves(name, asked):
                if turn_id is not None and turn_id != self.turn_id and await self.calls.over_of({turn_id}):
                    goes_on = session_id(self.origin(name, asked))
                    await self.calls.database.write(requests.taken_over, goes_on, turn_id, self.turn_id)
                return await self._call(name, asked, until, way)

    async def begin(self, asked: Asked, after_s: float) -> Answer | Task:
        """See `Talk.begin`."""
        return _too_long(asked) or await self.calls.tasks.begin(self, asked, after_s)

    async def answer(self, client: str, key: str, reply: Reply | None) -> str:
        """See `Talk.answer`."""
        calls, name = self.calls, self._name(client)
        if not calls.bounds.elicits:
            return "[MCP_ELICITATION is off here: answers of clients count for nothing.]"
        how = partial(asking.answered, calls.database, calls.enqueuer, name, client, key, reply, calls=self._has)
        return await asyncio.to_thread(how)

    async def task(self, client: str, task_id: str) -> Task:
        """See `Talk.task`."""
        return await self.calls.tasks.get(self, client, task_id)

    async def cancel(self, client: str, task_id: str) -> None:
        """See `Talk.cancel`."""
        await self.calls.tasks.cancel(self, client, task_id)

    def changes(self, client: str, task_ids: Collection[str]) -> AsyncGenerator[Task]:
        """See `Talk.changes`."""
        return self.calls.tasks.changes(self, client, task_ids)

    def printed(self, asked: Asked) -> AsyncGenerator[str]:
        """See `Talk.printed`."""
        name = self._name(asked.client)
        about = progress.sessions_of(session_id(self.origin(name, asked)), asked.args)
        return progress.printed(self.calls.engine, name, about)

    def grows(self, client: str, session_id: str) -> AsyncGenerator[None]:
        """See `Talk.grows`."""
        return progress.grows(self.calls.engine, self._name(client), session_id)

    def ends(self, client: str) -> AsyncGenerator[Ended]:
        """See `Talk.ends`."""
        return progress.ends(self.calls.engine, self._name(client))

    async def opened(self, client: str) -> str:
        """The conversation of a client; it exists, and what others left in it is settled.

        Raises:
            InvalidRequest: The conversation is an agent's or another host's.
        """
        return await self._conversation(self._name(client))

    async def close(self) -> None:
        """End processes whose lifetime is that of this connection; all others run on. It makes no call any more."""
        self.calls.open.pop(self.turn_id, None)
        await self.left()
        if self.calls.engine.started:
            with contextlib.suppress(ExecError):
                await self.calls.engine.supervised.port.expire(TURN, self.turn_id)

    async def left(self) -> None:
        """Wait until the calls that nobody waits for any more are left."""
        if self._leaving:  # their ends are to be events
            await asyncio.wait(self._leaving, timeout=LATE_S)
        await cancelled([*self._leaving])

    async def _call(self, name: str, asked: Asked, until: float, way: Way) -> Answer:
        conversation = await self._conversation(name)
        with about(conversation=conversation):
            try:
                answer = await self._run(conversation, asked, None, until, way)
            except ApprovalRequired:
                answer = await self._approved(conversation, asked, until, way)
            if answer.failed:  # it may not be there any more
                self._opened.pop(name, None)
            return answer

    def _has(self, tool: str) -> bool:
        return tool in all_tools() and group_of(all_tools()[tool]) in self.groups

    @contextlib.contextmanager
    def _serves(self, conversation: str, asked: Asked) -> Generator[None]:
        """Within the block nobody else settles the session of this call."""
        served, serving = session_id(self.origin(conversation, asked)), self.calls.serving
        serving[served] += 1
        try:
            yield
        finally:
            serving[served] -= 1
            if not serving[served]:
                del serving[served]

    def _name(self, client: str) -> str:
        return self.conversation or requests.name_for(client, self.calls.engine.workspace, self.calls.host_id)

    async def _conversation(self, name: str) -> str:
        if time.monotonic() - self._opened.get(name, -FRESH_S) >= FRESH_S:
            bound = self._bound.get(name, self.calls.workspace)
            self._bound[name] = await self.calls.database.write(requests.opened, name, self.calls.host_id, bound)
            self._opened[name] = time.monotonic()
            await self.calls.tasks.resume(self, name)
            await self._settle(name)
        return name

    async def _settle(self, conversation: str) -> None:
        """Settle what connections that are over left: calls that nobody waits for, and claims that were never started.

        Not that of a call which is being served: it is the repeat that goes on with it. Nor that of a task: whoever has
        its tool goes on with it, in this process or in another one.
        """
        engine, serving = self.calls.engine, self.calls.serving
        found = await engine.store.list(conversation_id=conversation)
        over = await self.calls.over_of({one.turn_id for one in found})
        tasks = await self.calls.tasks.sessions(self, conversation)
        for session in found:
            if session.id not in tasks and session.turn_id in over and time.time() - session.created_at > LATE_S:
                if session.delivery is Delivery.INLINE and session.id not in serving:
                    await engine.hand_over(session.id)
                if session.state is SessionState.CLAIMED and session.id not in serving:
                    await engine.abandon(session.id)

    async def _approved(self, conversation: str, asked: Asked, until: float, way: Way) -> Answer:
        """Ask a person about the call, unless that was done, and wait for the decision."""
        digest, display = await self.calls.tools_of.propose(conversation, asked.tool, asked.args)
        proposed = Proposed(
            call_key=call_key(self.origin(conversation, asked)), tool_call_id=asked.id, tool_name=asked.tool,
            args=asked.args, display=display, digest=digest,
        )  # fmt: skip
        bounds = self.calls.bounds
        request = await self.calls.database.write(
            requests.asked, conversation, self.turn_id, proposed,
            ttl_s=bounds.approval_ttl_s, outbox=self.calls.outbox, limit=bounds.pending,
        )  # fmt: skip
        self.calls.outbox.ring()
        # Under the id that is approved: whoever else repeats the call finds the same session.
        same = Asked(client=asked.client, id=request.tool_call_id, tool=asked.tool, args=asked.args)
        with self._serves(conversation, same):
            if way.carried is not None:
                await way.carried(same)
            request, told = await self._offered(request, until, asked.client, way.ask)
            if request.state == "pending":
                answer = _waits(request)
            elif request.state not in {"approved", "used"}:
                await self.calls.database.write(requests.told, request)
                answer = _failed(refusal(request), approval=request.id, approval_state=request.state)
            else:
                answer = await self._run(conversation, same, Approval(request.id, request.digest), until, way)
            return replace(answer, texts=[*answer.texts, *told])

    async def _offered(
        self, request: Request, until: float, client: str, ask: Ask | None
    ) -> tuple[Request, Sequence[str]]:
        """The request when it is decided, by the client too if `ask` may ask it; and what the client is told of it."""
        question = asking.question(request) if ask is not None and self.calls.bounds.elicits else None
        if ask is None or question is None:
            return await self._decided(request, until), ()
        replying = asyncio.ensure_future(ask(question))
        deciding = asyncio.ensure_future(self._decided(request, until))
        try:
            await asyncio.wait({replying, deciding}, return_when=asyncio.FIRST_COMPLETED)
            told = ""
            if replying.done():
                told = await self.answer(client, question.key, replying.result())
            request = await deciding
            if not told and request.decided_by not in {None, f"mcp:{client}"[:100]}:
                told = f"[Approval request {request.id} was {request.state} by {request.decided_by} meanwhile.]"
            return request, [told] if told else ()
        finally:
            await cancelled([replying, deciding])

    async def _decided(self, request: Request, until: float) -> Request:
        """The request when it is decided, or at the latest then."""
        loop = asyncio.get_running_loop()
        while request.state == "pending":
            rung = self.calls.decided.next
            request, left_s = await self.calls.database.read(approvals.waiting, request.id)
            if request.state != "pending" or loop.time() >= until:
                break
            if left_s <= 0:
                # A worker does this too, but none may run.
                how: dict[str, Any] = {"by": "clock", "surface": "mcp", "note": "nobody decided in time"}
                with contextlib.suppress(ApprovalSettled):
                    await self.calls.database.write(approvals.decide, self.calls.enqueuer, request.id, "expired", **how)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rung.wait(), max(0.0, min(LOOK_S, left_s, until - loop.time())))
        return request

    async def _run(self, conversation: str, asked: Asked, approval: Approval | None, until: float, way: Way) -> Answer:
        """Run the tool; at the time it is to return, and if it does not, it is left.

        Raises:
            ApprovalRequired: A person has to be asked first.
            UnknownTool: No tool has this name.
        """
        ctx = context_of(conversation, self.turn_id, asked, approval)
        toolset = self.calls.tools_of.toolset()
        tool = (await toolset.get_tools(ctx)).get(asked.tool)
        if tool is None:
            raise UnknownTool(asked.tool)
        try:
            args = tool.args_validator.validate_python(asked.args)
        except ValidationError as error:
            return _failed(_invalid(error))
        origin, loop = origin_of(ctx), asyncio.get_running_loop()
        run = asyncio.ensure_future(toolset.call_tool(asked.tool, args, ctx, tool))
        try:
            if not (await asyncio.wait({run}, timeout=max(0.0, until - loop.time())))[0]:
                self.calls.engine.give_up(session_id(origin))
                await asyncio.wait({run}, timeout=LATE_S)
            if not run.done():
                return _left(asked)
            return _answer(run.result())
        except (ToolFailed, ModelRetry) as error:
            return _failed(str(error))
        finally:
            if not run.done():
                # Not here: the protocol cancels this task until it ends.
                self._leaving.add(task := loop.create_task(self._leave(run, origin, way)))
                task.add_done_callback(self._leaving.discard)

    async def _leave(self, run: asyncio.Future[Any], origin: CallOrigin, way: Way) -> None:
        """End a call that nobody waits for. What it has started runs on."""
        await cancelled([run])
        if not way.kept:
            await self.calls.engine.hand_over(session_id(origin))

    def origin(self, conversation: str, asked: Asked) -> CallOrigin:
        """The origin of a call, the same whenever it is repeated."""
        return origin_of(context_of(conversation, self.turn_id, asked, None))


def context_of(conversation: str, turn_id: str, asked: Asked, approval: Approval | None) -> RunContext[CallDeps]:
    """The context of a call, in which it looks like a model's; nothing in it differs when it is repeated."""
    part = ToolCallPart(asked.tool, asked.args, tool_call_id=asked.id)
    return RunContext(
        deps=CallDeps(conversation_id=conversation, turn_id=turn_id, approval=approval),
        model=cast("Any", None),
        usage=RunUsage(),
        messages=[ModelResponse([part], timestamp=_NO_TIME, run_id="mcp")],
        tool_call_id=asked.id,
        tool_name=asked.tool,
        tool_call_approved=approval is not None,
    )


def _answer(returned: ToolReturn[Any]) -> Answer:
    value: Any = returned.return_value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    known: dict[str, Any] = returned.metadata or {}
    facts = {"result": value, **{name: fact for name, fact in known.items() if name != "result"}}
    texts = [text]
    if known.get("state") in {SessionState.CLAIMED, SessionState.RUNNING} and "session_id" in known:
        texts.append(f"[You are told of no end: process_wait or process_poll with {known['session_id']} shows it.]")
    return Answer(texts, facts)


def _failed(text: str, **facts: Any) -> Answer:
    return Answer([text], facts, failed=True)


def _too_long(asked: Asked) -> Answer | None:
    if len(json.dumps(asked.args)) <= ARGS_BYTES:
        return None
    return _failed("the arguments of this call are longer than 1 MiB; nothing was done. Give less at once")


def _waits(request: Request) -> Answer:
    return _failed(
        f"Nothing was done yet: this call waits for a person as request {request.id}. They see it with `shellback "
        f"approvals show {request.id}` and decide with `shellback approvals approve {request.id}` or `deny "
        f"{request.id}`. Make exactly the same call again to go on waiting, or to have it done once it is approved.",
        approval=request.id,
        approval_state=request.state,
    )


def _left(asked: Asked) -> Answer:
    return _failed(
        f"{asked.tool} had not returned after {WITHIN_S:g} s and was left. What it started goes on: process_list shows "
        "it, and process_wait waits for its end."
    )


def _invalid(error: ValidationError) -> str:
    return f"the arguments are not acceptable; nothing was done. {mistakes_in(error)}"
