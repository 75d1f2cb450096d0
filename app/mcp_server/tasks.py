"""Calls that are answered before their end, with a task: a row that any later process of this host can go on with.

The row has what the call was, and at its end what it would have answered. Between the two it is a call like any other:
who finds it unfinished repeats it under its id, which finds the request, the process and the outcome of the first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import call_key, session_id
from shellback.exec.core.threads import cancelled
from shellback.exec.tools.registry import tools as all_tools
from shellback.exec.wire.crashpoints import reach
from shellback.exec.wire.ring import Ring
from shellback.mcp_server import asking, requests, task_rows
from shellback.mcp_server.answer import Answer, Asked, Task, UnknownTask, UnknownTool, Way
from shellback.mcp_server.listing import group_of
from shellback.mcp_server.task_rows import MOST, WORKING, Row
from shellback.storage.errors import StorageError
from shellback.work.errors import InvalidRequest, WorkError

if TYPE_CHECKING:
    from shellback.mcp_server.calls import Calls
    from shellback.mcp_server.connection import Connection

log = logging.getLogger(__name__)

SOON_S: Final = 1.0
"""The time for which a question about a task that was just found unfinished waits for its end."""
GATED: Final = (
    "this server goes on with no task, because ENABLE_EXECUTE is not set: a person sets ENABLE_EXECUTE=true in its "
    "environment or its .env, and starts it again"
)
LOOK_S: Final = 5.0
"""The time between two looks at a task that another process carries out."""


@dataclass(eq=False, slots=True)
class _Run:
    """A call that is carried out, and the id under which it is. Once it is `way.kept`, its task's row exists."""

    of: Connection
    conversation: str
    asked: Asked
    way: Way
    began: float
    call: asyncio.Task[Answer] = field(init=False)
    over: asyncio.Task[None] | None = None
    """Records the result."""
    waiting: int = 0
    """The requests that wait for it."""


