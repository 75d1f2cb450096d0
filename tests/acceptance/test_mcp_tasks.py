"""Tasks of the protocol 2026-07-28 on the wire: `shellback mcp` as a client starts it, killed where it hurts."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Literal

import pytest
from mcp import Client as SdkClient
from mcp import StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Implementation, Request, RequestParams, Result

from tests.commands import OURS, PROGRAM, shellback
from tests.stage import Stage, stage
from tests.wire import TASKS, VERSION, WireError, wire

pytestmark = pytest.mark.anyio

WAITS = "echo nonce >> nonce; until [ -e go ]; do sleep 0.02; done; echo over"


@pytest.fixture
def on() -> Generator[Stage]:
    with stage() as made:
        yield made


async def decided(on: Stage, order: str = "approve") -> None:
    (request,) = await asyncio.to_thread(on.until, "a request", on.requests)
    done = await asyncio.to_thread(shellback, on, "approvals", order, request.id)
    assert done.returncode == 0, done.stderr


async def test_a_long_call_of_a_client_that_knows_tasks_is_one_and_of_another_is_not(on: Stage) -> None:
    async with wire(on, "--task-after", "0.1") as one:
        assert TASKS in (await one.ask("server/discover"))["capabilities"]["extensions"]
        made = await one.call("execute", command=WAITS)
        assert (made["resultType"], made["status"], made["ttlMs"]) == ("task", "working", 30 * 86_400_000)
        assert "approvals approve" in (await one.task(made["taskId"]))["statusMessage"]
        await decided(on)
        await asyncio.to_thread(on.session, "nonce")
        now = await one.task(made["taskId"])
        assert (now["resultType"], now["status"]) == ("complete", "working")
        assert await one.ask("tasks/update", {"taskId": made["taskId"], "inputResponses": {"no": {}}}) == {
            "resultType": "complete",
            "_meta": {
                **now["_meta"],
                "shellback/told": "[MCP_ELICITATION is off here: answers of clients count for nothing.]",
            },
        }  # fmt: skip
        end = asyncio.create_task(one.ended(made["taskId"]))
        (on.workspace / "go").touch()
        told = await end
        assert told["result"]["structuredContent"]["exit_code"] == 0
        assert told["result"]["content"][0]["text"].startswith("over\n[exit code 0")
        done = await one.task(made["taskId"])
        assert {name: value for name, value in done.items() if name not in {"_meta", "resultType"}} == told
        plain = one.call("execute", extension=False, command="sleep 1; echo plain")
        await decided(on)
        assert (await plain)["resultType"] == "complete"
        for method in ("get", "update", "cancel"):
            with pytest.raises(WireError) as found:
                await one.ask(f"tasks/{method}", {"taskId": made["taskId"], "inputResponses": {}}, extension=False)
            assert found.value.code == -32021
            assert found.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            with pytest.raises(WireError, match="no task 'xnobody'") as found:
                await one.ask(f"tasks/{method}", {"taskId": "xnobody", "inputResponses": {}})
            assert found.value.code == -32602
        with pytest.raises(WireError) as found:
            await one.ask("subscriptions/listen", {"notifications": {"taskIds": ["x"]}}, extension=False)
        assert found.value.code == -32021
        for method in ("list", "result"):
            with pytest.raises(WireError) as found:
                await one.ask(f"tasks/{method}", {"taskId": "x"})
            assert found.value.code == -32601


@pytest.mark.parametrize("point", ["task.made", "task.finishing", "after"])
async def test_a_server_that_is_killed_answers_for_its_tasks_as_if_nothing_had_happened(
    on: Stage, point: Literal["task.made", "task.finishing", "after"]
) -> None:
    made, before = dict[str, Any](), dict[str, Any]()
    async with wire(on, "--task-after", "0.5") as one:
        if point == "task.made":
            on.arm(point)
            with pytest.raises(EOFError):
                await one.call("execute", "k1", command=WAITS)
        else:
            made = await one.call("execute", "k1", command=WAITS)
            await decided(on)
            await asyncio.to_thread(on.session, "nonce")
            if point == "task.finishing":
                on.arm(point)
            (on.workspace / "go").touch()
            if point == "after":
                before = await one.ended(made["taskId"])
            else:
                await asyncio.to_thread(on.until, "a kill", lambda: on.fired(point))
    async with wire(on, "--task-after", "0.5") as one:
        if point == "task.made":
            made = await one.call("execute", "k1", command=WAITS)  # the client has no answer, so it repeats
            await decided(on)
            (on.workspace / "go").touch()
        after = await one.ended(made["taskId"])
        assert after["status"] == "completed"
        assert after["result"]["structuredContent"]["exit_code"] == 0
        assert after["result"]["content"][0]["text"].startswith("over\n[exit code 0")
        if point == "after":
            assert after == before
    assert (on.workspace / "nonce").read_text() == "nonce\n"


async def test_a_call_that_waits_for_a_person_is_a_task_over_a_kill_and_a_cancelled_one_never_runs(on: Stage) -> None:
    async with wire(on, "--task-after", "0") as one:
        first = await one.call("execute", command="echo first >> nonce")
        await asyncio.to_thread(on.until, "a request", on.requests)
        second = await one.call("execute", command="echo second >> nonce")
        requests = await asyncio.to_thread(
            on.until, "requests", lambda: found if len(found := on.requests()) == 2 else []
        )
        on.arm("task.cancelled")
        with pytest.raises(EOFError):
            await one.ask("tasks/cancel", {"taskId": second["taskId"]})
    for request in requests:
        done = await asyncio.to_thread(shellback, on, "approvals", "approve", request.id)
        assert done.returncode == 0, done.stderr
    async with wire(on) as one:
        ended = await one.ended(first["taskId"])
        assert ended["result"]["structuredContent"]["exit_code"] == 0
        assert (await one.task(second["taskId"]))["status"] == "cancelled"
    assert (on.workspace / "nonce").read_text() == "first\n"


async def test_while_a_call_waits_its_client_hears_the_last_line_and_listens_to_its_log(on: Stage) -> None:
    async with wire(on) as one:
        token = {"_meta": {"progressToken": "p"}}
        call = {"name": "execute", "arguments": {"command": "printf 'one\\ntwo\\n'; " + WAITS}}
        waiting = one.ask("tools/call", {**call, **token}, extension=False)
        await decided(on)
        session = await asyncio.to_thread(on.session, "nonce")
        async with asyncio.timeout(30):
            while not (heard := [told["params"] for told in one.told if "message" in told["params"]]):
                await one.arrived()
        assert (heard[0]["progressToken"], heard[0]["message"]) == ("p", "two")
        uri = f"shellback://sessions/{session.id}/log"
        assert [found["uri"] for found in (await one.ask("resources/list"))["resources"]] == [uri]
        assert (await one.ask("resources/read", {"uri": uri}))["contents"][0]["text"] == "one\ntwo\n"
        stream = one.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": [uri, "x://y"]}})
        async with asyncio.timeout(30):
            while not (accepted := [told for told in one.told if told["method"].endswith("/acknowledged")]):
                await one.arrived()
        assert accepted[0]["params"]["notifications"] == {"resourceSubscriptions": [uri]}
        (on.workspace / "go").touch()
        assert (await waiting)["structuredContent"]["exit_code"] == 0
        await stream
        assert {told["params"]["uri"] for told in one.told if told["method"] == "notifications/resources/updated"} == {
            uri
        }
        assert (await one.ask("resources/read", {"uri": uri}))["contents"][0]["text"] == "one\ntwo\nover\n"
        kinds = {found["name"] for found in (await one.ask("resources/templates/list"))["resourceTemplates"]}
        assert kinds == {"log", "screen"}
        for unknown in ("shellback://sessions/xnobody/log", "shellback://else", "file:///etc/passwd"):
            with pytest.raises(WireError) as found:
                await one.ask("resources/read", {"uri": unknown})
            assert found.value.code == -32602


async def test_a_request_that_names_a_level_is_told_of_ends_on_its_own_stream(on: Stage) -> None:
    on.environ["TRUST_CLASSIFIER"] = "true"
    async with wire(on, "--task-after", "10") as one:
        level = {"_meta": {"io.modelcontextprotocol/logLevel": "info"}}
        stream = one.ask("subscriptions/listen", {"notifications": {}, **level})
        await one.arrived()
        made = await one.call("execute", command="true", background=True)
        session = made["structuredContent"]["session_id"]
        await one.call("process_wait", session_ids=[session])
        (told,) = [message for message in one.told if message["method"] == "notifications/message"]
        assert (told["params"]["level"], told["params"]["data"]["session_id"]) == ("info", session)
        assert not stream.done()
        await one.close()
        with pytest.raises(EOFError):
            await stream


async def test_a_task_that_waits_asks_a_client_that_can_ask_its_user(on: Stage) -> None:
    capabilities: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {}}
    can: dict[str, Any] = {"_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}}
    on.environ["MCP_ELICITATION"] = "on"
    async with wire(on, "--task-after", "0") as one:
        call = {"name": "write_file", "arguments": {"path": "made", "content": "x"}}
        made = await one.ask("tools/call", {**call, **can})
        await asyncio.to_thread(on.until, "a request", on.requests)
        assert (await one.task(made["taskId"]))["status"] == "working", "this request declares no elicitation"
        asking = await one.ask("tasks/get", {"taskId": made["taskId"], **can})
        assert asking["status"] == "input_required"
        ((key, request),) = asking["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert "    digest: " in request["params"]["message"]
        answer: dict[str, Any] = {"taskId": made["taskId"], "inputResponses": {key: {"action": "accept"}}}
        nonsenses: list[Any] = [{"action": "perhaps"}, {}, [], "accept", None]
        for nonsense in nonsenses:
            told = await one.ask("tasks/update", {**answer, "inputResponses": {key: nonsense}})
            assert "it is no answer" in told["_meta"]["shellback/told"]
        assert "shellback/told" not in (await one.ask("tasks/update", answer))["_meta"]
        assert not (await one.ended(made["taskId"]))["result"]["isError"]
        again = await one.ask("tasks/update", answer)
        assert "already by mcp:wire" in again["_meta"]["shellback/told"]
    assert (on.workspace / "made").read_text() == "x"


class Made(Result):
    """The answer to a call that is a task."""

    result_type: Literal["task"] = "task"
    task_id: str


class Known(Result):
    """What `tasks/get` answers."""

    status: str
    result: CallToolResult | None = None


class OfTask(RequestParams):
    """The parameters of `tasks/get`."""

    task_id: str


class Finishing(ClientExtension):
    """Asks for the result of a task until there is one."""

    identifier = TASKS

    def claims(self) -> list[ResultClaim[Any]]:
        """The one more shape that a call may be answered with."""
        return [ResultClaim(result_type="task", model=Made, resolve=self.resolve)]

    async def resolve(self, made: Made, ctx: ClaimContext) -> CallToolResult:
        """Ask until it has ended."""
        while True:
            request = Request[OfTask, str](method="tasks/get", params=OfTask(task_id=made.task_id))
            known = await ctx.session.send_request(request, Known)
            if known.result is not None:
                return known.result
            await asyncio.sleep(0.05)


async def test_the_client_of_the_sdk_has_its_results_by_tasks(on: Stage) -> None:
    server = StdioServerParameters(
        command=PROGRAM[0], args=[*PROGRAM[1:], "mcp", "--task-after", "0"], env={**OURS, **on.environ}, cwd=on.root
    )
    info = Implementation(name="sdk", version="1")
    async with SdkClient(server, client_info=info, mode=VERSION, extensions=[Finishing()]) as one:
        task = asyncio.create_task(one.call_tool("execute", {"command": "echo out; exit 3"}))
        await decided(on)
        found: Any = (await task).structured_content
        assert (found["exit_code"], found["handed_over"]) == (3, False)
