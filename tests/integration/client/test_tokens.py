"""What a token allows over HTTP, by who makes the calls of its conversation; and how far a reader reads ahead."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.client import following
from shellback.client.caller import Caller
from shellback.client.local import SHARE, THREADS, Local
from shellback.client.operations import OPERATIONS, Asking
from shellback.mcp_server import requests
from shellback.storage import sessions
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import Proposed
from shellback.work.errors import ServerRefused
from shellback.work.notices.notices import Outbox
from shellback.work.queue import mailbox, stream
from tests.sessions import a_session
from tests.stage import Stage, staged

pytestmark = pytest.mark.anyio
place = staged()
TOKEN = Caller(by="token:laptop", conversations=("tools", "talk"), token=True)
CALL = Proposed(
    call_key="k", tool_call_id="1", tool_name="execute", args={"command": "true"}, display={"command": "true"},
    digest="0" * 64,
)  # fmt: skip


@pytest.fixture
async def local(place: Stage) -> AsyncGenerator[Local]:
    made = Local(lambda: contextlib.nullcontext(place.where))
    yield made
    await made.close()


def asked(place: Stage, conversation: str) -> Request:
    turn = f"{mailbox.CONNECTION}1"
    return place.write(requests.asked, conversation, turn, CALL, ttl_s=600, outbox=Outbox(on=False), limit=20)


async def test_a_token_allows_nothing_in_the_conversation_of_an_mcp_client_that_may_hold_it(
    place: Stage, local: Local
) -> None:
    place.write(requests.opened, "tools", place.where.host_id)
    request = asked(place, "tools")
    session = a_session(conversation_id="tools", turn_id=request.turn_id, host_id=place.where.host_id)
    place.write(sessions.claim, session)
    for name, given in {
        "approve": {"id": request.id},
        "write": {"id": session.id, "data": "x"},
        "kill": {"id": session.id},
    }.items():
        with pytest.raises(ServerRefused, match="shellback approvals"):
            await local.ask(name, given, TOKEN)
    assert (await local.ask("approval", {"id": request.id}, TOKEN)).state == "pending"
    # A person on the host may.
    assert (await local.ask("approve", {"id": request.id}, Caller(by="ada"))).state == "approved"


async def test_slow_writes_of_one_token_hold_back_no_write_of_another(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Semaphore(0), threading.Event()
    loop = asyncio.get_running_loop()

    def write(at: Asking, *, id: str, data: str) -> str:
        if at.caller.by == TOKEN.by:
            loop.call_soon_threadsafe(begun.release)
            go_on.wait(30)
        return f"{id} {data}"

    monkeypatch.setitem(OPERATIONS, "write", replace(OPERATIONS["write"], function=write))
    given = {"id": "x1", "data": "y"}
    slow = [asyncio.create_task(local.ask("write", given, TOKEN)) for _ in range(3 * THREADS)]
    try:
        async with asyncio.timeout(30):
            for _ in range(SHARE):
                await begun.acquire()
        # A client that gives up and asks again has no more threads by that.
        for one in slow[:SHARE]:
            one.cancel()
        await asyncio.gather(*slow[:SHARE], return_exceptions=True)
        async with asyncio.timeout(10):
            for _ in range(2):
                assert await local.ask("write", given, Caller(by="token:other", token=True)) == "x1 y"
    finally:
        go_on.set()
    assert await asyncio.gather(*slow[SHARE:]) == ["x1 y"] * (3 * THREADS - SHARE)


async def test_a_reader_that_does_not_read_on_has_one_page_read_for_it(
    place: Stage, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE", 3)
    looks: list[int] = []
    after = stream.after

    def counted(conn: sa.Connection, *args: Any, **more: Any) -> Any:
        looks.append(1)
        return after(conn, *args, **more)

    monkeypatch.setattr(stream, "after", counted)

    def many(conn: sa.Connection) -> None:
        mailbox.open_conversation(conn, "talk", host_id=place.where.host_id)
        for number in range(20):
            stream.note(conn, "talk", "t1", 1, "tool_call", {"tool": str(number), "args": {}})

    place.write(many)
    events = local.events("talk", "0", (), TOKEN, follow=True)
    assert (await anext(events)) is not None
    assert len(looks) == 1
    rest = [event async for event in local.events("talk", "0", (), TOKEN, follow=False)]
    assert len(rest) == 20
    await events.aclose()
