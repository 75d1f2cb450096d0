"""Bad input gets an answer: the cause, the remedy, no stack trace, and nobody is asked about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.function import FunctionModel

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import BackendUnavailable, SupervisorUnreachable
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.tools.toolset import exec_toolset
from tests.execs import Told, launch, places, running_engine, unstarted_engine
from tests.integration.tools.test_toolset_agent import OUTPUT, Deps, Script, converse, returns

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_backend")]


async def refusal(engine: Engine, tool: str, args: dict[str, Any]) -> str:
    """What the model is told at once; fails if a person would be asked instead."""
    agent = Agent(
        FunctionModel(Script((tool, args))), toolsets=[exec_toolset(engine)], output_type=OUTPUT, deps_type=object
    )
    result = await agent.run("go", deps=Deps())
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
    tmp_path: Path, each_backend: str
) -> None:
    told = Told()
    async with running_engine(tmp_path, sink=told) as engine:
        (engine.workspace / "shut").mkdir()
        (engine.workspace / "shut").chmod(0)
        if os.access(engine.workspace / "shut", os.X_OK) and os.geteuid() != 0:
            pytest.skip("may enter everything")
        (answer,) = await converse(engine, Script(("execute", {"command": "touch ran", "cwd": "shut"})))
        # In a sandbox bubblewrap says first what it could not do.
        said, _, result = str(answer.content).rpartition("[could not be started: ")
        assert result.startswith("Permission denied (errno 13); nothing ran")
        assert said.startswith("bwrap: Can't chdir to ") == (each_backend == "bubblewrap") == bool(said)
        assert (answer.metadata["state"], answer.metadata["exit_code"]) == ("start_failed", None)
        assert told.sessions == []
        (answer,) = await converse(
            engine, Script(("execute", {"command": "touch ran", "cwd": "shut", "background": True}))
        )
        assert answer.metadata["state"] == "start_failed"
        assert [one.id for one in told.sessions] == [answer.metadata["session_id"]]


async def test_many_live_sessions_are_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellback.exec.core.limits.SESSIONS_WARN", 2)
    async with running_engine(tmp_path) as engine:
        slow = ("execute", {"command": "sleep 100", "background": True})
        first, second = await converse(engine, Script(slow, slow))
        assert "end some" not in str(first.content)
        assert "2 processes of this conversation run; end some]" in str(second.content)


async def test_arguments_of_the_wrong_kind_are_for_the_model_to_correct(engine: Engine) -> None:
    script = Script(("execute", {"command": 7}), ("process_list", {}))
    agent = Agent(FunctionModel(script), toolsets=[exec_toolset(engine)], output_type=OUTPUT, deps_type=object)
    result = await agent.run("go", deps=Deps())
    assert result.output == "done"


async def test_too_many_live_sessions_name_the_limit(tmp_path: Path) -> None:
    workspace, home = places(tmp_path)
    async with unstarted_engine(workspace, home, MemorySessionStore(limit=1)) as engine:
        session = await launch(engine, "sleep 100")
        (answer,) = await converse(engine, Script(("execute", {"command": "true"})))
        assert "1 is the limit" in str(answer.content)
        await converse(engine, Script(("process_kill", {"session_id": session.id})))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has somebody to become")
async def test_commands_never_run_as_root(tmp_path: Path) -> None:
    workspace, _ = places(tmp_path)
    with pytest.raises(BackendUnavailable, match="would run as root; set EXEC_UID"):
        HostBackend(workspace, exec_uid=0).check()


async def test_a_supervisor_that_cannot_be_reached_is_for_the_operator(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    async def unreachable(*_: object) -> None:
        raise SupervisorUnreachable("the supervisor does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(engine.supervised, "start", unreachable)
        (answer,) = await converse(engine, Script(("execute", {"command": "touch ran"})))
    assert answer.outcome == "failed"
    assert str(answer.content).startswith("the supervisor does not answer. This is for the operator;")
    assert "an exec tool cannot work: the supervisor does not answer" in caplog.text
    # Not known whether it started: reconciling finds that it did not, and that it never will.
    await engine.reconcile()
    (session,) = await engine.store.list()
    assert session.end is not None
    assert session.end.evidence == "never_started"
    assert not (engine.workspace / "ran").exists()
