"""The toolset in a real agent, with a scripted model and a real supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.agent import AgentRunResult
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

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable
from shellback.exec.core.identity import call_key, origins_in
from shellback.exec.core.limits import Limits
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import Sessions
from shellback.exec.policy.policy import Approval
from shellback.exec.tools.capability import ExecCapability
from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.tools.toolset import ExecTools, exec_toolset
from shellback.exec.watching.memory import MemoryWatchStore
from shellback.exec.watching.watcher import Watcher
from tests import desks
from tests.desks import Desk, here
from tests.execs import GATE, Told, end_of, launch, let_go, places, printed, unstarted_engine
from tests.supervisors import raising

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]

__all__ = ["here"]

OUTPUT: list[Any] = [str, DeferredToolRequests]
Due = tuple[str, dict[str, Any]] | list[tuple[str, dict[str, Any]]]


@dataclass
class Deps(desks.Deps):
    gate: bool = True


class Script:
    """A model that makes the given calls, one response each, and then says what it saw."""

    def __init__(self, *calls: Due) -> None:
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


def scripted(engine: Engine, script: Script) -> Agent[object, Any]:
    return Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT, deps_type=object)


async def approved(agent: Agent[object, Any], pending: AgentRunResult[Any], deps: object = None, **more: Any) -> Any:
    """Go on with a yes to the one call, from a history as it is stored; what the call returned."""
    history = ModelMessagesTypeAdapter.validate_json(pending.all_messages_json())
    yes = DeferredToolResults(approvals={"call_1": True}, **more)
    resumed = await agent.run(message_history=history, deferred_tool_results=yes, deps=deps)
    return returns(resumed.all_messages())[-1]


async def converse(engine: Engine, *due: Due, deps: Deps | None = None) -> list[Any]:
    """Make the calls one after the other, approving whatever asks."""
    agent = scripted(engine, Script(*due))
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


async def test_an_approved_command_runs_and_its_result_has_text_and_metadata(engine: Engine) -> None:
    (answer,) = await converse(engine, ("execute", {"command": "touch made; echo hi; exit 3"}))
    assert answer.outcome == "success"
    assert str(answer.content).startswith("hi\n[exit code 3, ")
    named = {"session_id", "log_path", "exit_code", "signal", "state", "bytes_total", "bytes_dropped"}
    assert named <= answer.metadata.keys()
    assert answer.metadata["exit_code"] == 3
    assert json.loads(json.dumps(answer.metadata)) == answer.metadata
    (session,) = await engine.store.list()
    assert session.approval_id == "a1"


async def test_nothing_runs_before_the_approval(engine: Engine) -> None:
    result = await scripted(engine, Script(("execute", {"command": "touch ran"}))).run("go")
    assert isinstance(result.output, DeferredToolRequests)
    assert [call.tool_name for call in result.output.approvals] == ["execute"]
    assert await engine.store.list() == []
    assert not (engine.workspace / "ran").exists()


async def test_reading_tools_run_without_asking(engine: Engine) -> None:
    session = await launch(engine, "echo hello")
    await engine.wait(session.id, up_to=60)
    polls, logs = (("process_poll", {"session_id": session.id}), ("process_log", {"session_id": session.id}))
    result = await scripted(engine, Script(("process_list", {}), polls, logs, polls)).run("go", deps=Deps())
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


async def test_a_start_in_the_background_tells_what_was_printed_so_far(here: Desk) -> None:
    args = {"command": f"echo so far; {GATE}", "background": True}
    started = await here.approved("execute", **args)
    await printed(here.engine, started.metadata["session_id"], "so far")
    again = await here.call("execute", again=True, approved=True, **args)
    assert again.metadata["session_id"] == started.metadata["session_id"]
    assert str(again.value).startswith("so far\n[")
    let_go(here.engine)


async def test_the_same_call_id_in_every_response_is_a_new_command_each_time(engine: Engine) -> None:
    answers = await converse(engine, ("execute", {"command": "echo x >> n"}), ("execute", {"command": "echo x >> n"}))
    assert len({answer.metadata["session_id"] for answer in answers}) == 2
    assert (engine.workspace / "n").read_text() == "x\nx\n"


async def test_a_command_that_removed_its_own_directory_still_has_its_result_on_a_repeat(engine: Engine) -> None:
    outcome = await converse(engine, ("execute", {"command": "mkdir -m 777 d"}))
    assert outcome[0].metadata["exit_code"] == 0
    agent = scripted(engine, Script(("execute", {"command": "rmdir ../d && echo x >> ../n", "cwd": "d"})))
    pending = await agent.run("go", conversation_id="talk")
    first, second = [(await approved(agent, pending)).metadata for _ in range(2)]
    assert (first["session_id"], first["exit_code"]) == (second["session_id"], second["exit_code"])
    assert first["exit_code"] == 0
    assert (engine.workspace / "n").read_text() == "x\n"


async def test_what_is_not_what_was_approved_does_not_run(engine: Engine) -> None:
    deps = Deps()
    agent = scripted(engine, Script(("execute", {"command": "touch ran"})))
    pending = await agent.run("go", deps=deps)
    (origin,) = origins_in(pending.all_messages(), "talk", ["call_1"])
    deps.approvals[call_key(origin)] = Approval("a1", "0" * 64)
    answer = await approved(agent, pending, deps)
    assert answer.outcome == "failed"
    assert "not what was approved" in str(answer.content)
    assert not (engine.workspace / "ran").exists()


async def test_an_approval_that_is_not_on_record_runs_nothing(engine: Engine) -> None:
    agent = scripted(engine, Script(("execute", {"command": "touch ran"})))
    answer = await approved(agent, await agent.run("go", deps=Deps()), Deps())
    assert "no approval is on record" in str(answer.content)
    assert await engine.store.list() == []


async def test_a_terminal_is_typed_into_and_read(engine: Engine) -> None:
    (started,) = await converse(engine, ("execute_pty", {"command": "read -r x; echo got:$x; read -r y"}))
    session_id = started.metadata["session_id"]
    (typed,) = await converse(engine, ("process_send_keys", {"session_id": session_id, "keys": ["hello", "Enter"]}))
    assert str(typed.content) == f"[wrote 6 bytes to session {session_id}]"
    await printed(engine, session_id, "got:hello")
    (typed,) = await converse(engine, ("process_write", {"session_id": session_id, "data": "bye\n"}))
    ended = await engine.wait(session_id, up_to=60)
    assert end_of(ended).exit_code == 0


async def test_kill_through_the_tool(engine: Engine) -> None:
    session = await launch(engine, "sleep 100 & sleep 100; wait")
    (answer,) = await converse(engine, ("process_kill", {"session_id": session.id}))
    assert (
        str(answer.content)
        == f"[ended by signal SIGTERM (by agent), session {session.id}; its whole process tree is gone]"
    )
    assert (answer.metadata["state"], answer.metadata["ended_by"]) == ("signaled", "agent")


@pytest.mark.parametrize("gate", [False, True])
async def test_the_gate_hides_tools_and_instructions_together(engine: Engine, gate: bool) -> None:
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
    assert names == ({tool.name for tool in tools().values()} if gate else set())
    assert (str(engine.workspace) in instructions) is gate
    assert ("execute" in instructions) is gate


async def test_without_a_recorded_gate_the_tools_are_off_by_default(engine: Engine) -> None:
    script = Script()
    await Agent(FunctionModel(script), capabilities=[ExecCapability(ExecTools(engine))], output_type=OUTPUT).run("go")
    assert script.seen is not None
    assert script.seen.function_tools == []


async def test_every_tool_describes_all_its_parameters_and_has_its_category(engine: Engine) -> None:
    script = Script()
    await scripted(engine, script).run("go")
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
            told = await refusal(engine, tool, {"session_id": wanted}, Deps(conversation_id="another"))
            said.append(told.replace(wanted, "ID"))
    assert set(said) == {"no session 'ID' in this conversation; process_list shows the ones there are"}
    assert await Sessions(engine, "another").list() == []
    assert (await engine.registry.get(session.id)).live


async def refusal(engine: Engine, tool: str, args: dict[str, Any], deps: Deps | None = None) -> str:
    """What the model is told at once; fails if a person would be asked instead."""
    result = await scripted(engine, Script((tool, args))).run("go", deps=deps or Deps())
    assert not isinstance(result.output, DeferredToolRequests)
    (answer,) = returns(result.all_messages())
    assert answer.outcome == "failed"
    text = str(answer.content)
    assert "Traceback" not in text
    return text


async def test_what_execute_refuses(engine: Engine) -> None:
    (engine.workspace / "file").write_text("")
    (engine.workspace / "out").symlink_to("/etc")
    evil = engine.workspace.parent / "ws-evil"
    evil.mkdir()
    outside = f"is outside the workspace; use a directory inside {engine.workspace}"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"command": ""}, "command is empty"),
        ({"command": " \n\t"}, "command is empty"),
        ({"command": "echo a\0b"}, "command holds a NUL byte"),
        ({"command": "x" * 4097}, "command has 4097 characters; at most 4096 are accepted, write a script file"),
        ({"command": "true", "cwd": "/etc"}, outside),
        ({"command": "true", "cwd": "../ws-evil"}, outside),
        ({"command": "true", "cwd": str(evil)}, outside),
        ({"command": "true", "cwd": "out"}, outside),
        ({"command": "true", "cwd": "missing"}, "cwd 'missing' does not exist; create it first"),
        ({"command": "true", "cwd": "file"}, "cwd 'file' is not a directory"),
        ({"command": "true", "cwd": "a\0"}, "cwd holds a NUL byte"),
        ({"command": "true", "env": {"LD_PRELOAD": "x"}}, "env name 'LD_PRELOAD' is refused (rule LD_PRELOAD)"),
        ({"command": "true", "env": {"A-B": "x"}}, "env name 'A-B' is not accepted"),
        ({"command": "true", "timeout": 0}, "timeout is 0 s; a foreground command takes 0.1 to 600 s"),
        ({"command": "true", "timeout": 601}, "timeout is 601 s; a foreground command takes 0.1 to 600 s"),
        ({"command": "true", "timeout": -1}, "timeout is -1 s"),
        ({"command": "true", "timeout": 604801, "background": True}, "a background command takes 0.1 to 604800 s"),
        ({"command": "true", "yield_after": 0}, "yield_after is 0 s; it must be above 0"),
        ({"command": "true", "yield_after": 5, "background": True}, "background=true returns at once"),
        ({"command": "true", "stdin": "x" * 65537}, "stdin has 65537 bytes; at most 65536 are accepted"),
    ]
    for args, said in refused:
        assert said in await refusal(engine, "execute", args), args
    assert await engine.store.list() == []


async def test_sessions_that_do_not_fit(engine: Engine) -> None:
    ended = await launch(engine, "exit 3")
    await engine.wait(ended.id, up_to=60)
    deaf = await launch(engine, "sleep 100")
    ended_ones: list[tuple[str, dict[str, Any], str]] = [
        ("process_poll", {"session_id": "xnone"}, "no session 'xnone' in this conversation; process_list shows"),
        ("process_kill", {"session_id": ended.id}, f"session {ended.id} has ended: exit code 3; nothing was done"),
        ("process_write", {"session_id": ended.id, "data": "x"}, "has ended: exit code 3; nothing was done"),
        ("process_log", {"session_id": ended.id, "limit": 0}, "limit is 0; it must be 1 to 10000 lines"),
        ("process_log", {"session_id": ended.id, "byte_offset": 9}, "byte_offset 9 is behind the end of the log"),
        ("process_log", {"session_id": ended.id, "byte_offset": -1}, "byte_offset is -1; it must be 0 or more"),
        ("process_log", {"session_id": ended.id, "byte_offset": 0, "byte_limit": 30001}, "must be 1 to 30000"),
    ]
    for tool, args, said in ended_ones:
        assert said in await refusal(engine, tool, args), (tool, args)
    deaf_ones: list[tuple[str, dict[str, Any], str]] = [
        ("process_write", {"session_id": deaf.id, "data": "x"}, "has no open stdin; start it with keep_stdin_open"),
        ("process_send_keys", {"session_id": deaf.id, "keys": ["Enter"]}, "has no terminal; use process_write"),
        ("process_send_keys", {"session_id": deaf.id, "keys": []}, "nothing to type; give literal, paste, hex"),
    ]
    for tool, args, said in deaf_ones:
        assert said in await refusal(engine, tool, args), (tool, args)


async def test_a_directory_that_the_user_of_commands_cannot_enter_is_a_failed_start(
    each_backend: str, engine: Engine, told: Told
) -> None:
    (engine.workspace / "shut").mkdir()
    (engine.workspace / "shut").chmod(0)
    if os.access(engine.workspace / "shut", os.X_OK) and os.geteuid() != 0:
        pytest.skip("may enter everything")
    (answer,) = await converse(engine, ("execute", {"command": "touch ran", "cwd": "shut"}))
    # In a sandbox the process that would become the command says first what it could not do.
    said, _, result = str(answer.content).rpartition("[could not be started: ")
    assert result.startswith("Permission denied (errno 13); nothing ran")
    assert said == (f"{engine.workspace / 'shut'}: Permission denied\n" if each_backend == "bubblewrap" else "")
    assert (answer.metadata["state"], answer.metadata["exit_code"]) == ("start_failed", None)
    assert told.sessions == []
    (answer,) = await converse(engine, ("execute", {"command": "touch ran", "cwd": "shut", "background": True}))
    assert answer.metadata["state"] == "start_failed"
    assert [one.id for one in told.sessions] == [answer.metadata["session_id"]]


async def test_many_live_sessions_are_warned_about(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.core.limits.SESSIONS_WARN", 2)
    slow = ("execute", {"command": "sleep 100", "background": True})
    first, second = await converse(engine, slow, slow)
    assert "end some" not in str(first.content)
    assert "2 processes of this conversation run; end some]" in str(second.content)


async def test_arguments_of_the_wrong_kind_are_for_the_model_to_correct(engine: Engine) -> None:
    script = Script(("execute", {"command": 7}), ("process_list", {}))
    result = await scripted(engine, script).run("go", deps=Deps())
    assert result.output == "done"


async def test_too_many_live_sessions_name_the_limit(tmp_path: Path) -> None:
    async with unstarted_engine(*places(tmp_path), limits=Limits(sessions=1)) as engine:
        session = await launch(engine, "sleep 100")
        (answer,) = await converse(engine, ("execute", {"command": "true"}))
        assert "1 is the limit" in str(answer.content)
        await converse(engine, ("process_kill", {"session_id": session.id}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has somebody to become")
async def test_commands_never_run_as_root(tmp_path: Path) -> None:
    workspace, _ = places(tmp_path)
    with pytest.raises(BackendUnavailable, match="would run as root; set EXEC_UID"):
        HostBackend(workspace, exec_uid=0).check()


async def test_a_supervisor_that_cannot_be_reached_is_for_the_operator(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    with monkeypatch.context() as patch:
        patch.setattr(engine.supervised, "start", raising(SupervisorUnreachable("the supervisor does not answer")))
        (answer,) = await converse(engine, ("execute", {"command": "touch ran"}))
    assert answer.outcome == "failed"
    assert str(answer.content).startswith("the supervisor does not answer. This is for the operator;")
    assert "an exec tool cannot work: the supervisor does not answer" in caplog.text
    # Not known whether it started: reconciling finds that it did not, and that it never will.
    await engine.reconcile()
    (session,) = await engine.store.list()
    assert end_of(session).evidence == "never_started"
    assert not (engine.workspace / "ran").exists()
