"""What a client is told of processes that end: each once, those of its conversation alone, and never without bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from shellback.exec.core.model import SessionId
from shellback.mcp_server import progress
from shellback.mcp_server.answer import Asked, Ended
from shellback.mcp_server.connection import Connection
from tests import bound
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

NAME = "tool.client"
CLIENT = "tester"


@pytest.fixture
def on() -> Generator[Stage]:
    with stage(TRUST_CLASSIFIER="true") as made:
        yield made


@asynccontextmanager
async def connected(on: Stage, name: str = NAME) -> AsyncGenerator[Connection]:
    async with bound.connected(on) as made:
        yield made.connected(name)


def asked(name: str, **args: Any) -> Asked:
    return Asked(client=CLIENT, id=name, tool="execute", args=args)


async def started(calls: Connection, command: str, name: str) -> str:
    answer = await calls.call(asked(name, command=command, background=True))
    return str(answer.facts["session_id"])


async def over(calls: Connection, session: str) -> None:
    await calls.calls.engine.wait(SessionId(session), up_to=30)


async def told(ends: AsyncGenerator[Ended]) -> Ended:
    async with asyncio.timeout(30):
        return await anext(ends)


async def test_a_background_process_that_ends_is_told_once_with_how_and_what_to_call_next(on: Stage) -> None:
    async with connected(on) as calls, aclosing(calls.ends(CLIENT)) as ends:
        before = await started(calls, "true", "0")
        await over(calls, before)
        first = asyncio.ensure_future(told(ends))
        await asyncio.sleep(0)  # it listens
        inline = await calls.call(asked("1", command="false"))
        assert inline.facts["exit_code"] == 1
        other = calls.calls.connected("another", name="another")
        await over(calls, await started(other, "false", "1"))
        session = await started(calls, "false", "2")
        end = await first
        assert end == Ended(
            {
                "session_id": session, "state": "exited", "exit_code": 1,
                "next": f"process_log with {session} shows its output",
            }
        )  # fmt: skip
        await calls.call(Asked(client=CLIENT, id="3", tool="process_poll", args={"session_id": session}))
        again = await started(calls, "true", "4")
        next_one = await told(ends)
        assert (next_one.facts["session_id"], next_one.well) == (again, True)


async def test_a_client_that_does_not_read_has_a_bounded_number_of_ends_and_the_count_of_others(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MOST", 2)
    async with connected(on) as calls:
        ends = calls.ends(CLIENT)
        async with aclosing(ends):
            first = asyncio.ensure_future(told(ends))
            await asyncio.sleep(0)
            sessions = [await started(calls, "true", "0")]
            await first
            for number in range(1, 6):
                sessions.append(await started(calls, "true", str(number)))
                await over(calls, sessions[-1])
            missed = await told(ends)
            assert missed.facts["missed"] == 3
            assert [(await told(ends)).facts["session_id"] for _ in range(2)] == sessions[-2:]
        assert not calls.calls.engine.registry.listeners, "nothing is kept of a client that is gone"
