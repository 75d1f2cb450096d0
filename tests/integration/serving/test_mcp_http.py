"""MCP over HTTP: the SDK's own client in its versions, and programs of ours as a user starts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import MCPError

from shellback.exec.core.model import SessionState
from shellback.mcp_server.http import ENDPOINTS
from shellback.serving.application import Limits
from tests.commands import assert_refused, facts, shellback
from tests.serving import KEY, Caller, Served, connected, known, served, token, web
from tests.stage import Stage, stage, staged

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28"]

on = staged()


@pytest.fixture(scope="module")
def server(on: Stage) -> Generator[Served]:
    with served(on) as made:
        yield made


def waits(name: str) -> str:
    """A command that runs until there is a file of this name."""
    return f"until [ -e {name} ]; do sleep 0.02; done; echo over"


@asynccontextmanager
async def lossy(*given: Any) -> AsyncGenerator[Caller]:
    """As `connected`, to a server that goes: of a lost answer the client makes an error, or ends with it."""
    with contextlib.suppress(ExceptionGroup):
        async with connected(*given) as one:
            yield one


async def approved(caller: Caller, key: str = "", **args: Any) -> Any:
    """The result of `execute`, which a person approves on the command line."""
    task = asyncio.create_task(caller.call("execute", key, **args))
    (request,) = await asyncio.to_thread(caller.on.until, "a request", caller.on.requests)
    done = await asyncio.to_thread(shellback, caller.on, "approvals", "approve", request.id)
    assert done.returncode == 0, done.stderr
    return await task


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_lists_and_calls_the_tools_and_waits_for_a_person(on: Stage, server: Served, mode: str) -> None:
    secret = token(on, f"one-{mode}")
    async with connected(on, server.url, secret, mode) as one:
        offered = {tool.name for tool in (await one.client.list_tools()).tools}
        assert {"execute", "process_poll", "read_file"} <= offered
        assert "process_watch" not in offered
        result = known(await approved(one, command=f"echo {mode}; exit 3"))
        assert (result["exit_code"], result["result"].splitlines()[0]) == (3, mode)
    (row,) = facts(shellback(on, "ps", "--all", "--json", "-c", f"one-{mode}"))["sessions"]
    assert row["id"] == result["session_id"]
    assert secret not in server.log


async def test_clients_with_two_tokens_do_not_see_each_others_processes(on: Stage, server: Served) -> None:
    async with (
        connected(on, server.url, token(on, "mine")) as mine,
        connected(on, server.url, token(on, "theirs"), "legacy") as theirs,
    ):
        started = known(await approved(mine, command=waits("go-mine"), background=True))
        assert known(await mine.call("process_list"))["total"] == 1
        assert known(await theirs.call("process_list"))["total"] == 0
        for tool in ("process_poll", "process_kill", "process_log"):
            refused = await theirs.call(tool, session_id=started["session_id"])
            assert refused.is_error
        assert known(await mine.call("process_poll", session_id=started["session_id"]))["state"] == "running"


async def test_a_token_is_for_its_conversations_and_tools_only(on: Stage, server: Served) -> None:
    two = token(on, "two", "--conversation", "left", "--conversation", "right", "--tools", "process")
    for query, status in (("", 400), ("?conversation=other", 403)):
        async with web(two) as http:
            refused = await http.post(f"{server.url}{query}", json={})
            assert refused.status_code == status
            assert "left" in refused.json()["remedy"]
    async with connected(on, f"{server.url}?conversation=right", two) as one:
        assert {tool.name for tool in (await one.client.list_tools()).tools} >= {"process_list"}
        assert known(await one.call("process_list"))["total"] == 0
        with pytest.raises(MCPError, match="unknown tool 'execute'"):
            await one.call("execute", command="true")
    on.send("hello", "agents")
    async with connected(on, f"{server.url}?conversation=agents", token(on, "all", "--all-conversations")) as one:
        refusal = await one.call("process_list")
        assert refusal.is_error
        assert "belongs to an agent" in str(refusal.content)


async def test_no_token_both_asks_for_a_call_and_decides_about_it(on: Stage, server: Served) -> None:
    asks, decides = token(on, "asks"), token(on, "decides", "--api", "--conversation", "asks")
    # Before there is a conversation: a first message would begin one that an agent drives.
    paths = ["conversations/asks/messages", "approvals/x/approve", "approvals/x/deny", "sessions/x/input"]
    async with web(asks) as http:
        for path in (*paths, "sessions/x/kill"):
            refused = await http.post(f"{server.base}/v1/{path}", json={"text": "hi"})
            assert (refused.status_code, "--api" in refused.json()["remedy"]) == (403, True)
        for path in ("approvals", "sessions", "conversations/asks/events", "openapi.json"):
            assert (await http.get(f"{server.base}/v1/{path}")).status_code == 403
    async with web(decides) as http:
        assert (await http.get(f"{server.base}/v1/approvals")).status_code == 200
        refused = await http.post(server.url, json={})
        assert (refused.status_code, "without --api" in refused.json()["remedy"]) == (403, True)
    listed = json.loads(shellback(on, "tokens", "list", "--json").stdout)
    kinds = {one["name"]: one["kind"] for one in listed}
    assert (kinds["asks"], kinds["decides"]) == ("mcp", "api")
    assert_refused(shellback(on, "tokens", "add", "x", "-c", "x", "--api", "--tools", "exec"), "omit it with --api")


@pytest.fixture(params=["sqlite_url", "postgres_url"])
def alone(request: pytest.FixtureRequest) -> Generator[Stage]:
    with stage(request.getfixturevalue(request.param)) as made:
        yield made


async def test_the_server_is_killed_and_the_repeat_of_a_call_finds_its_process(alone: Stage) -> None:
    on, mode = alone, MODES[alone.where.database.dialect == "postgresql"]
    name = f"killed-{mode}"
    secret = token(on, name)
    with served(on) as server:
        async with lossy(on, server.url, secret, mode) as one:
            first = known(await approved(one, "k1", command=waits(name), background=True))
            waiting = asyncio.create_task(one.call("execute", "k2", command=f"echo {mode} >> second"))
            (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
            server.end(signal.SIGKILL)
            await asyncio.gather(waiting, return_exceptions=True)
        assert (await asyncio.to_thread(shellback, on, "approvals", "approve", request.id)).returncode == 0
        port = int(urlsplit(server.base).port or 0)
    with served(on, port=port) as server:
        async with connected(on, server.url, secret, mode) as one:
            again = known(await one.call("execute", "k1", command=waits(name), background=True))
            assert again["session_id"] == first["session_id"]
            assert known(await one.call("execute", "k2", command=f"echo {mode} >> second"))["exit_code"] == 0
            (on.workspace / name).touch()
            over = known(await one.call("process_wait", session_ids=[first["session_id"]]))
            assert over["sessions"][0]["exit_code"] == 0
    assert (on.workspace / "second").read_text().count(mode) == 1


def message(method: str, number: int | None = None, **params: Any) -> dict[str, Any]:
    numbered = {} if number is None else {"id": number}
    return {"jsonrpc": "2.0", "method": method, "params": params, **numbered}


@asynccontextmanager
async def raw(server: Served, secret: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """What sends requests in a session of an older protocol, and has nothing open between them."""
    form = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    async with web(secret, **form) as http:
        first = await http.post(server.url, json=message("initialize", 0, **hello))
        http.headers["mcp-session-id"] = first.headers["mcp-session-id"]
        await http.post(server.url, json=message("notifications/initialized"))
        yield http


async def test_calls_whose_requests_are_gone_count_for_their_token_and_no_other_one(on: Stage, server: Served) -> None:
    most = Limits().calls

    async def leave(http: httpx2.AsyncClient, number: int) -> None:
        call = message("tools/call", number, name="execute", arguments={"command": "echo flood >> flood"})
        async with http.stream("POST", server.url, json=call) as answer:
            assert answer.status_code == 200

    async with raw(server, token(on, "flood")) as http, raw(server, token(on, "dry")) as other:
        for first in range(0, most, 32):
            await asyncio.gather(*(leave(http, number) for number in range(first, first + 32)))
        look = message("tools/call", most, name="process_list", arguments={})
        assert f"{most} calls with this token are being carried out" in (await http.post(server.url, json=look)).text
        assert '"isError":true' not in (await other.post(server.url, json=look)).text.replace(" ", "")
    await asyncio.to_thread(shellback, on, "stop", "flood")


async def test_a_token_for_all_conversations_ends_no_session_of_another_one(on: Stage, server: Served) -> None:
    async with raw(server, token(on, "quiet")) as http, web(token(on, "wide", "--all-conversations")) as wide:
        for name in range(ENDPOINTS + 1):
            await wide.post(f"{server.url}?conversation=w{name}", json={})
        assert (await wide.post(f"{server.url}?conversation=%00", json={})).status_code == 400
        assert (await http.post(server.url, json=message("tools/list", 1))).status_code == 200


async def test_the_repeat_of_a_request_of_a_session_finds_the_process_of_the_first(on: Stage, server: Served) -> None:
    async with raw(server, token(on, "lossy")) as http:
        call = message("tools/call", 1, name="execute", arguments={"command": "echo lossy >> lossy"})
        lost = asyncio.create_task(http.post(server.url, json=call))
        (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        repeated = asyncio.create_task(http.post(server.url, json=call))
        await asyncio.to_thread(shellback, on, "approvals", "approve", request.id)
        text = (await repeated).text
        assert '"exit_code":0' in text.replace(" ", "")
        assert '"exit_code":0' in (await http.post(server.url, json=call)).text.replace(" ", "")
        foreign = await http.post(server.url, json=call, headers={"authorization": f"Bearer {token(on, 'thief')}"})
        assert foreign.status_code == 404
    assert (on.workspace / "lossy").read_text() == "lossy\n"


async def test_a_revoked_token_ends_the_stream_of_its_session_and_its_calls_and_no_process(
    on: Stage, server: Served
) -> None:
    secret = token(on, "lost")
    async with connected(on, server.url, secret, "legacy") as one:
        started = known(await approved(one, command=waits("go-lost"), background=True))
        waiting = asyncio.create_task(one.call("process_wait", session_ids=[started["session_id"]]))
        other = asyncio.create_task(one.call("execute", command="true"))
        await asyncio.to_thread(on.until, "a request", on.requests)
        assert facts(await asyncio.to_thread(shellback, on, "tokens", "revoke", "lost", "--json"))["state"] == "revoked"
        for call in (waiting, other):
            with pytest.raises((MCPError, httpx2.HTTPError)):
                await call
    async with web(secret) as http:
        assert (await http.post(server.url, json={})).status_code == 401
    found = {one.id: one.state for one in on.sessions()}
    assert found[started["session_id"]] is SessionState.RUNNING
    await asyncio.to_thread(shellback, on, "stop", "lost")
    assert "Traceback" not in server.log


@pytest.mark.parametrize("mode", MODES)
async def test_two_hundred_calls_at_once_are_answered(on: Stage, server: Served, mode: str) -> None:
    async with connected(on, server.url, token(on, f"busy-{mode}"), mode) as one:
        answers = await asyncio.gather(*(one.call("process_list") for _ in range(200)))
    assert {known(answer)["total"] for answer in answers} == {0}


async def test_fifty_connections_are_served(on: Stage, server: Served) -> None:
    secret = token(on, "many")

    async def once() -> int:
        async with connected(on, server.url, secret, "legacy") as one:
            return int(known(await one.call("process_list"))["total"])

    assert await asyncio.gather(*(once() for _ in range(50))) == [0] * 50


async def test_bad_input_is_an_error_with_its_cause_and_the_server_goes_on(on: Stage, server: Served) -> None:
    secret = token(on, "bad")
    async with connected(on, server.url, secret) as one:
        with pytest.raises(MCPError, match="unknown tool 'no_such'"):
            await one.call("no_such")
        with pytest.raises(MCPError, match="must be a text of 1 to"):
            await one.client.call_tool("process_list", {}, meta={KEY: "k" * 300})
        refused = await one.call("execute", command="x" * 1_100_000)
        assert "longer than 1 MiB" in str(refused.content)
    async with web(secret, accept="application/json, text/event-stream") as http:
        assert (await http.post(server.url, content=b"x" * 2_000_000)).status_code == 413
        assert (await http.post(server.url, content=b"{", headers={"content-type": "application/json"})).is_error
        assert (await http.post(server.url, json={}, headers={"host": "evil.example"})).status_code == 421
    assert "Traceback" not in server.log


async def test_at_sigterm_the_server_leaves_and_processes_go_on(on: Stage) -> None:
    secret = token(on, "leaving")
    with served(on, LOG_FORMAT="json") as server:
        async with connected(on, server.url, secret, "legacy") as one:
            started = known(await approved(one, command=waits("go-leaving"), background=True))
            waiting = asyncio.create_task(one.call("execute", command="true"))
            await asyncio.to_thread(on.until, "a request", on.requests)
            assert await asyncio.to_thread(server.end) == 0
            with pytest.raises((MCPError, httpx2.HTTPError)):
                await waiting
        levels = {json.loads(line)["level"] for line in server.lines if not line.startswith("ready ")}
        assert levels <= {"WARNING"}, server.log
    assert {one.id: one.state for one in on.sessions()}[started["session_id"]] is SessionState.RUNNING
    await asyncio.to_thread(shellback, on, "stop", "leaving")


def test_an_address_in_the_clear_a_missing_certificate_and_a_wrong_duration_are_refused(on: Stage) -> None:
    assert_refused(shellback(on, "serve", "--host", "0.0.0.0"), "send their tokens in the clear")
    assert_refused(shellback(on, "serve", "--host", "0.0.0.0", "--behind-proxy"), "give --name HOST")
    assert_refused(shellback(on, "serve", "--tls-cert", "/etc/hostname"), "belong together")
    key = ("--tls-cert", "/etc/hostname", "--tls-key", "/etc/hostname")
    assert_refused(shellback(on, "serve", *key), "the certificate or its key cannot be used")
    assert_refused(shellback(on, "tokens", "add", "x", "-c", "x", "--expires", "soon"), "no duration")
    assert_refused(shellback(on, "tokens", "add", "x"), "--all-conversations")
    assert_refused(shellback(on, "tokens", "revoke", "nobody"), "no token in force")
