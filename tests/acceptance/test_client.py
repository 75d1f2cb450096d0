"""A program with a client, while workers, servers and the program itself are killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.client import local, operations, processes
from shellback.client.client import AsyncClient, Client
from shellback.client.facts import Event
from shellback.exec.core.errors import InputUnknown
from shellback.storage.tables import audit
from shellback.work.errors import (
    InvalidRequest,
    ServerRefused,
    ServerUnreachable,
    UnknownApproval,
    UnknownConversation,
    UnknownSession,
)
from tests.commands import PATIENCE_S, environment, shellback
from tests.serving import served, token, web
from tests.stage import Stage, stage, working

CALLS = 6
LINES = "\n".join(f'!process_log {{"session_id": "none{number}"}}' for number in range(CALLS))

SLOW = """
import asyncio
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import DeltaToolCall, FunctionModel


async def answer(messages, info):
    if len(messages) > 1:
        yield "There are two."
        return
    yield "I count. "
    if "fail" in str(messages):
        raise ModelHTTPError(400, "slow", {"message": "no"})
    await asyncio.to_thread(Path("go_on").read_text)
    yield "Wait."
    yield {0: DeltaToolCall("count", "{}", tool_call_id="c1")}


async def watch(ctx, events):
    async for _ in events:
        pass


agent = Agent(FunctionModel(stream_function=answer), name="slow")
watched = Agent(FunctionModel(stream_function=answer), name="slow", capabilities=[ProcessEventStream(watch)])


@agent.tool_plain
@watched.tool_plain
def count() -> str:
    return "two"
"""


@pytest.fixture
def loop(database_url: str) -> Iterator[Stage]:
    with stage(database_url) as made:
        yield made


def kinds(events: list[Event]) -> list[tuple[str, Any]]:
    """What a turn has told, without the numbers; text as one."""
    found: list[tuple[str, Any]] = []
    for event in events:
        if event.kind == "text" and found and found[-1][0] == "text":
            found[-1] = ("text", found[-1][1] + event.payload["text"])
        elif event.kind in {"text", "tool_call", "tool_result", "answer"}:
            found.append((event.kind, event.payload["text"] if event.kind == "text" else event.payload))
    return found


def test_a_stream_goes_on_over_the_kill_of_its_worker_without_loss_or_repeat(loop: Stage) -> None:
    worker = loop.hire(OFFLINE_SECONDS="0.2")
    with Client(loop.settings) as client:
        sent = client.send("c1", LINES)
        told: list[Event] = []
        results = 0
        for event in client.stream("c1", after=sent.event):
            told.append(event)
            results += event.kind == "tool_result"
            if event.kind == "tool_result" and results == 3:
                worker.kill()
                loop.hire()
            if event.kind == "answer":
                break
        assert len({event.id for event in told}) == len(told)
        whole = kinds(told)
        assert [kind for kind, _ in whole].count("tool_call") == CALLS
        assert [kind for kind, _ in whole].count("tool_result") == CALLS
        assert [kind for kind, _ in whole].count("answer") == 1
        assert loop.turn(sent.item) is not None
        # A program that goes on after any of them is told exactly the rest.
        for number, event in enumerate(told):
            assert [*client.stream("c1", after=event.id, follow=False)] == told[number + 1 :]


@pytest.fixture(params=["agent", "watched"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with stage(None, AGENT=f"slow:{request.param}") as made:
        (made.root / "slow.py").write_text(SLOW)
        os.mkfifo(made.root / "go_on")
        monkeypatch.chdir(made.root)
        del made.environ["MODEL"]  # the agent has one
        made.hire()
        yield made


def test_what_a_model_had_said_when_it_failed_is_told_and_is_once_in_the_history(slow: Stage) -> None:
    with Client(slow.settings) as client:
        sent = client.send("c1", "fail")
        assert slow.ended(sent.item)["outcome"] == "failed"
        assert ("text", "I count. ") in kinds([*client.stream("c1", after=sent.event, follow=False)])
    assert slow.history().count("I count. ") == slow.history().count('"state":"interrupted"') == 1


def test_a_response_is_told_while_the_model_still_gives_it_and_its_calls_after_it(slow: Stage) -> None:
    with Client(slow.settings) as client:
        sent = client.send("c1", "how many?")
        told: list[Event] = []
        for event in client.stream("c1", after=sent.event):
            told.append(event)
            if kinds(told) == [("text", "I count. ")]:
                (slow.root / "go_on").write_text("")
            if event.kind in {"answer", "failed"}:
                break
        assert [(kind, what if kind == "text" else what.get("tool")) for kind, what in kinds(told)] == [
            ("text", "I count. Wait."),
            ("tool_call", "count"),
            ("tool_result", "count"),
            ("text", "There are two."),
            ("answer", None),
        ]


def test_a_program_that_is_killed_goes_on_after_its_last_event(loop: Stage) -> None:
    program = (
        "import json, sys, shellback\n"
        "for event in shellback.Client().stream('c1', after=sys.argv[1]):\n"
        "    print(json.dumps([event.id, event.kind]), flush=True)\n"
    )
    loop.hire(OFFLINE_SECONDS="0.1")
    with Client(loop.settings) as client:
        after = client.send("c1", LINES).event
        seen: list[str] = []
        kind = ""
        while kind != "answer":
            reading = subprocess.Popen(
                [sys.executable, "-c", program, after], env=environment(loop, {}), stdout=subprocess.PIPE, text=True
            )
            assert reading.stdout is not None
            for line in reading.stdout:
                after, kind = json.loads(line)
                seen.append(after)
                if len(seen) % 4 == 0 or kind == "answer":
                    break
            reading.kill()
            reading.stdout.close()
            reading.wait(PATIENCE_S)
        ids = [event.id for event in client.stream("c1", follow=False)]
        assert ids[ids.index(seen[0]) :][: len(seen)] == seen


def test_events_are_told_when_they_are_written_and_nothing_is_polled(
    loop: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rings this would take ten minutes for each look."""
    monkeypatch.setattr(local, "LOOK_S", 600.0)
    monkeypatch.setattr(local, "AWAY_S", 600.0)
    loop.hire()

    async def talk() -> None:
        async with AsyncClient(loop.settings) as client:
            await client.send("c1", "hello")
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    async for event in client.stream("c1", after=(await client.send("c1", "hello")).event):
                        if event.kind == "answer":
                            break

    asyncio.run(talk())


