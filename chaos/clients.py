"""The same kills around an MCP client: no wake is told, and a call without an answer is repeated with its key.

A client that knows tasks asks each next server for the task that it has been told of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa
from mcp import MCPError

from chaos.cells import CODE, TASK_ANSWERED, TASK_CANCELLED, Cell
from chaos.story import COMMAND, PATIENCE_S, Count, verdict
from chaos.strike import Kill
from shellback.storage.tables import turns
from shellback.work.errors import ApprovalSettled
from tests.clients import Client, client, known
from tests.stage import Stage
from tests.supervisors import kill
from tests.wire import Wire, wire

NAME: Final = "build"
KEY: Final = "the one call"
C = TypeVar("C", Client, Wire)
T = TypeVar("T")


def live_as_client(made: Stage, cell: Cell) -> Count:
    """Run a client's call once on this stage, kill its server as the cell says, and count."""
    made.patience_s = PATIENCE_S
    story = _Tasks(made, cell) if cell.is_task else _Calls(made, cell)
    try:
        asyncio.run(asyncio.wait_for(story.run(), PATIENCE_S))
    except TimeoutError:
        return Count(lost=1, note="no answer says how the process ended")
    woken = len(made.callbacks()) + len(made.scalars(sa.select(turns.c.id)))
    return verdict(made, cell, [story.told], woken=1 + woken)


class _Connections(Generic[C]):
    """One server process after the other, until a call has told the end of the process."""

    def __init__(self, made: Stage, cell: Cell) -> None:
        self.told = ""
        self._made = made
        self._cell = cell
        self._strike = Kill(made, cell)
        self._call: dict[str, Any] = {
            "command": COMMAND.format(seconds=cell.seconds, code=CODE),
            "background": not (cell.is_foreground or cell.is_task),
        }

    async def run(self) -> None:
        while not self.told:
            async with self._connected() as one:
                with contextlib.suppress(MCPError, EOFError):  # its server is dead: the client starts another
                    if not self._strike.pids:
                        await one.call("process_list")  # it has the supervisor started
                        await asyncio.to_thread(self._arm, one.pid)
                    await self._live(one)

    def _connected(self) -> AbstractAsyncContextManager[C]:
        raise NotImplementedError

    async def _live(self, one: C) -> None:
        """Make the call, or go on with it."""
        raise NotImplementedError

    def _arm(self, server: int) -> None:
        supervisor, keeper = self._made.supervisor_pids()
        self._strike.pids = {"server": server, "supervisor": supervisor, "keeper": keeper}
        self._made.arm(self._cell.point, "\n".join(self._strike.orders()))

    async def _approved(self, waiting: Awaitable[T]) -> T:
        """What is waited for; a person approves meanwhile."""
        waited = asyncio.ensure_future(waiting)
        while not waited.done():
            for request in await asyncio.to_thread(self._made.requests):
                with contextlib.suppress(ApprovalSettled):
                    await asyncio.to_thread(self._made.decide, request)
            await asyncio.wait([waited], timeout=0.1)
        return waited.result()

    def _tell(self, facts: dict[str, Any]) -> None:
        self.told = f"{facts['state']}, exit code {facts['exit_code']}"


class _Calls(_Connections[Client]):
    def _connected(self) -> AbstractAsyncContextManager[Client]:
        return client(self._made, "--conversation", NAME)

    async def _live(self, one: Client) -> None:
        result = await self._approved(one.call("execute", KEY, **self._call))
        facts = {} if result.structured_content is None else known(result)
        while facts.get("state") in {"claimed", "running"}:
            session = facts["session_id"]
            await one.call("process_wait", session_ids=[session])
            facts = known(await one.call("process_poll", session_id=session))
        if "state" in facts:
            self._tell(facts)


class _Tasks(_Connections[Wire]):
    _task = ""

    def _connected(self) -> AbstractAsyncContextManager[Wire]:
        return wire(self._made, "--task-after", "0.1")

    async def _live(self, one: Wire) -> None:
        if not self._task:
            # Nobody approves before it is a task: what runs meanwhile would be at no point.
            self._task = (await one.call("execute", KEY, **self._call))["taskId"]
            if self._cell.point == TASK_ANSWERED:
                await asyncio.to_thread(self._kill)
                raise EOFError
        if self._cell.point != TASK_CANCELLED:
            ended = await self._approved(one.ended(self._task))
            self._tell(ended["result"]["structuredContent"])
            return
        if not self._made.fired(TASK_CANCELLED):
            await self._approved(asyncio.to_thread(self._made.session, "nonce"))
            await one.ask("tasks/cancel", {"taskId": self._task})
        assert (await one.task(self._task))["status"] == "cancelled", "a cancelled task stays so"
        # Without the extension: else a call that is only slow is answered as a task, with no facts.
        await one.call("process_wait", extension=False, session_ids=[self._task])
        found = await one.call("process_poll", extension=False, session_id=self._task)
        if found["structuredContent"]["state"] != "running":
            self._tell(found["structuredContent"])

    def _kill(self) -> None:
        for victim in self._cell.victims:
            kill(self._strike.pids[victim])
        (self._made.points / TASK_ANSWERED).unlink()
