"""The same kills around an MCP client: no wake is told, and a call without an answer is repeated with its key."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import sqlalchemy as sa
from mcp import MCPError

from chaos.cells import CODE, Cell
from chaos.story import COMMAND, PATIENCE_S, Count, verdict
from chaos.strike import Kill
from shellback.storage.tables import turns
from shellback.work.errors import ApprovalSettled
from tests.clients import Client, client, known
from tests.stage import Stage

NAME: Final = "build"
KEY: Final = "the one call"


def live_as_client(made: Stage, cell: Cell) -> Count:
    """Run a client's call once on this stage, kill its server as the cell says, and count."""
    made.patience_s = PATIENCE_S
    story = _Connections(made, cell)
    try:
        asyncio.run(asyncio.wait_for(story.run(), PATIENCE_S))
    except TimeoutError:
        return Count(lost=1, note="no answer says how the process ended")
    woken = len(made.callbacks()) + len(made.scalars(sa.select(turns.c.id)))
    return verdict(made, cell, [story.told], woken=1 + woken)


class _Connections:
    """One server process after the other, until a call has told the end of the process."""

    def __init__(self, made: Stage, cell: Cell) -> None:
        self.told = ""
        self._made = made
        self._cell = cell
        self._armed = False

    async def run(self) -> None:
        while not self.told:
            async with client(self._made, "--conversation", NAME) as one:
                with contextlib.suppress(MCPError):  # its server is dead: the client starts another
                    if not self._armed:
                        await one.call("process_list")  # it has the supervisor started
                        await asyncio.to_thread(self._arm, one)
                    await self._call(one)

    def _arm(self, one: Client) -> None:
        strike, (supervisor, keeper) = Kill(self._made, self._cell), self._made.supervisor_pids()
        strike.pids = {"server": one.pid, "supervisor": supervisor, "keeper": keeper}
        self._made.arm(self._cell.point, "\n".join(strike.orders()))
        self._armed = True

    async def _call(self, one: Client) -> None:
        command = COMMAND.format(seconds=self._cell.seconds, code=CODE)
        call = asyncio.create_task(one.call("execute", KEY, command=command, background=not self._cell.is_foreground))
        while not call.done():
            for request in await asyncio.to_thread(self._made.requests):
                with contextlib.suppress(ApprovalSettled):
                    await asyncio.to_thread(self._made.decide, request)
            await asyncio.wait([call], timeout=0.1)
        result = call.result()
        facts = {} if result.structured_content is None else known(result)
        while facts.get("state") in {"claimed", "running"}:
            session = facts["session_id"]
            await one.call("process_wait", session_ids=[session])
            facts = known(await one.call("process_poll", session_id=session))
        if "approval" not in facts and "state" in facts:
            self.told = f"{facts['state']}, exit code {facts['exit_code']}"