def test_a_server_is_killed_and_its_readers_go_on_with_the_next_one() -> None:
    with working(OFFLINE_SECONDS="0.2") as loop:
        secret = token(loop, "all", "--api", "--all-conversations")
        with served(loop) as first:
            port = first.base.rpartition(":")[2]
            with Client(first.base, token=secret) as client:
                sent = client.send("c1", LINES)
                told: list[Event] = []
                stream = client.stream("c1", after=sent.event)
                for event in stream:
                    told.append(event)
                    if event.kind == "tool_result":
                        break
                first.process.kill()
                first.process.wait(PATIENCE_S)
                with served(loop, port=int(port)):
                    for event in stream:
                        told.append(event)
                        if event.kind == "answer":
                            break
                    assert [kind for kind, _ in kinds(told)].count("tool_call") == CALLS
                    assert told == [*client.stream("c1", after=sent.event, follow=False)][: len(told)]


def test_a_token_sees_and_decides_what_belongs_to_its_conversations_only() -> None:
    with working() as loop, served(loop) as server:
        mine, all_ = token(loop, "mine", "--api", "-c", "mine"), token(loop, "all", "--api", "--all-conversations")
        with Client(server.base, token=mine) as own, Client(server.base, token=all_) as every:
            sent = every.send("other", '!execute {"command": "sleep 99", "background": true}')
            event = next(one for one in every.stream("other", after=sent.event) if one.kind == "approval")
            foreign = event.payload["id"]
            for decide in (own.approval, own.approve, own.deny):
                with pytest.raises(UnknownApproval) as refused:
                    decide(foreign)
                # Word for word what is said of one that does not exist.
                with pytest.raises(UnknownApproval) as unknown:
                    decide("a" * 12)
                assert str(refused.value) == str(unknown.value).replace("a" * 12, foreign)
            every.approve(foreign)
            next(one for one in every.stream("other", after=event) if one.kind == "answer")
            (session,) = every.sessions("other")
            reached: list[Callable[[str], Any]] = [own.session, own.logs, own.kill, lambda one: own.write(one, "x")]
            for reach in reached:
                with pytest.raises(UnknownSession):
                    reach(session.id)
            asked: list[Callable[[str], Any]] = [own.approvals, own.sessions, lambda one: own.send(one, "hi")]
            asked.append(lambda one: next(own.stream(one)))
            for ask in asked:
                with pytest.raises(UnknownConversation):
                    ask("other")
            assert own.approvals(everything=True) == []
            assert own.sessions(everything=True) == []
            assert [one.id for one in every.sessions()] == [session.id]
            request = next(
                one for one in own.stream("mine", after=own.send("mine", "$ echo x").event) if one.kind == "approval"
            )
            own.approve(request.payload["id"])
            assert own.approval(request.payload["id"]).decided_by == "token:mine"
            audit = shellback(loop, "audit", "--json", "-c", "mine")
            assert '"surface": "client"' in audit.stdout
            every.kill(session.id)
            stream = own.stream("mine")
            next(stream)
            assert shellback(loop, "tokens", "revoke", "mine").returncode == 0
            with pytest.raises(ServerRefused, match="revoked"):
                for _ in stream:
                    pass
            with pytest.raises(ServerRefused, match="revoked"):
                own.sessions()
    with pytest.raises(ServerUnreachable, match="check its address"):
        Client(server.base, token=mine).sessions()
    with pytest.raises(InvalidRequest, match="a token is for a server"):
        Client(loop.settings, token=mine)


