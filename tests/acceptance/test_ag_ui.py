"""`@ag-ui/client` as it is, at `shellback serve`: a conversation with approvals, over the kill of a worker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from shellback.storage.tables import mailbox, turns
from shellback.work.approvals import approvals
from tests import nodes
from tests.commands import PATIENCE_S
from tests.documents import ROOT, blocks
from tests.serving import served, token, web
from tests.stage import Stage, stage

WAITS = "echo once >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"
ADDRESS = "http://127.0.0.1:8765"
CALLS = "\n".join(f'!process_log {{"session_id": "none{number}"}}' for number in range(6))


class Client:
    """The program of the client; it is there until the end of the block."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def begin(self, **run: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(run) + "\n")
        self.process.stdin.flush()

    def run(self, **run: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The events of a run, and what the client has at its end."""
        self.begin(**run)
        return self.rest()

    def rest(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        assert self.process.stdout is not None
        events: list[dict[str, Any]] = []
        for line in self.process.stdout:
            fact = json.loads(line)
            if "ended" in fact:
                return events, fact
            events.append(fact)
        raise AssertionError("the client has ended")


@contextmanager
def client(url: str, secret: str) -> Generator[Client]:
    node, library = nodes.command(nodes.AG_UI)
    program = str(ROOT / "tests/programs/ag_ui_client.mjs")
    process = subprocess.Popen(
        [node, program, library, f"{url}/v1/ag-ui", "talk"],
        env={"PATH": os.environ["PATH"], "SHELLBACK_TOKEN": secret}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Client(process)
    finally:
        process.kill()
        print(*process.communicate(timeout=PATIENCE_S))


@pytest.fixture
def loop() -> Generator[Stage]:
    with stage() as made:
        yield made


@pytest.fixture
def either(database_url: str) -> Generator[Stage]:
    with stage(database_url) as made:
        yield made


def texts(messages: list[dict[str, Any]], role: str) -> list[str]:
    return [one["content"] for one in messages if one["role"] == role and one.get("content")]


def answered(interrupt: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]


def test_a_client_finishes_an_approval_over_the_kill_of_workers_and_the_command_runs_once(either: Stage) -> None:
    worker = either.hire()
    with served(either) as server, client(server.base, token(either, "web", "--api", "-c", "talk")) as agent:
        events, had = agent.run(say=f"$ {WAITS}")
        assert had["ended"] is None
        assert [event["outcome"]["type"] for event in events[-1:]] == ["interrupt"]
        (interrupt,) = had["interrupts"]
        assert WAITS in interrupt["message"]
        worker.kill()
        agent.begin(resume=answered(interrupt))
        worker = either.hire()
        either.session(WAITS)
        worker.kill()
        either.hire()
        (either.workspace / "go").touch()
        events, had = agent.rest()
    assert had["ended"] is None
    assert events[-1]["outcome"] == {"type": "success"}
    assert had["interrupts"] == []
    assert (either.workspace / "nonce").read_text() == "once\n"
    assert [one["role"] for one in had["messages"]] == ["user", "assistant", "tool", "assistant"]
    (result,) = texts(had["messages"], "tool")
    assert "over\n[exit code 0" in result
    assert "exit code 0" in texts(had["messages"], "assistant")[-1]
    (request,) = either.read(approvals.find)
    assert (request.state, request.decided_by, request.surface) == ("used", "token:web", "client")


def test_a_client_whose_server_is_killed_goes_on_in_the_same_run_with_what_it_has(loop: Stage) -> None:
    loop.hire(OFFLINE_SECONDS="0.2")
    with served(loop) as first, client(first.base, token(loop, "web", "--api", "-c", "talk")) as agent:
        agent.begin(runId="run-1", say=CALLS)
        assert agent.process.stdout is not None
        while json.loads(agent.process.stdout.readline())["type"] != "TOOL_CALL_RESULT":
            pass
        first.process.kill()
        first.process.wait(PATIENCE_S)
        _, had = agent.rest()
        assert had["ended"] is not None
        with served(loop, port=int(first.base.rpartition(":")[2])):
            events, had = agent.run(runId="run-1")
        assert had["ended"] is None
        assert events[-1]["outcome"] == {"type": "success"}
        assert len(texts(had["messages"], "tool")) == 6
        (answer,) = texts(had["messages"], "assistant")
        whole = loop.scalars(sa.select(turns.c.answer))
        assert whole == [answer], "one turn, and its text is there once"


def test_the_example_of_the_documents_runs(loop: Stage) -> None:
    loop.hire()
    node, library = nodes.command(nodes.AG_UI)
    (example,) = (block.text for block in blocks(ROOT / "docs/client.md") if block.language == "js")
    with served(loop) as server:
        program = loop.root / "example.mjs"
        program.write_text(example.replace('"@ag-ui/client"', f'"{library}"').replace(ADDRESS, server.base))
        environ = {"PATH": os.environ["PATH"], "SHELLBACK_TOKEN": token(loop, "web", "--api", "-c", "build")}
        done = subprocess.run(
            [node, program], env=environ, check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert "command: echo built; exit 3" in done.stdout
    assert "exit code 3" in done.stdout


def test_a_call_that_a_client_denies_does_not_run_and_its_agent_is_told_why(loop: Stage) -> None:
    loop.hire()
    with served(loop) as server, client(server.base, token(loop, "web", "--api", "-c", "talk")) as agent:
        _, had = agent.run(say="$ echo once >> nonce")
        (interrupt,) = had["interrupts"]
        no = {"status": "resolved", "payload": {"approved": False, "reason": "not today"}}
        events, had = agent.run(resume=[{"interruptId": interrupt["id"], **no}])
    assert had["ended"] is None
    assert events[-1]["outcome"] == {"type": "success"}
    assert "not today" in texts(had["messages"], "tool")[0]
    assert not (loop.workspace / "nonce").exists()


def test_what_a_server_refuses_an_ag_ui_client_is_told(loop: Stage) -> None:
    async def ask(base: str, secret: str, **asked: Any) -> httpx2.Response:
        given = {
            "threadId": "talk",
            "runId": "r1",
            "messages": [{"id": "m1", "role": "user", "content": "hi"}],
            **asked,
        }
        async with web(secret) as http:
            return await http.post(f"{base}/v1/ag-ui", json=given)

    with served(loop) as server:
        web_token, mcp_token = token(loop, "web", "--api", "-c", "talk"), token(loop, "other", "-c", "talk")
        with client(server.base, mcp_token) as agent:
            _, had = agent.run(say="hi")
            assert "HTTP 403" in had["ended"]
            assert "not for /v1" in had["ended"]
        with client(server.base, web_token) as agent:
            _, had = agent.run()
            assert "HTTP 400" in had["ended"]
            assert "neither ends with a message of the user" in had["ended"]
        foreign = asyncio.run(ask(server.base, web_token, threadId="secret"))
        assert foreign.status_code == 404
        long = [{"id": "m1", "role": "user", "content": "x" * 2_000_000}]
        assert asyncio.run(ask(server.base, web_token, messages=long)).status_code == 413
        assert "Traceback" not in server.log
    assert loop.scalars(sa.select(mailbox.c.id)) == []