@dataclass(eq=False, repr=False)
class Tasks:
    """The tasks of the conversations of one process. They are kept for `kept_s` seconds."""

    calls: Calls
    kept_s: float
    _runs: dict[str, _Run] = field(init=False, default_factory=dict[str, _Run])
    _rung: Ring = field(init=False, default_factory=Ring)

    async def begin(self, of: Connection, asked: Asked, after_s: float) -> Answer | Task:
        """See `Talk.begin`. Cancelled before it is a task, the call is left as without tasks."""
        conversation = await of.opened(asked.client)
        task_id = session_id(of.origin(conversation, asked))
        if self._live(task_id) is None:
            before = await self.calls.database.read(task_rows.get, conversation, task_id)
            if before is not None:
                return await self._repeated(of, before, asked)
        if (run := self._live(task_id)) is None:
            if len(self._runs) >= MOST:
                return await of.call(asked)
            run = self._start(of, task_id, conversation, asked)
        _same(run.asked, asked)
        run.waiting += 1
        try:
            await asyncio.wait({run.call}, timeout=after_s)
            if run.call.cancelled():
                carried = session_id(of.origin(conversation, run.asked))
                row = await self.calls.database.read(task_rows.get, conversation, carried)
                if row is not None and row.state != WORKING:  # cancelled as a task, by another request
                    return await self._repeated(of, row, asked)
            return run.call.result() if run.call.done() else await self._made(run)
        finally:
            run.waiting -= 1
            if not run.waiting and not run.way.kept:
                run.call.cancel()

    async def get(self, of: Connection, client: str, task_id: str) -> Task:
        """See `Talk.task`. One that nobody carries out is gone on with."""
        conversation = await of.opened(client)
        row = await self._found(conversation, task_id)
        if row.state == WORKING and (run := await self._resumed(of, row)) is not None and run.over is not None:
            left_s = run.began + SOON_S - time.monotonic()
            if left_s > 0:
                await asyncio.wait({run.over}, timeout=left_s)
            row = await self._found(conversation, task_id)
        return await self._shown(of, row)

    async def cancel(self, of: Connection, client: str, task_id: str) -> None:
        """See `Talk.cancel`. What was cancelled stays so, also if its process ends or was never begun."""
        calls = self.calls
        row = await self._found(await of.opened(client), task_id)
        # First of all: after a crash nobody goes on with it.
        if not await calls.database.write(task_rows.ended, row.id, "cancelled", None):
            return
        reach("task.cancelled")
        if (run := self._runs.pop(row.id, None)) is not None:
            run.way.kept = False
            await cancelled([run.call])
        key = call_key(of.origin(row.conversation_id, _asked(row)))
        await calls.database.write(requests.withdrawn, calls.enqueuer, key, client)
        self.ring()

    async def changes(self, of: Connection, client: str, task_ids: Collection[str]) -> AsyncGenerator[Task]:
        """See `Talk.changes`."""
        told = dict[str, Task]()
        for task_id in task_ids:
            task = told[task_id] = await self.get(of, client, task_id)
            if task.state != WORKING:
                yield task
        while any(task.state == WORKING for task in told.values()):
            rung = self._rung.next
            for before in [task for task in told.values() if task.state == WORKING]:
                task = told[before.id] = await self.get(of, client, before.id)
                if (task.state, task.said) != (before.state, before.said):
                    yield task
            try:
                await asyncio.wait_for(rung.wait(), LOOK_S)
            except TimeoutError:
                continue

    async def resume(self, of: Connection, conversation: str) -> None:
        """Go on with what connections that are over left unfinished, before others settle it."""
        for row in await self.calls.database.read(task_rows.working, conversation):
            await self._resumed(of, row)
        await asyncio.sleep(0)  # now each of them is being served

    async def sessions(self, of: Connection, conversation: str) -> set[str]:
        """The sessions of all tasks of a conversation that have not ended."""
        found = await self.calls.database.read(task_rows.unfinished, conversation)
        calls = (Asked(client="", id=tool_call_id, tool="", args={}) for _, tool_call_id in found)
        return {task_id for task_id, _ in found} | {session_id(of.origin(conversation, one)) for one in calls}

    def ring(self) -> None:
        """Tell who waits for a change that there may be one."""
        self._rung.ring()

    async def freeze(self) -> None:
        """Leave what is no task, and record no further result: what calls answer while the engine stops is none."""
        await cancelled([run.call for run in self._runs.values() if not run.way.kept])
        await cancelled([run.over for run in self._runs.values() if run.over is not None])

    async def stop(self) -> None:
        """Leave all calls, after the engine was stopped: another process goes on with those that are tasks."""
        runs = [*self._runs.values()]
        self._runs.clear()
        await cancelled([run.call for run in runs])
        await asyncio.gather(*(of.left() for of in {run.of for run in runs}))

    def _live(self, task_id: str) -> _Run | None:
        """The run of a call, unless it is being left: that is no answer to its repeat."""
        run = self._runs.get(task_id)
        return None if run is None or run.call.cancelling() else run

    def _start(self, of: Connection, task_id: str, conversation: str, asked: Asked) -> _Run:
        run = _Run(of, conversation, asked, Way(within_s=math.inf), time.monotonic())

        async def carried(same: Asked) -> None:
            run.asked = same
            if run.way.kept:
                await self.calls.database.write(task_rows.moved, task_id, of.turn_id, same.id)

        run.way.carried = carried
        run.call = asyncio.get_running_loop().create_task(of.call(asked, way=run.way))
        run.call.add_done_callback(lambda _: self._done(task_id, run))
        self._runs[task_id] = run
        return run

    def _done(self, task_id: str, run: _Run) -> None:
        if not run.call.cancelled():
            run.call.exception()  # whoever waits for it has it
        if not run.way.kept and self._runs.get(task_id) is run:
            del self._runs[task_id]

    async def _made(self, run: _Run) -> Task:
        """Make a running call a task. Returns when it is durable."""
        of, now = run.of, time.time()
        # Identical calls that wait for one request are one call, and one task.
        task_id = session_id(of.origin(run.conversation, run.asked))
        run.way.kept = True
        row = await self._stored(
            run,
            Row(
                id=task_id, conversation_id=run.conversation, turn_id=of.turn_id, client=run.asked.client,
                tool_call_id=run.asked.id, tool=run.asked.tool, args=run.asked.args, state=WORKING, result=None,
                created_at=now, updated_at=now,
            ),
        )  # fmt: skip
        reach("task.made")
        return await self._shown(of, row)

    async def _stored(self, run: _Run, row: Row) -> Row:
        try:
            return await self.calls.database.write(task_rows.made, row)
        except Exception:
            run.way.kept = False  # it is no task
            raise
        finally:
            if run.way.kept:  # also if the client has cancelled meanwhile: it may be stored
                self._runs.setdefault(row.id, run)
                self._record(row.id, run)

    def _record(self, task_id: str, run: _Run) -> None:
        if run.over is None:
            run.over = asyncio.get_running_loop().create_task(self._finish(task_id, run))

    async def _finish(self, task_id: str, run: _Run) -> None:
        await asyncio.wait({run.call})  # cancelled here, the run stays: see `freeze`
        await self.calls.engine.recorded(run.conversation)  # a result that is kept tells no end again
        try:
            if run.call.cancelled():
                return
            reach("task.finishing")
            state, result = _result(run.call, run.asked.tool)
            await self.calls.database.write(task_rows.ended, task_id, state, result)
        except Exception as error:  # noqa: BLE001 - the row stays as it is, and so the task is gone on with
            log.warning(
                "the result of task %s is not recorded: %s; it is made anew when it is asked for", task_id, error
            )
        finally:
            for name in [name for name, one in self._runs.items() if one is run]:
                del self._runs[name]
            self.ring()

    async def _resumed(self, of: Connection, row: Row) -> _Run | None:
        """The run of an unfinished task, which is begun if nobody carries it out; None if another process does.

        Also None if it is about a tool that this connection has not, and while the gate is off: a later one goes on
        with it.
        """
        calls = self.calls
        if not calls.gate:
            return None
        if (run := self._runs.get(row.id)) is not None:
            return run
        known = all_tools().get(row.tool)
        if known is not None and group_of(known) not in of.groups:
            return None
        if row.turn_id.partition(".")[0] != calls.process and not await calls.over_of({row.turn_id}):
            return None
        await calls.database.write(task_rows.moved, row.id, of.turn_id, row.tool_call_id)
        if (run := self._runs.get(row.id)) is None:
            run = self._start(of, row.id, row.conversation_id, _asked(row))
            run.way.kept = True
            self._record(row.id, run)
        return run

    async def _repeated(self, of: Connection, row: Row, asked: Asked) -> Answer | Task:
        """The answer to the repeat of a call that is a task."""
        _same(_asked(row), asked)
        task = await self.get(of, row.client, row.id)
        if task.answer is not None:
            return task.answer
        return task if task.state == WORKING else Answer([task.said], failed=True)

    async def _found(self, conversation: str, task_id: str) -> Row:
        row = await self.calls.database.read(task_rows.get, conversation, task_id)
        if row is None:
            raise UnknownTask(task_id)
        return row

    async def _shown(self, of: Connection, row: Row) -> Task:
        origin = of.origin(row.conversation_id, _asked(row))
        session = session_id(origin)
        pending, lives = await self.calls.database.read(task_rows.around, call_key(origin), session)
        result = row.result or {}
        answer = Answer(**result) if row.state == "completed" else None
        question = None
        if row.state == WORKING and not self.calls.gate:
            said = f"{GATED}; its process goes on as session {session}" if lives else GATED
        elif row.state == WORKING and pending is not None:
            said = f"waits for a person: shellback approvals approve {pending.id}, or deny"
            question = asking.question(pending) if self.calls.bounds.elicits else None
        elif row.state == "cancelled":
            said = f"cancelled; its process goes on as session {session}" if lives else "cancelled"
        elif row.state == WORKING:
            said = f"runs as session {session}" if lives else "runs"
        else:
            said = str(result.get("message", "")) or ("the call failed" if answer and answer.failed else "done")
        return Task(
            id=row.id, state=row.state, said=said, created_at=row.created_at, updated_at=row.updated_at,
            kept_s=self.kept_s, answer=answer, error=result if row.state == "failed" else None,
            question=question,
        )  # fmt: skip


