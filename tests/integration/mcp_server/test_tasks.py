"""Calls that are answered with a task: durable, gone on with by whoever comes next, and of one conversation only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, SessionState
from shellback.mcp_server import task_rows
from shellback.mcp_server import tasks as of_tasks
from shellback.mcp_server.answer import Answer, Asked, Task, UnknownTask
from shellback.mcp_server.connection import Connection
from shellback.storage.tables import sessions, tasks
from shellback.work.approvals.approvals import Request
from shellback.work.errors import InvalidRequest
from tests import bound
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

NAME = "tool.client"
WAITS = {"command": "echo nonce >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"}
CLIENT = "tester"


@pytest.fixture
def on(database_url: str) -> Generator[Stage]:
    with stage(database_url) as made:
        yield made


@pytest.fixture
def quick() -> Generator[Stage]:
    """On SQLite alone, for what both databases do in the same way."""
    with stage() as made:
        yield made


@asynccontextmanager
async def connected(on: Stage, name: str = NAME, **environ: str) -> AsyncGenerator[Connection]:
    """The calls of a connection, as a server makes them."""
    async with bound.connected(on, **environ) as made:
        yield made.connected(name)


def asked(args: dict[str, Any], name: str = "1", tool: str = "execute") -> Asked:
    return Asked(client=CLIENT, id=name, tool=tool, args=args)


async def pending(on: Stage) -> Request:
    return (await asyncio.to_thread(on.until, "a request", on.requests))[0]


async def begun(calls: Connection, call: Asked, after_s: float = 0.0) -> Task:
    task = await calls.begin(call, after_s)
    assert isinstance(task, Task)
    return task


async def running(on: Stage, calls: Connection, call: Asked) -> Task:
    """The task of a call that a person has approved, whose process runs."""
    task = await begun(calls, call)
    await asyncio.to_thread(on.decide, await pending(on))
    await asyncio.to_thread(on.session, "nonce")
    return task


async def over(calls: Connection, task: Task) -> Task:
    """The task when it has ended, as its last notification says."""
    async with asyncio.timeout(30):
        found = [one async for one in calls.changes(CLIENT, [task.id])]
    assert found[-1] == await calls.task(CLIENT, task.id)
    return found[-1]


def nonces(on: Stage) -> str:
    return (on.workspace / "nonce").read_text()


async def test_a_call_that_takes_longer_is_a_task_that_ends_with_what_the_call_answers(on: Stage) -> None:
    async with connected(on) as calls:
        task = await running(on, calls, asked(WAITS))
        row = on.read(task_rows.get, NAME, task.id)
        assert row is not None, "durable before it is answered"
        (session,) = on.scalars(sa.select(sessions.c.id))
        assert (task.state, task.id) == ("working", session)
        now = await calls.task(CLIENT, task.id)
        assert (now.state, now.said) == ("working", f"runs as session {session}")
        (on.workspace / "go").touch()
        done = await over(calls, task)
        assert (done.state, done.said, done.kept_s) == ("completed", "done", 30 * 86400)
        assert done.answer == await calls.call(asked(WAITS))
        assert done.answer is not None
        assert done.answer.texts[0].startswith("over\n[exit code 0")
        assert await calls.begin(asked(WAITS), 0.0) == done.answer, "the repeat of the request"
        short = await calls.begin(asked({}, "2", "process_list"), 30.0)
        assert isinstance(short, Answer)
        assert len(on.scalars(sa.select(tasks.c.id))) == 1
    assert nonces(on) == "nonce\n"


async def test_the_next_connection_goes_on_with_a_task_and_nothing_runs_twice(on: Stage) -> None:
    async with connected(on) as calls:
        runs = await running(on, calls, asked(WAITS))
        waits = await begun(calls, asked({"command": "echo second >> nonce"}, "2"))
        request = await pending(on)
    assert on.scalars(sa.select(sessions.c.state)) == [SessionState.RUNNING]
    assert on.scalars(sa.select(tasks.c.state)) == ["working"] * 2
    await asyncio.to_thread(on.decide, request)
    assert on.change(sa.update(sessions).values(created_at=1.0)) == 1, "old enough to be settled"
    async with connected(on) as calls:
        await calls.call(asked({}, "3", "process_list"))
        await asyncio.to_thread(on.until, "it runs, and nobody has asked about it", lambda: "second" in nonces(on))
        second = await over(calls, waits)
        assert second.answer is not None
        assert second.answer.facts["exit_code"] == 0
        assert (await calls.task(CLIENT, runs.id)).state == "working"
        (on.workspace / "go").touch()
        first = await over(calls, runs)
        assert first.answer is not None
        assert first.answer.texts[0].startswith("over\n[exit code 0")
    async with connected(on) as calls:
        assert await calls.task(CLIENT, runs.id) == first
        assert await calls.task(CLIENT, waits.id) == second
    assert nonces(on) == "nonce\nsecond\n"


async def test_an_approved_task_starts_nothing_while_the_gate_is_off_and_says_why(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls:
        task = await begun(calls, asked({"command": "echo nonce >> nonce"}))
        request = await pending(on)
    await asyncio.to_thread(on.decide, request)
    async with connected(on, ENABLE_EXECUTE="false") as calls:
        told = await calls.task(CLIENT, task.id)
        assert (told.state, told.said) == ("working", of_tasks.GATED)
    assert on.scalars(sa.select(sessions.c.id)) == []
    async with connected(on) as calls:
        assert (await over(calls, task)).state == "completed"
    assert nonces(on) == "nonce\n"


async def test_a_task_keeps_its_result_whichever_connections_come_before_the_one_that_goes_on_with_it(
    quick: Stage,
) -> None:
    on = quick
    async with connected(on) as calls:
        task = await running(on, calls, asked(WAITS))
    assert on.change(sa.update(sessions).values(created_at=1.0)) == 1, "old enough to be settled"
    async with connected(on) as calls:
        few = calls.calls.connected(NAME, ("process",), "few")
        await few.call(asked({}, "2", "process_list"))
        assert (await calls.task(CLIENT, task.id)).state == "working"
        async with connected(on) as other:
            await other.call(asked({}, "3", "process_list"))
        assert on.scalars(sa.select(sessions.c.delivery)) == [Delivery.INLINE]
        (on.workspace / "go").touch()
        done = await over(calls, task)
        assert done.answer is not None
        assert done.answer.texts[0].startswith("over\n[exit code 0")
    assert nonces(on) == "nonce\n"


async def test_the_repeat_of_a_call_that_is_just_being_left_is_carried_out(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls:
        call = asked({"command": "echo nonce >> nonce"})
        first = asyncio.create_task(calls.begin(call, 30.0))
        request = await pending(on)
        first.cancel()
        await asyncio.sleep(0)  # its call is cancelled, and not over
        again = asyncio.create_task(calls.begin(call, 30.0))
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.to_thread(on.decide, request)
        answer = await again
        assert isinstance(answer, Answer)
        assert answer.facts["exit_code"] == 0
    assert nonces(on) == "nonce\n"


async def test_a_request_that_waits_for_a_task_which_another_one_cancels_is_told_so(quick: Stage) -> None:
    async with connected(quick) as calls:
        task = await begun(calls, asked(WAITS))
        waits = asyncio.create_task(calls.begin(asked(WAITS), 30.0))
        await asyncio.sleep(0)
        await calls.cancel(CLIENT, task.id)
        assert await waits == Answer(["cancelled"], failed=True)


async def test_arguments_that_are_too_long_make_no_task(quick: Stage) -> None:
    async with connected(quick) as calls:
        answer = await calls.begin(asked({"command": "x" * 1_100_000}), 0.0)
        assert isinstance(answer, Answer)
        assert "longer than 1 MiB" in answer.texts[0]
    assert quick.scalars(sa.select(tasks.c.id)) == []


async def test_a_task_that_ended_while_no_server_lived_has_the_same_result(on: Stage) -> None:
    async with connected(on) as calls:
        task = await running(on, calls, asked(WAITS))
    (on.workspace / "go").touch()
    async with connected(on, "another") as calls:  # its engine records the end
        await calls.calls.engine.wait(on.session("nonce").id, up_to=30.0)
    async with connected(on) as calls:
        done = await calls.task(CLIENT, task.id)
        assert done.state == "completed", "at once"
        assert done.answer is not None
        assert (done.answer.facts["exit_code"], done.answer.facts["handed_over"]) == (0, False)
        assert done.answer.texts[0].startswith("over\n[exit code 0")


async def test_a_task_of_another_conversation_is_unknown(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls, connected(on, "another") as others:
        task = await begun(calls, asked(WAITS))
        for no_task in (task.id, "x234567890123456"):
            with pytest.raises(UnknownTask):
                await others.task(CLIENT, no_task)
            with pytest.raises(UnknownTask):
                await others.cancel(CLIENT, no_task)
        assert (await calls.task(CLIENT, task.id)).state == "working"


async def test_a_cancelled_task_is_no_more_asked_about_and_stays_cancelled(on: Stage) -> None:
    async with connected(on) as calls:
        task = await begun(calls, asked({"command": "echo nonce >> nonce"}))
        request = await pending(on)
        assert (await calls.task(CLIENT, task.id)).said.startswith(
            f"waits for a person: shellback approvals approve {request.id}"
        )
        await calls.cancel(CLIENT, task.id)
        await calls.cancel(CLIENT, task.id)
        assert on.requests() == []
        again = await calls.begin(asked({"command": "echo nonce >> nonce"}), 0.0)
        assert again == Answer(["cancelled"], failed=True)
    async with connected(on) as calls:
        assert (await calls.task(CLIENT, task.id)).state == "cancelled"
        assert on.requests() == []
    assert not (on.workspace / "nonce").exists()


async def test_the_process_of_a_cancelled_task_goes_on_in_the_background(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls:
        task = await running(on, calls, asked(WAITS))
        await calls.cancel(CLIENT, task.id)
        told = await calls.task(CLIENT, task.id)
        assert (told.state, told.said) == ("cancelled", f"cancelled; its process goes on as session {task.id}")
        (on.workspace / "go").touch()
        ended = await calls.call(asked({"session_ids": [task.id]}, "2", "process_wait"))
        assert ended.facts["sessions"][0]["exit_code"] == 0
        assert (await calls.task(CLIENT, task.id)).state == "cancelled"


async def test_identical_calls_that_wait_for_a_person_are_one_task(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls:
        first = await begun(calls, asked({"command": "echo nonce >> nonce"}))
        request = await pending(on)
        second = await begun(calls, asked({"command": "echo nonce >> nonce"}, "2"), 0.5)
        assert second.id == first.id
        await asyncio.to_thread(on.decide, request)
        assert (await over(calls, first)).state == "completed"
    assert nonces(on) == "nonce\n"


async def test_a_refusal_and_a_wrong_call_end_a_task_as_they_end_a_call(quick: Stage) -> None:
    on = quick
    async with connected(on) as calls:
        task = await begun(calls, asked({"command": "echo nonce >> nonce"}))
        await asyncio.to_thread(on.decide, await pending(on), "denied", "not today")
        done = await over(calls, task)
        assert done.answer is not None
        assert (done.state, done.answer.failed) == ("completed", True)
        assert "not today" in done.answer.texts[0]
        with pytest.raises(InvalidRequest, match="used for another call"):
            await calls.begin(asked({"command": "true"}), 0.0)
        waits = await begun(calls, asked({"command": "true"}, "2"))
        await pending(on)
    on.change(sa.update(tasks).where(tasks.c.id == waits.id).values(tool="switched_off_meanwhile"))
    async with connected(on) as calls:
        unknown = await calls.task(CLIENT, waits.id)
        assert (unknown.state, unknown.error and unknown.error["code"]) == ("failed", -32602)


async def test_beyond_the_most_tasks_of_a_process_a_call_is_answered_as_without(
    quick: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_tasks, "MOST", 1)
    async with connected(quick) as calls:
        await begun(calls, asked(WAITS))
        answer = await calls.begin(asked({}, "2", "process_list"), 0.0)
        assert isinstance(answer, Answer)
        assert answer.facts["total"] == 0
