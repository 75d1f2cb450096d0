"""Carries out a client's calls with the tools that agents have: same claim, policy, approval and audit.

A call is keyed by its conversation and its id, as a model's call is by the response that proposed it. So a repeat finds
what the first one has started, in this process or after `kill -9` in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, cast

import sqlalchemy as sa
from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn
from pydantic_ai.usage import RunUsage

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import call_key, origin_of, session_id
from shellback.exec.core.model import TURN, CallKey, CallOrigin, Delivery, SessionState
from shellback.exec.core.threads import cancelled
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.policy import Approval
from shellback.exec.tools.registry import tools as all_tools
from shellback.exec.tools.toolset import ExecTools
from shellback.log import about
from shellback.mcp_server import requests
from shellback.mcp_server.answer import Answer, Asked, UnknownTool
from shellback.mcp_server.listing import described
from shellback.storage.db import Database
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed, refusal
from shellback.work.errors import ApprovalSettled
from shellback.work.hosts import hosts
from shellback.work.notices.notices import Outbox
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.mailbox import Workspace
from shellback.work.queue.queues import Enqueuer, decisions_queue
from shellback.work.worker.services import COUNT_S, HEARTBEAT_S, Service, every

log = logging.getLogger(__name__)

WITHIN_S: Final = 45.0
"""A call is answered by then: many clients give up after 60 s."""
LATE_S: Final = 3.0
"""A call that was told to return has this long to do so."""
LOOK_S: Final = 5.0
"""The time between two looks for a decision whose ring was lost."""
FRESH_S: Final = 600.0
"""The time for which a conversation is known to exist."""
ARGS_BYTES: Final = 1024 * 1024
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)


class Held(Protocol):
    """The lock of this server's executor id."""

    def still_held(self) -> bool: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long a request for approval waits for a person, and how many may."""

    approval_ttl_s: float
    pending: int


@dataclass(slots=True, kw_only=True)
class CallDeps:
    """The dependencies of one call, as `TurnDeps` are those of a turn; epoch 0 means that no turn holds it."""

    conversation_id: str
    turn_id: str
    began_at: float
    approval: Approval | None
    epoch: int = 0
    gate: bool = True
    seconds: float = WITHIN_S

    def approval_for(self, _: CallKey) -> Approval | None:
        """The approval of this call, or None."""
        return self.approval


@dataclass(eq=False, repr=False, kw_only=True)
class Calls:
    """The calls of one connection."""

    database: Database
    engine: Engine
    tools_of: ExecTools
    enqueuer: Enqueuer
    doorbell: Doorbell
    host_id: str
    counted: Callable[[Callable[[sa.Connection], object]], object]
    """Compares and raises the count that the database and the state directory keep. Blocks."""
    hold: Callable[[], Held]
    """Takes the lock of this server's executor id. Blocks."""
    over: Callable[[sa.Connection, set[str]], set[str]]
    """Which of these connections are over."""
    conversation: str | None
    workspace: Workspace | None
    """The workspace of new conversations, and of no other if it was named."""
    bounds: Bounds
    outbox: Outbox
    beside: Sequence[Service] = ()
    loops: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    turn_id: str
    """Names the connection where a turn's calls name their turn; no row of `turns` has it."""
    _lock: Held | None = field(init=False, default=None)
    _opened: dict[str, float] = field(init=False, default_factory=dict[str, float])
    _serving: Counter[str] = field(init=False, default_factory=Counter[str])
    """The sessions of the calls that are being served, and by how many calls each."""
    _leaving: set[asyncio.Task[Any]] = field(init=False, default_factory=set[asyncio.Task[Any]])
    _tasks: set[asyncio.Task[Any]] = field(init=False, default_factory=set[asyncio.Task[Any]])
    _rung: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    async def start(self) -> None:
        """Connect to the supervisor, which is started if none runs, and listen for decisions.

        Raises:
            ExecutorTaken: On SQLite a worker or another server uses the state directory: two engines would settle each
                other's calls.
        """
        self._lock = await asyncio.to_thread(self.hold)
        # Before the engine compares: sessions that an older state directory does not know are left to a person.
        await self._count()
        await self.engine.start()
        await self.doorbell.listen(self.turn_id, {decisions_queue(self.host_id): self._ring}, once=True)
        for service in self.beside:
            await service.start()
        for run in self.loops:
            self._later(run())
        # As a worker does, so that a backup that is older than this is noticed.
        self._later(every(COUNT_S, "count", self._count))
        if self.database.dialect != "sqlite":
            self._later(every(HEARTBEAT_S, "heartbeat", self._beat, first_s=0.0))

    async def stop(self) -> None:
        """End processes whose lifetime is that of this connection, and let go; all others run on."""
        try:
            await self._let_go()
        finally:
            if self._lock is not None:
                lock, self._lock = self._lock, None
                await asyncio.to_thread(lock.release)

    async def _let_go(self) -> None:
        if self._leaving:  # their ends are to be events
            await asyncio.wait(self._leaving, timeout=LATE_S)
        await cancelled([*self._leaving, *self._tasks])
        await self.doorbell.close()
        for service in self.beside:
            await service.stop()
        if self.engine.started:
            with contextlib.suppress(ExecError):
                await self.engine.supervised.port.expire(TURN, self.turn_id)
        await self.engine.stop()

    async def tools(self) -> list[dict[str, Any]]:
        """See `Hands.tools`."""
        call = Asked(client="", id="", tool="", args={})
        found = await self.tools_of.toolset().get_tools(self._context("", call, None))
        known = all_tools()
        return [
            described(known[name], one.tool_def.description or "", one.tool_def.parameters_json_schema)
            for name, one in found.items()
        ]

    async def call(self, asked: Asked) -> Answer:
        """See `Hands.call`. Answers within 45 s; what was started goes on, and a request for approval stays."""
        until = asyncio.get_running_loop().time() + WITHIN_S
        if len(json.dumps(asked.args)) > ARGS_BYTES:
            return _failed("the arguments of this call are longer than 1 MiB; nothing was done. Give less at once")
        name = self.conversation or requests.name_for(asked.client, self.engine.workspace, self.host_id)
        served = session_id(self._origin(name, asked))
        self._serving[served] += 1
        try:
            conversation = await self._conversation(name)
            with about(conversation=conversation):
                try:
                    return await self._run(conversation, asked, None, until)
                except ApprovalRequired:
                    return await self._approved(conversation, asked, until)
        finally:
            self._serving[served] -= 1
            self._serving += Counter()  # without those at zero

    async def _beat(self) -> None:
        """Renew the lease of this host, as a worker does: other hosts give up the processes of a silent one."""
        await self.database.write(hosts.heard_of, self.host_id)
        if self._lock is not None and not await asyncio.to_thread(self._lock.still_held):
            self._lock = await asyncio.to_thread(self.hold)  # nobody else takes this name

    async def _count(self) -> None:
        await asyncio.to_thread(self.counted, partial(hosts.heard_of, host_id=self.host_id))

    async def _conversation(self, name: str) -> str:
        known = name in self._opened
        if time.monotonic() - self._opened.get(name, -FRESH_S) >= FRESH_S:
            await self.database.write(requests.opened, name, self.host_id, self.workspace)
            self._opened[name] = time.monotonic()
        if not known:
            await self._settle(name)
        return name

    async def _settle(self, conversation: str) -> None:
        """Settle what connections that are over left: calls that nobody waits for, and claims that were never started.

        Not that of a call which is being served: it is the repeat that goes on with it.
        """
        found = await self.engine.store.list(conversation_id=conversation)
        over = await self.database.read(self.over, {one.turn_id for one in found} - {self.turn_id})
        for session in found:
            if session.turn_id in over and time.time() - session.created_at > LATE_S:
                if session.delivery is Delivery.INLINE and session.id not in self._serving:
                    await self.engine.hand_over(session.id)
                if session.state is SessionState.CLAIMED and session.id not in self._serving:
                    await self.engine.abandon(session.id)

    async def _approved(self, conversation: str, asked: Asked, until: float) -> Answer:
        """Ask a person about the call, unless that was done, and wait for the decision."""
        digest, display = await self.tools_of.propose(conversation, asked.tool, asked.args)
        proposed = Proposed(
            call_key=call_key(self._origin(conversation, asked)), tool_call_id=asked.id, tool_name=asked.tool,
            args=asked.args, display=display, digest=digest,
        )  # fmt: skip
        bounds = self.bounds
        request = await self.database.write(
            requests.asked, conversation, self.turn_id, proposed,
            ttl_s=bounds.approval_ttl_s, outbox=self.outbox, limit=bounds.pending,
        )  # fmt: skip
        self.outbox.ring()
        request = await self._decided(request, until)
        if request.state == "pending":
            return _waits(request)
        if request.state not in {"approved", "used"}:
            await self.database.write(requests.told, request)
            return _failed(refusal(request), approval=request.id, approval_state=request.state)
        # Under the id that was approved: whoever else repeats the call finds the same session.
        same = Asked(client=asked.client, id=request.tool_call_id, tool=asked.tool, args=asked.args)
        return await self._run(conversation, same, Approval(request.id, request.digest), until)

    async def _decided(self, request: Request, until: float) -> Request:
        """The request when it is decided, or at the latest then."""
        loop = asyncio.get_running_loop()
        while request.state == "pending":
            rung, left_s = self._rung, request.expires_at - time.time()
            request = await self.database.read(approvals.get, request.id)
            if request.state != "pending" or loop.time() >= until:
                break
            if left_s <= 0:
                # A worker does this too, but none may run.
                how: dict[str, Any] = {"by": "clock", "surface": "mcp", "note": "nobody decided in time"}
                with contextlib.suppress(ApprovalSettled):
                    await self.database.write(approvals.decide, self.enqueuer, request.id, "expired", **how)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rung.wait(), max(0.0, min(LOOK_S, left_s, until - loop.time())))
        return request

    def _ring(self) -> None:
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def _run(self, conversation: str, asked: Asked, approval: Approval | None, until: float) -> Answer:
        """Run the tool; at the time it is to return, and if it does not, it is left.

        Raises:
            ApprovalRequired: A person has to be asked first.
            UnknownTool: No tool has this name.
        """
        ctx = self._context(conversation, asked, approval)
        toolset = self.tools_of.toolset()
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
                self.engine.give_up(session_id(origin))
                await asyncio.wait({run}, timeout=LATE_S)
            if not run.done():
                return _left(asked)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until + LATE_S):
                    # What this answer tells, the next call finds in the store.
                    await self.engine.recorded(conversation)
            return _answer(run.result())
        except (ToolFailed, ModelRetry) as error:
            return _failed(str(error))
        finally:
            if not run.done():
                # Not here: the protocol cancels this task until it ends.
                self._leaving.add(task := loop.create_task(self._leave(run, origin)))
                task.add_done_callback(self._leaving.discard)

    async def _leave(self, run: asyncio.Future[Any], origin: CallOrigin) -> None:
        """End a call that nobody waits for. What it has started runs on."""
        await cancelled([run])
        await self.engine.hand_over(session_id(origin))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(work))
        task.add_done_callback(self._tasks.discard)

    def _origin(self, conversation: str, asked: Asked) -> CallOrigin:
        return origin_of(self._context(conversation, asked, None))

    def _context(self, conversation: str, asked: Asked, approval: Approval | None) -> RunContext[CallDeps]:
        """The context of a call, in which it looks like a model's; nothing in it differs when it is repeated."""
        part = ToolCallPart(asked.tool, asked.args, tool_call_id=asked.id)
        return RunContext(
            deps=CallDeps(conversation_id=conversation, turn_id=self.turn_id, began_at=time.time(), approval=approval),
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
    found = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()[:10]]
    return f"the arguments are not acceptable; nothing was done. {'; '.join(found)}"
