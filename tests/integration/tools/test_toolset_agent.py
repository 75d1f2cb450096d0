"""The toolset in a real agent, with a scripted model and a real supervisor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from shellback.exec.core.identity import call_key, origins_in
from shellback.exec.core.model import CallKey
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.policy.policy import Approval
from shellback.exec.policy.tools import TOOLS, tool_named
from shellback.exec.tools.capability import ExecCapability
from shellback.exec.tools.toolset import ExecTools, exec_toolset
from shellback.exec.watching.memory import MemoryWatchStore
from shellback.exec.watching.watcher import Watcher
from tests.desks import desk
from tests.execs import GATE, launch, let_go, printed, running_engine

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

OUTPUT: list[Any] = [str, DeferredToolRequests]


@dataclass
class Deps:
    conversation_id: str = "talk"
    turn_id: str = ""
    epoch: int = 0
    gate: bool = True
    approvals: dict[CallKey, Approval] = field(default_factory=dict[CallKey, Approval])

    def approval_for(self, key: CallKey) -> Approval | None:
        return self.approvals.get(key)


class Script:
    """A model that makes the given calls, one response each, and then says what it saw."""

    def __init__(self, *calls: tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]]) -> None:
        self._calls = list(calls)
        self.seen: AgentInfo | None = None

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen = info
        if not self._calls:
            return ModelResponse(parts=[TextPart("done")])
        due = self._calls.pop(0)
        calls = due if isinstance(due, list) else [due]
        # The same id in every response, as local models do.
        parts = [ToolCallPart(name, args, tool_call_id=f"call_{n}") for n, (name, args) in enumerate(calls, 1)]
        return ModelResponse(parts=parts)


def returns(messages: Sequence[ModelMessage]) -> list[Any]:
    return [
        part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


async def converse(engine: Engine, script: Script, deps: Deps | None = None) -> list[Any]:
    """Run the script to its end, approving whatever asks."""
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT, deps_type=object)
    given = deps or Deps()
    result = await agent.run("go", deps=given)
    while isinstance(result.output, DeferredToolRequests):
        yes = DeferredToolResults(approvals={call.tool_call_id: ToolApproved() for call in result.output.approvals})
        tools = ExecTools(engine)
        calls = result.output.approvals
        origins = origins_in(result.all_messages(), given.conversation_id, [call.tool_call_id for call in calls])
        for call, origin in zip(calls, origins, strict=True):
            digest, _ = await tools.propose(given.conversation_id, call.tool_name, call.args_as_dict())
            given.approvals[call_key(origin)] = Approval("a1", digest)
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=yes, deps=given)
    return returns(result.all_messages())


async def test_an_approved_command_runs_and_its_result_has_text_and_metadata(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        (answer,) = await converse(engine, Script(("execute", {"command": "echo hi; exit 3"})))
    assert answer.outcome == "success"
    assert str(answer.content).startswith("hi\n[exit code 3, ")
    assert {
        "session_id",
        "log_path",
        "exit_code",
        "signal",
        "state",
        "bytes_total",
        "bytes_dropped",
    } <= answer.metadata.keys()
    assert answer.metadata["exit_code"] == 3
    assert json.loads(json.dumps(answer.metadata)) == answer.metadata


async def test_nothing_runs_before_the_approval(engine: Engine) -> None:
    agent = Agent(
        FunctionModel(Script(("execute", {"command": "touch ran"}))),
        toolsets=[exec_toolset(engine)],
        output_type=OUTPUT,
    )
    result = await agent.run("go")
    assert isinstance(result.output, DeferredToolRequests)
    assert [call.tool_name for call in result.output.approvals] == ["execute"]
    assert await engine.store.list() == []
    assert not (engine.workspace / "ran").exists()


async def test_reading_tools_run_without_asking(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        session = await launch(engine, "echo hello")
        await engine.wait(session.id, up_to=60)
        script = Script(
            ("process_list", {}),
            ("process_poll", {"session_id": session.id}),
            ("process_log", {"session_id": session.id}),
            ("process_poll", {"session_id": session.id}),
        )
        agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], deps_type=object)
        result = await agent.run("go", deps=Deps())
        listed, polled, logged, again = returns(result.all_messages())
    (row,) = listed.content
    assert set(row) == {
        "session_id", "command", "state", "exit_code", "signal", "pty", "cwd", "backend", "profile", "started_at",
        "uptime_seconds", "idle_seconds", "lifetime",
    }  # fmt: skip
    assert (row["session_id"], row["state"], row["exit_code"]) == (session.id, "exited", 0)
    assert polled.content == {"state": "exited", "exit_code": 0, "signal": None, "output": "hello\n", "next_offset": 6}
    assert (again.content["output"], again.content["next_offset"]) == ("", 6)
    assert logged.content == "hello\n"
    assert {"session_id": session.id, "log_path": session.log_path, "total": 1}.items() <= logged.metadata.items()


async def test_a_start_in_the_background_tells_what_was_printed_so_far(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        args = {"command": f"echo so far; {GATE}", "background": True}
        started = await here.approved("execute", **args)
        await printed(here.engine, started.metadata["session_id"], "so far")
        again = await here.call("execute", again=True, approved=True, **args)
        assert again.metadata["session_id"] == started.metadata["session_id"]
        assert str(again.value).startswith("so far\n[")
        let_go(here.engine)


async def test_the_same_call_id_in_every_response_is_a_new_command_each_time(engine: Engine) -> None:
    answers = await converse(
        engine, Script(("execute", {"command": "echo x >> n"}), ("execute", {"command": "echo x >> n"}))
    )
    assert len({answer.metadata["session_id"] for answer in answers}) == 2
    assert (engine.workspace / "n").read_text() == "x\nx\n"


async def test_an_approved_call_that_is_executed_again_runs_once(engine: Engine) -> None:
    script = Script(("execute", {"command": "echo x >> n; rmdir gone", "cwd": "."}))
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT)
    pending = await agent.run("go", conversation_id="talk")
    assert isinstance(pending.output, DeferredToolRequests)
    history = ModelMessagesTypeAdapter.dump_json(pending.all_messages())
    yes = DeferredToolResults(approvals={"call_1": True})
    seen: list[str] = []
    for _ in range(2):
        resumed = await agent.run(
            message_history=ModelMessagesTypeAdapter.validate_json(history), deferred_tool_results=yes
        )
        seen.append(returns(resumed.all_messages())[-1].metadata["session_id"])
    assert seen[0] == seen[1]
    assert (engine.workspace / "n").read_text() == "x\n"


async def test_a_command_that_removed_its_own_directory_still_has_its_result_on_a_repeat(engine: Engine) -> None:
    outcome = await converse(engine, Script(("execute", {"command": "mkdir -m 777 d"})))
    assert outcome[0].metadata["exit_code"] == 0
    script = Script(("execute", {"command": "rmdir ../d && echo x >> ../n", "cwd": "d"}))
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT)
    pending = await agent.run("go", conversation_id="talk")
    history = pending.all_messages_json()
    for _ in range(2):
        resumed = await agent.run(
            message_history=ModelMessagesTypeAdapter.validate_json(history),
            deferred_tool_results=DeferredToolResults(approvals={"call_1": True}),
        )
        assert returns(resumed.all_messages())[-1].metadata["exit_code"] == 0
    assert (engine.workspace / "n").read_text() == "x\n"


async def test_what_is_not_what_was_approved_does_not_run(engine: Engine) -> None:
    deps = Deps()
    script = Script(("execute", {"command": "touch ran"}))
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT, deps_type=object)
    pending = await agent.run("go", deps=deps)
    (origin,) = origins_in(pending.all_messages(), "talk", ["call_1"])
    deps.approvals[call_key(origin)] = Approval("a1", "0" * 64)
    resumed = await agent.run(
        message_history=pending.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={"call_1": True}),
        deps=deps,
    )
    (answer,) = returns(resumed.all_messages())[-1:]
    assert answer.outcome == "failed"
    assert "not what was approved" in str(answer.content)
    assert not (engine.workspace / "ran").exists()


async def test_an_approval_that_is_not_on_record_runs_nothing(engine: Engine) -> None:
    agent = Agent(
        FunctionModel(Script(("execute", {"command": "touch ran"}))),
        toolsets=[exec_toolset(engine)],
        output_type=OUTPUT,
        deps_type=object,
    )
    pending = await agent.run("go", deps=Deps())
    resumed = await agent.run(
        message_history=pending.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={"call_1": True}),
        deps=Deps(),
    )
    assert "no approval is on record" in str(returns(resumed.all_messages())[-1].content)
    assert await engine.store.list() == []


async def test_the_approval_goes_with_the_session_into_the_claim(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        await converse(engine, Script(("execute", {"command": "touch made"})))
        (session,) = await engine.store.list()
    assert session.approval_id == "a1"


async def test_a_terminal_is_typed_into_and_read(engine: Engine) -> None:
    (started,) = await converse(engine, Script(("execute_pty", {"command": "read -r x; echo got:$x; read -r y"})))
    session_id = started.metadata["session_id"]
    (typed,) = await converse(
        engine, Script(("process_send_keys", {"session_id": session_id, "keys": ["hello", "Enter"]}))
    )
    assert str(typed.content) == f"[wrote 6 bytes to session {session_id}]"
    await printed(engine, session_id, "got:hello")
    (typed,) = await converse(engine, Script(("process_write", {"session_id": session_id, "data": "bye\n"})))
    ended = await engine.wait(session_id, up_to=60)
    assert ended.end is not None
    assert ended.end.exit_code == 0


async def test_kill_through_the_tool(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        session = await launch(engine, "sleep 100 & sleep 100; wait")
        (answer,) = await converse(engine, Script(("process_kill", {"session_id": session.id})))
    assert (
        str(answer.content)
        == f"[ended by signal SIGTERM (by agent), session {session.id}; its whole process tree is gone]"
    )
    assert (answer.metadata["state"], answer.metadata["ended_by"]) == ("signaled", "agent")


@pytest.mark.parametrize("gate", [False, True])
async def test_the_gate_hides_tools_and_instructions_together(tmp_path: Path, gate: bool) -> None:
    async with running_engine(tmp_path) as engine:
        script, watcher = Script(), Watcher(engine, MemoryWatchStore())
        agent = Agent(
            FunctionModel(script),
            capabilities=[ExecCapability(ExecTools(engine, blocks=True, shell=True, watcher=watcher))],
            output_type=OUTPUT,
            deps_type=object,
        )
        await agent.run("go", deps=Deps(gate=gate))
        assert script.seen is not None
        names = {tool.name for tool in script.seen.function_tools}
        instructions = script.seen.instructions or ""
    assert names == ({tool.name for tool in TOOLS} if gate else set())
    assert (str(engine.workspace) in instructions) is gate
    assert ("execute" in instructions) is gate


async def test_without_a_recorded_gate_the_tools_are_off_by_default(engine: Engine) -> None:
    script = Script()
    await Agent(FunctionModel(script), capabilities=[ExecCapability(ExecTools(engine))], output_type=OUTPUT).run("go")
    assert script.seen is not None
    assert script.seen.function_tools == []


async def test_every_tool_describes_all_its_parameters_and_has_its_category(engine: Engine) -> None:
    script = Script()
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT)
    await agent.run("go")
    assert script.seen is not None
    for tool in script.seen.function_tools:
        assert tool.description
        assert (tool.metadata or {})["category"] == tool_named(tool.name).category
        for name, schema in tool.parameters_json_schema["properties"].items():
            assert schema.get("description"), (tool.name, name)


async def test_a_foreign_session_is_an_unknown_one(engine: Engine) -> None:
    session = await launch(engine, "sleep 100")
    said: list[str] = []
    for wanted in (session.id, "xnosuchsession"):
        for tool in ("process_poll", "process_log", "process_kill"):
            agent = Agent(
                FunctionModel(Script((tool, {"session_id": wanted}))),
                toolsets=[exec_toolset(engine)],
                output_type=OUTPUT,
                deps_type=object,
            )
            result = await agent.run("go", deps=Deps(conversation_id="another"))
            (answer,) = returns(result.all_messages())
            assert answer.outcome == "failed"
            said.append(str(answer.content).replace(wanted, "ID"))
    assert set(said) == {"no session 'ID' in this conversation; process_list shows the ones there are"}
    assert await Sessions(engine, "another").list() == []
    assert (await engine.registry.get(session.id)).live