def test_input_that_nobody_reads_holds_back_no_kill_and_not_the_end_of_the_server() -> None:
    with (
        working() as loop,
        served(loop) as server,
        ExitStack() as stack,
    ):
        clients = [
            stack.enter_context(Client(server.base, token=token(loop, f"all-{n}", "--api", "--all-conversations")))
            for n in range(local.THREADS // local.SHARE)
        ]
        client = clients[0]
        for _ in range(2):
            args = {"command": "exec sleep 1000", "background": True, "keep_stdin_open": True}
            after = client.send("c1", f"!execute {json.dumps(args)}").event
            event = next(one for one in client.stream("c1", after=after) if one.kind == "approval")
            client.approve(event.payload["id"])
            next(one for one in client.stream("c1", after=event) if one.kind == "answer")
        deaf, other = client.sessions("c1")
        began = time.monotonic()

        def type_(by: Client) -> None:
            with pytest.raises((InputUnknown, ServerRefused, ServerUnreachable)):
                by.write(deaf.id, "\U0001f600" * operations.INPUT_CHARS)

        writers = [
            threading.Thread(target=type_, args=(by,), daemon=True) for by in clients for _ in range(local.SHARE)
        ]
        for writer in writers:
            writer.start()
        counted = sa.select(sa.func.count()).where(audit.c.event == "typed")
        loop.until("all that type", lambda: loop.scalars(counted)[0] == len(writers) or None)
        client.kill(other.id)
        assert all(writer.is_alive() for writer in writers)
        assert server.end() == 0
        for writer in writers:
            writer.join(PATIENCE_S)
        assert time.monotonic() - began < processes.READ_S
        assert "Traceback" not in server.log


def test_requests_that_are_not_of_our_client_are_answered_with_cause_and_remedy() -> None:
    async def ask(base: str, secret: str) -> None:
        async with web(secret) as http:
            described = (await http.get(f"{base}/v1/openapi.json")).json()
            assert described["openapi"].startswith("3.1")
            for path, methods in described["paths"].items():
                for method in methods:
                    url = base + path.replace("{conversation}", "none").replace("{id}", "none")
                    for body in (b"", b"[]", b"{", b'{"no": 1}', b"[" * 100_000):
                        answer = await http.request(method.upper(), url, content=body if method == "post" else None)
                        assert answer.status_code in {200, 400, 404}, (url, answer.text)
                        assert answer.status_code == 200 or answer.json()["error"]["message"]
            for query in ("follow=perhaps", "after=x", "after=1&after=2&x=3", "kinds=text&limit=1"):
                answer = await http.get(f"{base}/v1/conversations/c1/events?{query}")
                assert answer.status_code in {400, 404}, answer.text
            answer = await http.post(f"{base}/v1/conversations/c1/messages", json={"text": "hi"})
            assert answer.status_code == 200
            headers = {"Last-Event-ID": answer.json()["event"]}
            async with http.sse(f"{base}/v1/conversations/c1/events?follow=false&after=77", headers=headers) as source:
                events = [one async for one in source]
            assert events[-1].event == "end"
            assert json.loads(events[0].data)["kind"] == "message"
            assert events[0].id == json.loads(events[0].data)["id"]

    with working() as loop, served(loop) as server:
        asyncio.run(ask(server.base, token(loop, "all", "--api", "--all-conversations")))


def test_without_the_gate_the_agent_says_what_to_set() -> None:
    with working(ENABLE_EXECUTE="false") as loop, Client(loop.settings) as client:
        sent = client.send("c1", "$ echo hi")
        told = [*_upto_answer(client, sent.event)]
        assert "ENABLE_EXECUTE" in "".join(one.payload["text"] for one in told if one.kind == "text")
        assert client.sessions(everything=True) == []


def _upto_answer(client: Client, after: str) -> Iterator[Event]:
    for event in client.stream("c1", after=after):
        yield event
        if event.kind == "answer":
            return
