"""`shellback mcp` as clients start it: the SDK's own client over standard input and output, and no client of ours."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from mcp import MCPError
from mcp.types import (
    EmptyResult,
    LoggingMessageNotificationParams,
    SetLevelRequest,
    SetLevelRequestParams,
    TextResourceContents,
)

from shellback.exec.core.model import SessionState
from shellback.exec.tools.registry import tools
from shellback.mcp_server import listing
from shellback.mcp_server.server import FAILURE
from shellback.storage.tables import sessions, turns
from tests.clients import client, known, text_of
from tests.commands import OURS, PROGRAM, assert_refused, facts, shellback
from tests.stage import Stage, stage

pytestmark = pytest.mark.anyio

WAITS = "echo nonce >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"


@pytest.fixture
def on() -> Generator[Stage]:
    with stage() as made:
        yield made


async def test_a_client_lists_the_tools_and_its_calls_are_those_of_an_agent(on: Stage) -> None:
    async with client(on, "--tools", ",".join(listing.GROUPS)) as one:
        offered = {tool.name: tool for tool in (await one.session.list_tools()).tools}
        assert {name for name, tool in tools().items() if tool.part not in {"blocks", "shell"}} == offered.keys()
        assert "output, stdout and stderr in order" in (offered["execute"].description or "")
        assert offered["execute"].input_schema["required"] == ["command"]
        schemas = {name: tool.output_schema or {} for name, tool in offered.items()}
        assert all("result" in schema["required"] for schema in schemas.values())
        assert {"session_id", "exit_code", "bytes_dropped"} <= {*schemas["execute"]["required"]}
        hints = {name: tool.annotations for name, tool in offered.items()}
        assert {name for name, hint in hints.items() if hint and hint.read_only_hint} == {
            name for name, tool in tools().items() if name in offered and not tool.asks and not tool.acts
        } - {"process_watch"}
        assert {name for name, hint in hints.items() if hint and hint.destructive_hint} >= {
            "execute",
            "rm",
            "process_kill",
        }
        result = await one.approved("execute", command="echo out; echo err >&2; exit 3")
        assert text_of(result).startswith("out\nerr\n[exit code 3")
        assert (known(result)["exit_code"], known(result)["result"]) == (3, text_of(result))
        session = known(result)["session_id"]
        denied = await one.approved("write_file", order="deny", path="a", content="b")
        assert denied.is_error
        assert "Denied by" in text_of(denied)
        assert denied.structured_content is None, "its facts are not those of the tool's output schema"
        assert (denied.meta or {})[FAILURE]["approval_state"] == "denied"
    assert not (on.workspace / "a").exists()
    (row,) = facts(await asyncio.to_thread(shellback, on, "ps", "--all", "--json"))["sessions"]
    assert row["id"] == session
    assert row["conversation_id"].startswith("mcp.tester.workspace.")
    assert (await asyncio.to_thread(shellback, on, "logs", session)).stdout == "out\nerr\n"
    audit = await asyncio.to_thread(shellback, on, "audit", "-c", row["conversation_id"])
    assert "used" in audit.stdout
    assert_refused(
        await asyncio.to_thread(shellback, on, "send", "-c", row["conversation_id"], "hello"),
        "belongs to an MCP client",
    )


async def test_a_server_that_is_killed_starts_nothing_twice_and_the_next_one_finds_all(on: Stage) -> None:
    on.hire()
    async with client(on, "--conversation", "build") as one:
        first = await one.approved("execute", "k1", command=WAITS, background=True)
        waiting = asyncio.create_task(one.call("execute", "k2", command="echo second >> nonce"))
        (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
        one.kill()
        with pytest.raises(MCPError):
            await waiting
    await asyncio.to_thread(shellback, on, "approvals", "approve", request.id)
    async with client(on, "--conversation", "build") as one:
        again = await one.call("execute", "k1", command=WAITS, background=True)
        assert known(again)["session_id"] == known(first)["session_id"]
        (listed,) = known(await one.call("process_list"))["result"]
        assert (listed["session_id"], listed["state"]) == (known(first)["session_id"], "running")
        second = await one.call("execute", "k2", command="echo second >> nonce")
        assert known(second)["exit_code"] == 0
        (on.workspace / "go").touch()
        over = await one.call("process_wait", session_ids=[known(first)["session_id"]])
        assert known(over)["sessions"][0]["exit_code"] == 0
        polled = await one.call("process_poll", session_id=known(first)["session_id"])
        assert known(polled)["state"] == "exited"
    assert (on.workspace / "nonce").read_text() == "nonce\nsecond\n"
    assert on.scalars(sa.select(turns.c.id)) == [], "the worker beside it ran no turn"
    assert on.callbacks() == []


async def test_a_repeat_after_a_kill_between_claim_and_start_is_what_starts_it(on: Stage) -> None:
    async with client(on, "--conversation", "build") as one:
        on.arm("claim.committed")
        with pytest.raises(MCPError):
            await one.approved("execute", "k1", command="echo nonce >> nonce")
    assert not (on.workspace / "nonce").exists()
    assert on.change(sa.update(sessions).values(created_at=1.0)) == 1
    async with client(on, "--conversation", "build") as one:
        again = await one.call("execute", "k1", command="echo nonce >> nonce")
        assert known(again)["exit_code"] == 0
    assert (on.workspace / "nonce").read_text() == "nonce\n"


async def test_at_sigterm_and_at_the_end_of_its_input_the_server_leaves_and_processes_go_on(on: Stage) -> None:
    for number in (None, signal.SIGTERM):
        (on.workspace / "nonce").unlink(missing_ok=True)
        async with client(on) as one:
            task = asyncio.create_task(one.approved("execute", command=f"{WAITS} # {number}"))
            session = await asyncio.to_thread(on.session, f"# {number}")
            if number is not None:
                one.kill(number)
        with suppress(MCPError):
            await task
        assert "Traceback" not in one.log
        found = on.session(f"# {number}")
        assert (found.id, found.state) == (session.id, SessionState.RUNNING)


async def test_with_the_gate_off_no_tool_is_listed_and_the_instructions_say_why(on: Stage) -> None:
    async with client(on, ENABLE_EXECUTE="false") as one:
        assert (await one.session.list_tools()).tools == []
        said = one.session.instructions
        assert "ENABLE_EXECUTE=true" in (said or "")
        result = await one.call("execute", command="true")
        assert result.is_error
        assert "ENABLE_EXECUTE" in text_of(result)
        (why,) = (await one.session.list_resources()).resources
        (told,) = (await one.session.read_resource(why.uri)).contents
        assert isinstance(told, TextResourceContents)
        assert "ENABLE_EXECUTE=true" in told.text


async def test_bad_input_is_an_error_with_its_cause_and_the_connection_goes_on(on: Stage) -> None:
    async with client(on) as one:
        with pytest.raises(MCPError, match="unknown tool 'no_such'"):
            await one.call("no_such")
        with pytest.raises(MCPError, match="must be a text of 1 to"):
            await one.call("process_list", "k" * 300)
        for result in (
            await one.call("execute", command=7),
            await one.call("execute", command="x" * 1_500_000),
            await one.call("process_poll", session_id="xnobody"),
        ):
            assert result.is_error
            assert "Traceback" not in text_of(result)
        assert known(await one.call("process_list"))["total"] == 0
        assert "Traceback" not in one.log
    async with client(on, DATABASE_URL="postgresql://nobody@127.0.0.1:1/none") as one:
        result = await one.call("process_list")
        assert result.is_error
        assert "no connection to postgresql" in text_of(result)


async def test_a_client_that_has_set_a_level_is_told_of_ends(on: Stage) -> None:
    heard = asyncio.Queue[LoggingMessageNotificationParams]()

    async def hear(params: LoggingMessageNotificationParams) -> None:
        await heard.put(params)

    async with client(on, TRUST_CLASSIFIER="true", hears=hear) as one:
        request = SetLevelRequest(params=SetLevelRequestParams(level="warning"))
        for _ in range(2):  # the second one replaces the first
            await one.session.send_request(request, EmptyResult)
        sessions = [
            known(await one.call("execute", command=command, background=True))["session_id"]
            for command in ("true", "false")
        ]
        await one.call("process_wait", session_ids=sessions, mode="all")
        told = await asyncio.wait_for(heard.get(), 30)
        assert (told.level, told.logger) == ("warning", "shellback")
        assert told.data == {
            "session_id": sessions[1], "state": "exited", "exit_code": 1,
            "next": f"process_log with {sessions[1]} shows its output",
        }  # fmt: skip
        assert heard.empty()
        assert "Traceback" not in one.log


def test_without_a_client_and_with_wrong_options_it_says_so(on: Stage) -> None:
    assert_refused(shellback(on, "mcp", "--tools", "exec,other"), "no group 'other'")
    done = subprocess.run(
        [*PROGRAM, "mcp"],
        env={**OURS, **on.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "an MCP client starts this command" in done.stderr


def test_nothing_but_the_protocol_is_on_standard_output(on: Stage) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    pipe, environ = subprocess.PIPE, {**OURS, **on.environ, "LOG_LEVEL": "DEBUG"}
    with (
        (on.root / "said").open("w") as said,
        subprocess.Popen(
            [*PROGRAM, "mcp"], env=environ, cwd=on.root, text=True, stdin=pipe, stdout=pipe, stderr=said
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        messages: list[dict[str, Any]] = [
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/list"},
            {"id": 3, "method": "tools/call", "params": {"name": "process_list", "arguments": {}}},
        ]
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.write("this is no JSON\n")
        process.stdin.flush()
        assert sorted(json.loads(process.stdout.readline())["id"] for _ in range(3)) == [1, 2, 3]
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(30) == 0


def test_the_next_start_gives_the_same_answers_once_before_the_sdk_is_loaded(on: Stage) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    pipe, environ = subprocess.PIPE, {**OURS, **on.environ}
    told = list[list[Any]]()
    for number in range(2):
        with subprocess.Popen(
            [*PROGRAM, "mcp"], env=environ, cwd=on.root, text=True, stdin=pipe, stdout=pipe
        ) as process:
            assert process.stdin
            assert process.stdout
            requests: list[dict[str, Any]] = [
                {"id": f"a{number}", "method": "initialize", "params": hello},
                {"id": f"b{number}", "method": "tools/list"},
            ]
            for request in requests:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
            process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for _ in requests]
            assert [answer["id"] for answer in answers] == [f"a{number}", f"b{number}"]
            told.append([answer["result"] for answer in answers])
            call: dict[str, Any] = {
                "id": "c",
                "method": "tools/call",
                "params": {"name": "process_list", "arguments": {}},
            }
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **call}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == "c", "what the SDK answers later is not sent"
            process.stdin.close()
            assert process.wait(30) == 0
    assert told[0] == told[1]
