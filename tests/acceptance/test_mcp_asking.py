"""Requests for approval that are put to the client over the wire: by a request to it, or by the result of its call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from mcp.types import INTERNAL_ERROR, ElicitRequestFormParams, ElicitResult, ErrorData

from tests.clients import client, known, text_of
from tests.commands import facts, shellback
from tests.serving import connected, served, token
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

WRITES = {"path": "made", "content": "by the call"}


@pytest.fixture
def on() -> Generator[Stage]:
    with stage(MCP_ELICITATION="on") as made:
        yield made


class Person:
    """Who is at the client: answers with each of these in turn."""

    def __init__(self, *replies: ElicitResult | ErrorData) -> None:
        self.replies = [*replies]
        self.shown = list[str]()

    async def __call__(self, context: Any, params: Any) -> ElicitResult | ErrorData:
        del context
        assert isinstance(params, ElicitRequestFormParams)
        self.shown.append(params.message)
        return self.replies.pop(0)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_over_http_is_asked_in_its_protocol_and_its_answer_decides(on: Stage, mode: str) -> None:
    person = Person(ElicitResult(action="accept"), ElicitResult(action="decline"))
    secret = token(on, "build")
    with served(on) as server:
        async with connected(on, server.url, secret, mode, person) as one:
            done = await one.call("write_file", **WRITES)
            assert not done.is_error, done
            denied = await one.call("write_file", path="other", content="x")
            assert "Denied by mcp:tester" in text_of(denied)
    assert (on.workspace / "made").read_text() == "by the call"
    assert not (on.workspace / "other").exists()
    accepted, declined = facts(await asyncio.to_thread(shellback, on, "approvals", "list", "--all", "--json"))
    assert [accepted["decided_by"], declined["decided_by"]] == ["mcp:tester"] * 2
    shown = (await asyncio.to_thread(shellback, on, "approvals", "show", accepted["id"])).stdout
    (digest,) = (line for line in shown.splitlines() if line.strip().startswith("digest: "))
    assert digest in person.shown[0]


async def test_what_is_no_answer_leaves_the_request_and_a_client_that_cannot_be_asked_is_not(on: Stage) -> None:
    person = Person(ErrorData(code=INTERNAL_ERROR, message="no"), ElicitResult(action="cancel"))
    async with client(on, "--conversation", "build", asks=person) as one:
        task = asyncio.create_task(one.call("write_file", "k1", **WRITES))
        (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
        await asyncio.to_thread(on.until, "an answer", lambda: not person.replies[1:])
        await asyncio.to_thread(shellback, on, "approvals", "approve", request.id)
        assert not (await task).is_error
    assert len(person.shown) == 1
    async with client(on, "--conversation", "build") as one:
        assert not (await one.approved("write_file", path="second", content="x")).is_error


async def test_a_server_that_is_killed_while_it_asks_leaves_the_request_to_the_next_one(on: Stage) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(context: Any, params: Any) -> ElicitResult:
        del context, params
        asked.set()
        await never.wait()
        return ElicitResult(action="accept")

    async with client(on, "--conversation", "build", asks=silent) as one:
        task = asyncio.create_task(one.call("write_file", "k1", **WRITES))
        await asked.wait()
        one.kill()
        await asyncio.gather(task, return_exceptions=True)
    assert not (on.workspace / "made").exists()
    person = Person(ElicitResult(action="accept"))
    async with client(on, "--conversation", "build", asks=person) as one:
        assert known(await one.call("write_file", "k1", **WRITES))
    assert (on.workspace / "made").read_text() == "by the call"
    assert len(person.shown) == 1
