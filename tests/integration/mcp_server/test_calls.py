"""The calls of an MCP client: claimed once, approved by a person, answered in time, and never a turn of an agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, SessionId, SessionState
from shellback.exec.core.watch import Hit, Watch
from shellback.exec.policy.rules.rule import Match, Rule
from shellback.mcp_server import connection as of_calls
from shellback.mcp_server.answer import Answer, Asked, UnknownTool
from shellback.mcp_server.connection import Connection
from shellback.storage import rules
from shellback.storage.tables import audit, conversations, hosts, joined_calls, mailbox, sessions, turns
from shellback.work.approvals import approvals
from shellback.work.approvals.approvals import Request
from shellback.work.errors import ApprovalRefused, InvalidRequest
from shellback.work.hosts import generation
from shellback.work.queue import stream
from shellback.work.queue.doorbell import Doorbell
from shellback.work.queue.watch_wakes import WatchWakes
from shellback.work.turn import stopping
from tests import bound
from tests.items import unrung
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

NAME = "tool.client"
WAITS = {"command": "echo nonce >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"}


@pytest.fixture
def on(database_url: str) -> Generator[Stage]:
    with stage(database_url) as made:
        yield made


@asynccontextmanager
async def connected(on: Stage, name: str | None = NAME) -> AsyncGenerator[Connection]:
    """The one connection of a server."""
    async with bound.connected(on) as made:
        yield made.connected(name)


def asked(tool: str, args: dict[str, Any], name: str = "1") -> Asked:
    return Asked(client="tester", id=name, tool=tool, args=args)


async def pending(on: Stage) -> Request:
    return (await asyncio.to_thread(on.until, "a request", on.requests))[0]


async def approved(on: Stage, calls: Connection, call: Asked) -> Answer:
    """The answer to a call that a person approves meanwhile."""
    task = asyncio.create_task(calls.call(call))
    request = await pending(on)
    await asyncio.to_thread(on.decide, request)
    return await task


def events(on: Stage, kind: str) -> list[Any]:
    return [one for one in on.read(stream.after, NAME, 0) if one.kind == kind]


def nonces(on: Stage) -> str:
    return (on.workspace / "nonce").read_text()


async def test_an_approved_call_runs_once_and_its_repeat_has_the_same_result(on: Stage) -> None:
    async with connected(on) as calls:
        call = asked("execute", {"command": "echo nonce >> nonce; echo done; exit 3"})
        first = await approved(on, calls, call)
        assert (first.facts["exit_code"], first.failed) == (3, False)
        assert first.texts[0].startswith("done\n[exit code 3")
        assert (await calls.call(call)).facts["session_id"] == first.facts["session_id"]
    async with connected(on) as later:
        assert (await later.call(call)).facts["session_id"] == first.facts["session_id"]
    assert nonces(on) == "nonce\n"
    assert on.scalars(sa.select(audit.c.event).order_by(audit.c.id)) == ["asked", "approved", "used"]


async def test_a_decision_is_heard_by_its_ring(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_calls, "LOOK_S", 3600.0)
    async with connected(on) as calls:
        assert (await approved(on, calls, asked("execute", {"command": "true"}))).facts["exit_code"] == 0


async def test_a_decision_whose_ring_is_lost_is_found_by_a_look(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_calls, "LOOK_S", 0.05)
    monkeypatch.setattr(Doorbell, "ring", unrung)
    async with connected(on) as calls:
        assert (await approved(on, calls, asked("execute", {"command": "true"}))).facts["exit_code"] == 0


async def test_a_refusal_is_told_once_and_then_a_person_is_asked_again(on: Stage) -> None:
    async with connected(on) as calls:
        task = asyncio.create_task(calls.call(asked("execute", {"command": "echo nonce >> nonce"})))
        request = await pending(on)
        await asyncio.to_thread(on.decide, request, "denied", "not today")
        answer = await task
        assert answer.failed
        assert "not today" in answer.texts[0]
        again = asyncio.create_task(calls.call(asked("execute", {"command": "echo nonce >> nonce"}, "2")))
        assert (await pending(on)).id != request.id
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
    assert not (on.workspace / "nonce").exists()


async def test_an_undecided_call_is_answered_in_time_and_its_repeat_finds_the_decision(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(on) as calls:
        monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
        first = await calls.call(asked("execute", {"command": "echo nonce >> nonce"}))
        (request,) = on.requests()
        assert first.failed
        assert f"shellback approvals approve {request.id}" in first.texts[0]
        second = await calls.call(asked("execute", {"command": "echo nonce >> nonce"}, "2"))
        assert second.facts["approval"] == request.id
        assert [one.id for one in on.requests()] == [request.id]
        await asyncio.to_thread(on.decide, request)
        monkeypatch.undo()
        third = await calls.call(asked("execute", {"command": "echo nonce >> nonce"}, "3"))
        assert third.facts["exit_code"] == 0
        assert on.read(approvals.get, request.id).state == "used"
    assert nonces(on) == "nonce\n"


async def test_identical_waiting_calls_are_one_request_and_one_process(on: Stage) -> None:
    async with connected(on) as calls:
        tasks = [
            asyncio.create_task(calls.call(asked("execute", {"command": "echo nonce >> nonce"}, str(number))))
            for number in range(5)
        ]
        request = await pending(on)
        await asyncio.to_thread(on.decide, request)
        answers = await asyncio.gather(*tasks)
        assert len({answer.facts["session_id"] for answer in answers}) == 1
    assert len(on.read(approvals.find)) == 1
    assert nonces(on) == "nonce\n"


async def test_the_repeat_of_a_call_that_ran_as_an_identical_one_has_its_result(on: Stage) -> None:
    call = {"command": "true"}
    async with connected(on) as calls:
        request, first, second = await joined(on, calls, call)
        await asyncio.to_thread(on.decide, request)
        answer = await second
        assert first.cancelled()
        assert (await calls.call(asked("execute", call, "2"))).facts["session_id"] == answer.facts["session_id"]
    async with connected(on) as later:
        assert (await later.call(asked("execute", call, "2"))).facts["session_id"] == answer.facts["session_id"]
        # Also if nobody had to be asked about it any more.
        rule = Rule(effect="allow", match=Match(prefix=("true",), exact=True), owner="ann", saved=True)
        await asyncio.to_thread(on.write, rules.add, [rule])
        assert (await later.call(asked("execute", call, "2"))).facts["session_id"] == answer.facts["session_id"]
        new = await later.call(asked("execute", call, "3"))
        assert new.facts["session_id"] != answer.facts["session_id"]
    assert len(on.read(approvals.find)) == 1
    assert len(on.scalars(sa.select(sessions.c.id))) == 2


async def test_a_call_that_runs_as_an_identical_one_is_not_settled_by_the_next_connection(on: Stage) -> None:
    async with connected(on) as calls:
        one, two = (calls.calls.connected(NAME, name=name) for name in ("one", "two"))
        request, _, second = await joined(on, one, WAITS)
        await asyncio.to_thread(on.decide, request)
        await asyncio.to_thread(on.session, "nonce")
        assert on.change(sa.update(sessions).values(created_at=1.0)) == 1, "old enough to be settled"
        await one.close()
        await two.call(asked("process_list", {}, "3"))
        assert on.scalars(sa.select(sessions.c.delivery)) == [Delivery.INLINE]
        (on.workspace / "go").touch()
        assert (await second).facts["exit_code"] == 0


async def joined(
    on: Stage, calls: Connection, args: dict[str, Any]
) -> tuple[Request, asyncio.Task[Answer], asyncio.Task[Answer]]:
    """The request of a call that its client has given up, that call, and an identical one that waits for it."""
    first = asyncio.create_task(calls.call(asked("execute", args)))
    request = await pending(on)
    second = asyncio.create_task(calls.call(asked("execute", args, "2")))
    await asyncio.to_thread(on.until, "it has joined", lambda: on.scalars(sa.select(joined_calls.c.request_id)))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return request, first, second


@pytest.fixture
def hasty(database_url: str) -> Generator[Stage]:
    with stage(database_url, APPROVAL_TTL="1") as made:
        yield made


async def test_a_request_that_nobody_decides_expires_without_a_worker(hasty: Stage) -> None:
    async with connected(hasty) as calls:
        answer = await calls.call(asked("execute", {"command": "true"}))
    assert "nobody decided in time" in answer.texts[0]
    assert [one.state for one in hasty.read(approvals.find)] == ["expired"]


async def test_a_call_that_takes_longer_returns_with_its_session_and_what_to_call_next(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(on) as calls:
        task = asyncio.create_task(calls.call(asked("execute", WAITS)))
        request = await pending(on)
        await asyncio.to_thread(on.decide, request)
        session = await asyncio.to_thread(on.session, "nonce")
        assert not task.done()
        monkeypatch.setattr(of_calls, "WITHIN_S", 2.0)
        early = await calls.call(asked("execute", WAITS))  # the same call, answered while the first one waits
        assert early.facts["session_id"] == session.id
        assert early.facts["state"] == "running"
        assert "process_wait" in early.texts[1]
        monkeypatch.undo()
        (on.workspace / "go").touch()
        over = await calls.call(asked("process_wait", {"session_ids": [session.id]}, "2"))
        assert over.facts["sessions"][0]["exit_code"] == 0
        await task
    assert nonces(on) == "nonce\n"


async def test_a_call_that_is_cancelled_leaves_its_process_to_the_conversation(on: Stage) -> None:
    async with connected(on) as calls:
        task = asyncio.create_task(calls.call(asked("execute", WAITS)))
        request = await pending(on)
        await asyncio.to_thread(on.decide, request)
        session = await asyncio.to_thread(on.session, "nonce")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        handed = sa.select(sessions.c.id).where(sessions.c.delivery == Delivery.CALLBACK.value)
        await asyncio.to_thread(on.until, "it is handed over", lambda: on.scalars(handed))
        (on.workspace / "go").touch()
        await calls.calls.engine.wait(session.id, up_to=30)
    assert events(on, "exit")


async def test_a_connection_that_ends_waits_until_what_its_calls_left_is_handed_over(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with connected(on) as calls:
        hand_over = calls.calls.engine.hand_over

        async def slow(session_id: SessionId) -> bool:
            begun.set()
            await go_on.wait()
            return await hand_over(session_id)

        monkeypatch.setattr(calls.calls.engine, "hand_over", slow)
        task = asyncio.create_task(calls.call(asked("execute", WAITS)))
        request = await pending(on)
        await asyncio.to_thread(on.decide, request)
        session = await asyncio.to_thread(on.session, "nonce")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stop = asyncio.create_task(calls.calls.stop())
        await begun.wait()
        go_on.set()
        await stop
        assert {one.id: one.delivery for one in on.sessions()}[session.id] is Delivery.CALLBACK


async def test_a_key_that_was_used_for_another_call_is_refused(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_calls, "WITHIN_S", 0.5)
    async with connected(on) as calls:
        first = await calls.call(asked("execute", {"command": "true"}))
        for other in (asked("execute", {"command": "false"}), asked("write_file", {"path": "a", "content": "b"})):
            with pytest.raises(InvalidRequest, match="this key was used for another call"):
                await calls.call(other)
        assert (await calls.call(asked("execute", {"command": "true"}))).facts["approval"] == first.facts["approval"]
    assert len(on.requests()) == 1


async def test_a_conversation_that_was_removed_is_made_again_as_that_of_a_client(on: Stage) -> None:
    async with connected(on) as calls:
        await approved(on, calls, asked("execute", {**WAITS, "background": True}))
        on.change(sa.delete(conversations).where(conversations.c.id == NAME))
        (on.workspace / "go").touch()
        await asyncio.to_thread(on.until, "its end is an event", lambda: events(on, "exit"))
        assert on.scalars(sa.select(conversations.c.driver)) == ["mcp"]
        on.change(sa.delete(conversations).where(conversations.c.id == NAME))
        session = on.sessions()[0].id
        watch = Watch(
            id="v1", session_id=session, conversation_id=NAME, turn_id=calls.turn_id, host_id=on.where.host_id,
            kind="pattern", pattern="over",
        )  # fmt: skip
        on.write(WatchWakes(on.enqueuer, on.where.host_id).hit, watch, Hit(number=1, offset=5, at=1.0, upto=5))
    assert on.scalars(sa.select(conversations.c.driver)) == ["mcp"]
    assert on.scalars(sa.select(mailbox.c.id)) == []


async def test_the_end_of_a_process_of_a_client_wakes_no_agent(on: Stage) -> None:
    async with connected(on) as calls:
        started = await approved(on, calls, asked("execute", {"command": "true", "background": True}))
        assert started.facts["session_id"]
        await asyncio.to_thread(on.until, "its end is an event", lambda: events(on, "exit"))
        with pytest.raises(InvalidRequest, match="belongs to an MCP client"):
            on.send("hello?", NAME)
    on.hire()
    # A message to an agent makes the round, and nothing else did.
    await asyncio.to_thread(on.answer, on.send("hello"))
    assert on.scalars(sa.select(turns.c.conversation_id)) == ["c1"]
    assert on.scalars(sa.select(mailbox.c.conversation_id)) == ["c1"]
    assert on.callbacks() == []


async def test_a_process_with_the_lifetime_of_a_turn_ends_with_the_connection_and_others_go_on(on: Stage) -> None:
    async with connected(on) as calls:
        args = {**WAITS, "background": True}
        short = await approved(on, calls, asked("execute", {**args, "lifetime": "turn"}))
        long = await approved(on, calls, asked("execute", args, "2"))
    async with connected(on) as calls:
        await calls.calls.engine.wait(short.facts["session_id"], up_to=30)
        found = {one.id: one.state for one in on.sessions()}
        assert found[long.facts["session_id"]] is SessionState.RUNNING
        assert found[short.facts["session_id"]] is SessionState.SIGNALED


async def test_connections_of_one_process_end_apart_and_each_may_have_a_conversation_of_its_own(on: Stage) -> None:
    async with connected(on) as calls:
        args = {**WAITS, "background": True, "lifetime": "turn"}
        other = calls.calls.connected("other", name="2")
        mine = await approved(on, calls, asked("execute", args))
        theirs = await approved(on, other, asked("execute", args))
        assert mine.facts["session_id"] != theirs.facts["session_id"]
        await other.close()
        await calls.calls.engine.wait(theirs.facts["session_id"], up_to=30)
        found = {one.id: one for one in on.sessions()}
        assert found[theirs.facts["session_id"]].state is SessionState.SIGNALED
        assert found[mine.facts["session_id"]].state is SessionState.RUNNING
        over = await calls.calls.over_of({one.turn_id for one in found.values()})
        assert over == {found[theirs.facts["session_id"]].turn_id}
        foreign = await calls.call(asked("process_poll", {"session_id": theirs.facts["session_id"]}, "2"))
        assert foreign.failed


async def test_a_claim_that_was_never_started_is_settled_by_the_next_connection(on: Stage) -> None:
    async with connected(on) as calls:
        await approved(on, calls, asked("execute", {"command": "true"}))
    left = {
        "state": "claimed",
        "end": sa.null(),
        "ended_at": None,
        "delivery": "inline",
        "created_at": 1.0,
        "id": "xleft",
    }
    row = on.rows(sa.select(sessions))[0]
    on.change(sa.insert(sessions).values({**dict(zip(sessions.c.keys(), row, strict=True)), **left}))
    async with connected(on) as calls:
        await calls.call(asked("process_list", {}, "9"))
        found = {str(one.id): one for one in on.sessions()}
        assert found["xleft"].state is SessionState.LOST


async def test_sessions_that_a_restored_state_directory_does_not_know_are_left_to_a_person(on: Stage) -> None:
    async with connected(on):
        pass
    older = (on.home / generation.FILE).read_bytes()
    async with connected(on) as calls:
        started = await approved(on, calls, asked("execute", {**WAITS, "background": True}))
        kept = on.rows(sa.select(sessions))
    # Its processes are not those of this state directory, as after a restore.
    (on.home / generation.FILE).write_bytes(older)
    on.change(
        sa.insert(sessions).values({**dict(zip(sessions.c.keys(), kept[0], strict=True)), "id": "xunknown0000000"})
    )
    async with connected(on) as calls:
        await calls.call(asked("process_list", {}, "9"))
        found = {str(one.id): one.state for one in on.sessions()}
    assert found[started.facts["session_id"]] is SessionState.RUNNING
    assert found["xunknown0000000"] is SessionState.RUNNING
    assert generation.read(on.home).older == "directory"


async def test_the_conversation_of_an_agent_is_refused_and_that_of_a_client_is_found_again(on: Stage) -> None:
    on.send("hello", "c1")
    async with connected(on, "c1") as calls:
        with pytest.raises(InvalidRequest, match="belongs to an agent"):
            await calls.call(asked("process_list", {}, "9"))
    names = list[str]()
    for client in ("a client", "a client", "b"):
        async with connected(on, None) as calls:
            answer = await approved(
                on, calls, Asked(client=client, id=f"{client}{len(names)}", tool="execute", args={"command": "true"})
            )
            session = await calls.calls.engine.store.get(answer.facts["session_id"])
            assert session is not None
            names.append(session.conversation_id)
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("mcp.a-client.workspace.")


async def test_a_server_runs_beside_a_worker_and_another_server(on: Stage) -> None:
    on.hire()
    async with connected(on) as one, connected(on, "other") as two:
        first = await approved(on, one, asked("execute", {"command": "true"}))
        second = await approved(on, two, asked("execute", {"command": "true"}))
        assert (first.facts["exit_code"], second.facts["exit_code"]) == (0, 0)
        assert await asyncio.to_thread(on.answer, on.send("hello"))


async def test_what_belongs_to_a_connection_that_lives_is_not_settled_by_another(on: Stage) -> None:
    async with connected(on) as one:
        await approved(on, one, asked("execute", {"command": "true"}))
        row = dict(zip(sessions.c.keys(), on.rows(sa.select(sessions))[0], strict=True))
        left = {"id": "xleft", "state": "claimed", "end": sa.null(), "ended_at": None, "created_at": 1.0}
        on.change(sa.insert(sessions).values({**row, **left, "delivery": "inline"}))
        async with connected(on) as two:
            await two.call(asked("process_list", {}, "9"))
            found = {str(one.id): one for one in on.sessions()}["xleft"]
            assert (found.state, found.delivery) == (SessionState.CLAIMED, Delivery.INLINE)
    async with connected(on) as three:
        await three.call(asked("process_list", {}, "9"))
        assert {str(one.id): one.state for one in on.sessions()}["xleft"] is SessionState.LOST


async def test_a_call_that_a_second_server_goes_on_with_is_not_settled_by_a_third_one(on: Stage) -> None:
    on.patience_s = 15.0
    async with connected(on) as one, connected(on) as two, connected(on) as three:
        first = asyncio.create_task(approved(on, one, asked("execute", WAITS)))
        session = await asyncio.to_thread(on.session, "nonce")
        # As after `kill -9` of the first one, long ago.
        on.change(sa.update(sessions).values(turn_id="mcp-gone", created_at=1.0))
        second = asyncio.create_task(two.call(asked("execute", WAITS)))
        theirs = sa.select(sessions.c.id).where(sessions.c.turn_id == two.turn_id)
        await asyncio.to_thread(on.until, "the second one has it", lambda: on.scalars(theirs))
        await three.call(asked("process_list", {}, "3"))
        assert on.scalars(sa.select(sessions.c.delivery)) == [Delivery.INLINE]
        (on.workspace / "go").touch()
        assert (await second).facts["session_id"] == session.id
        assert not (await second).facts["handed_over"]
        await first
    assert nonces(on) == "nonce\n"


async def test_a_key_that_was_used_and_has_its_result_names_no_other_call(on: Stage) -> None:
    rule = Rule(effect="allow", match=Match(prefix=("true",)), owner="ann", saved=True)
    await asyncio.to_thread(on.write, rules.add, [rule])
    async with connected(on) as calls:
        ran = [
            (await approved(on, calls, asked("execute", {"command": "echo nonce >> nonce"}))),
            await calls.call(asked("execute", {"command": "true"}, "2")),
        ]
        assert [answer.failed for answer in ran] == [False, False]
        for other in (
            asked("execute", {"command": "false"}),
            asked("execute", {"command": "echo nonce >> nonce", "timeout": 5}),
            asked("write_file", {"path": "a", "content": "b"}),
            asked("execute", {"command": "true ; true"}, "2"),
        ):
            with pytest.raises(InvalidRequest, match="this key was used for another call"):
                await calls.call(other)
        assert (await calls.call(asked("execute", {"command": "true"}, "2"))).facts["exit_code"] == 0
    assert nonces(on) == "nonce\n"


@pytest.fixture
def shared(postgres_url: str) -> Generator[Stage]:
    with stage(postgres_url) as made:
        yield made


async def test_a_server_renews_the_lease_of_its_host(shared: Stage) -> None:
    renewed = sa.select(hosts.c.heartbeat_at).where(hosts.c.host_id == shared.where.host_id)
    async with connected(shared):
        await asyncio.to_thread(shared.until, "a heartbeat", lambda: shared.scalars(renewed))


async def test_a_stop_denies_what_waits_and_a_change_is_refused(on: Stage) -> None:
    async with connected(on) as calls:
        task = asyncio.create_task(calls.call(asked("execute", {"command": "true"})))
        request = await pending(on)
        with pytest.raises(ApprovalRefused, match="deny it with a reason"):
            approvals.settle(
                on.where.database, on.enqueuer, request.id, "changed", by="test", surface="test", args={"command": "id"}
            )
        assert on.write(stopping.stop, on.enqueuer, NAME, by="test").reach == "approvals"
        assert "stopped this instead" in (await task).texts[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "command: "),
        ({"command": ["true"]}, "command: "),
        ({"command": "true", "no_such": 1}, "no_such: "),
        ({"command": "true", "timeout": 1e9}, "timeout"),
        ({"command": "x" * 1_100_000}, "longer than 1 MiB"),
    ],
)
async def test_bad_arguments_are_a_failed_result_and_nobody_is_asked(
    on: Stage, args: dict[str, Any], said: str
) -> None:
    async with connected(on) as calls:
        answer = await calls.call(asked("execute", args))
        assert answer.failed
        assert said in answer.texts[0]
        assert "Traceback" not in answer.texts[0]
        with pytest.raises(UnknownTool):
            await calls.call(asked("execute_order_66", {}))
    assert on.requests() == []