def _asked(row: Row) -> Asked:
    return Asked(client=row.client, id=row.tool_call_id, tool=row.tool, args=row.args)


def _same(before: Asked, asked: Asked) -> None:
    if (before.tool, before.args) != (asked.tool, asked.args):
        raise InvalidRequest(requests.USED)


def _result(call: asyncio.Task[Answer], tool: str) -> tuple[task_rows.State, dict[str, Any]]:
    """What a call that is over came to, as JSON. A known error is a failed result, as without tasks."""
    error = call.exception()
    if isinstance(error, StorageError):
        raise error  # the call was not carried out to its end
    if isinstance(error, UnknownTool):
        return "failed", {"code": INVALID_PARAMS, "message": f"unknown tool {error}: tools/list names those there are"}
    if error is not None and not isinstance(error, ExecError | WorkError):
        log.error("a call of %s failed", tool, exc_info=error)
        return "failed", {"code": INTERNAL_ERROR, "message": f"a fault of the server ({type(error).__name__})"}
    answer = Answer([str(error)], failed=True) if error is not None else call.result()
    facts: dict[str, Any] = json.loads(json.dumps(answer.facts, default=str))
    if "exit_code" in facts and facts.get("ended_by") is not None:
        # Whether another process has waited for it meanwhile is nothing that the client could use.
        facts["handed_over"] = False
    return "completed", asdict(replace(answer, facts=facts))
