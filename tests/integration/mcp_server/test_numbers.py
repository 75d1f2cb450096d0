"""What is looked up of a call before it is made: nothing of one whose number is new, everything of a repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import CallOrigin, Session, SessionEnd, SessionId, SessionState
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.mcp_server import requests, task_rows
from shellback.mcp_server.answer import Answer, Asked, Task
from shellback.mcp_server.connection import Connection
from shellback.mcp_server.server import SESSION, Numbers
from shellback.storage import rules
from shellback.storage.tables import joined_calls, sessions
from tests import bound
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

NAME = "tool.client"
ALLOWED = Rule(effect="allow", match=Match(prefix=("true",), exact=True), owner="ann", saved=True)


@pytest.fixture
def on() -> Generator[Stage]:
    with stage() as made:
        yield made


def request(number: str | int, headers: dict[str, str] | None = None) -> Any:
    http = None if headers is None else SimpleNamespace(headers=headers)
    return SimpleNamespace(request_id=number, request=http)


def asked(numbers: Numbers, number: int, tool: str = "execute", **args: Any) -> Asked:
    name, new = numbers.named(request(number))
    return Asked(client="tester", id=name, tool=tool, args=args, new=new)


def test_a_number_of_standard_input_is_new_only_above_all_before_it() -> None:
    numbers = Numbers()
    named = [numbers.named(request(one)) for one in (1, 3, 2, 3, "4", 4, 4, -1)]
    assert [new for _, new in named] == [True, True, False, False, False, True, False, False]
    assert len({name for name, _ in named}) == 6, "a text is no number"
    assert Numbers().named(request(1))[0] != named[0][0], "another connection counts anew"


def test_over_http_a_request_without_a_session_is_new_and_one_of_a_session_may_be_a_repeat() -> None:
    numbers, session = Numbers(), {SESSION: "abc"}
    assert numbers.named(request(1, session)) == numbers.named(request(1, session)) == ("abc:1", False)
    alone = [numbers.named(request(1, {})) for _ in range(2)]
    assert [new for _, new in alone] == [True, True]
    assert alone[0] != alone[1]


async def test_the_repeat_of_a_number_that_ran_as_an_identical_call_starts_nothing(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[str]()
    before = requests.before

    def noted(conn: sa.Connection, call: Asked, origin: Callable[[Asked], CallOrigin]) -> requests.Before:
        looked.append(call.id)
        return before(conn, call, origin)

    monkeypatch.setattr(requests, "before", noted)
    numbers = Numbers()
    async with bound.connected(on) as made:
        calls = made.connected(NAME)
        first = asyncio.create_task(calls.call(asked(numbers, 1, command="true")))
        (pending,) = await asyncio.to_thread(on.until, "a request", on.requests)
        second = asyncio.create_task(calls.call(asked(numbers, 2, command="true")))
        await asyncio.to_thread(on.until, "it has joined", lambda: on.scalars(sa.select(joined_calls.c.request_id)))
        await asyncio.to_thread(on.decide, pending)
        ran = {(await one).facts["session_id"] for one in (first, second)}
        assert len(ran) == 1
        # From now on nobody is asked, so only what is known of the number keeps it from running again.
        await asyncio.to_thread(on.write, rules.add, [ALLOWED])
        assert looked == []
        repeat = asked(Numbers(numbers._connection, 2), 2, command="true")  # pyright: ignore[reportPrivateUsage]
        assert {(await calls.call(repeat)).facts["session_id"]} == ran
        assert looked == [repeat.id]
    assert len(on.scalars(sa.select(sessions.c.id))) == 1


class Held:
    """Ends of an engine that are recorded when they are let go, and whether somebody has begun to wait for one."""

    def __init__(self, calls: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = calls.calls.engine
        self.let_go, self.holds, self.waited = asyncio.Event(), asyncio.Event(), asyncio.Event()
        finish, recorded = engine.store.finish, engine.recorded

        async def held(session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
            self.waited.clear()
            self.holds.set()
            await self.let_go.wait()
            return await finish(session_id, end, told_inline=told_inline)

        async def waiting(conversation_id: str) -> None:
            self.waited.set()
            await recorded(conversation_id)

        monkeypatch.setattr(engine.store, "finish", held)
        monkeypatch.setattr(engine, "recorded", waiting)


@pytest.fixture
def allowing(on: Stage) -> Stage:
    on.write(rules.add, [ALLOWED])
    return on


async def test_an_answer_does_not_wait_until_its_end_is_recorded_and_the_next_call_does(
    allowing: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers()
    async with bound.connected(allowing) as made:
        calls = made.connected(NAME)
        await calls.call(asked(numbers, 1, "process_list"))
        held = Held(calls, monkeypatch)
        answer = await calls.call(asked(numbers, 2, command="true"))
        assert answer.facts["exit_code"] == 0
        assert allowing.scalars(sa.select(sessions.c.state)) == [SessionState.CLAIMED]
        listing = asyncio.create_task(calls.call(asked(numbers, 3, "process_list")))
        async with asyncio.timeout(30):
            await held.waited.wait()
        held.let_go.set()
        (shown,) = (await listing).facts["result"]
        assert (shown["session_id"], shown["state"]) == (answer.facts["session_id"], "exited")


async def test_the_result_of_a_task_is_kept_after_its_end_is_recorded(
    allowing: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bound.connected(allowing) as made:
        calls = made.connected(NAME)
        await calls.call(asked(Numbers(), 1, "process_list"))
        held = Held(calls, monkeypatch)
        begun = await calls.begin(asked(Numbers(), 2, command="true"), 0.0)
        assert isinstance(begun, Task)
        async with asyncio.timeout(30):
            await held.holds.wait()
            await held.waited.wait()
        kept = await made.database.read(task_rows.get, NAME, begun.id)
        assert kept is not None
        assert kept.state == task_rows.WORKING
        held.let_go.set()
        async with asyncio.timeout(30):
            last = [one async for one in calls.changes("tester", [begun.id])][-1]
        assert isinstance(last.answer, Answer)
        assert last.answer.facts["exit_code"] == 0
