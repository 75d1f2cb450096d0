"""The tools with several actions before they do anything: what each action takes, and what it amounts to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shellback.exec.backends.shell_words import shell_words
from shellback.exec.core.environment import home_of
from shellback.exec.core.errors import (
    CommandDenied,
    InvalidCommand,
    PathOutsideSandbox,
    PermissionDenied,
    PtyError,
    SessionNotFound,
    SpawnFailed,
    TaskCompleted,
)
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import READ_ONLY, SHELL, CommandSpec
from shellback.exec.engine.engine import Engine
from shellback.exec.tools.all.shell_tool import worded
from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.tools.short_commands import TIMEOUT_MS, login_spec
from shellback.exec.tools.tool import Action


def accept(tool: str, args: dict[str, Any]) -> None:
    """What is looked at before anything of the engine is."""
    act = tool_named(tool).act(args)
    assert isinstance(act, Action)
    act.accept(tool_named(tool).choice, args)
    if act.check is not None:
        act.check(cast("Engine", None), args)


@pytest.mark.parametrize(
    ("tool", "args", "said"),
    [
        ("shell_session", {"action": "exec", "command": "ls"}, "exec needs session_id, which start has returned"),
        ("shell_session", {"action": "exec", "session_id": "x1"}, "exec needs command, the text of a bash command"),
        ("shell_session", {"action": "exec"}, "session_id, which start has returned and list shows and command"),
        ("shell_session", {"action": "write", "session_id": "x1", "input": ""}, "write needs input"),
        ("shell_session", {"action": "resize", "session_id": "x1", "cols": 80}, "resize needs rows, the new number"),
        ("shell_session", {"action": "read"}, "read needs session_id"),
        ("shell_session", {"action": "kill", "session_id": ""}, "kill needs session_id"),
        ("shell_session", {"action": "start", "command": "ls"}, "start does not take command; it takes cwd, rows,"),
        ("shell_session", {"action": "list", "session_id": "x"}, "list does not take session_id; it takes nothing"),
        ("shell_session", {"action": "exec", "session_id": "x", "command": "ls", "env": {"A": ""}}, "not take env"),
        ("shell_session", {"action": "exec", "session_id": "x", "command": "ls", "timeout": 301}, "0.1 to 300"),
        ("shell_session", {"action": "exec", "session_id": "x", "command": "ls", "timeout": 0}, "0.1 to 300"),
        ("shell", {"op": "execute"}, "execute needs command"),
        ("shell", {"op": "spawn", "command": "ls", "timeout": 5}, "spawn does not take timeout; it takes command"),
        ("shell", {"op": "kill"}, "kill needs task_id, which spawn has returned"),
        ("shell", {"op": "status", "command": "ls"}, "status does not take command"),
        ("shell", {"op": "output", "command": "ls"}, "output needs task_id"),
    ],
)
def test_a_wrong_combination_names_what_is_needed(tool: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCommand) as caught:
        accept(tool, args)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("shell_session", {"action": "start", "session_id": None, "command": "", "env": {}, "raw": False}),
        ("shell_session", {"action": "exec", "session_id": "x1", "command": "ls", "timeout": 300, "raw": True}),
        ("shell_session", {"action": "read", "session_id": "x1", "raw": True}),
        ("shell", {"op": "execute", "command": "ls", "timeout": 0.1}),
        ("shell", {"op": "status"}),
    ],
)
def test_what_is_empty_counts_as_not_given(tool: str, args: dict[str, Any]) -> None:
    accept(tool, args)


def test_every_action_asks_and_types_as_the_tool_does_that_does_no_more() -> None:
    acts = {(tool.name, action): act for tool in tools().values() for action, act in tool.acts.items()}
    passing = {key for key, act in acts.items() if not act.asks}
    assert passing == {("shell_session", "read"), ("shell_session", "list"), ("shell", "status"), ("shell", "output")}
    typing = {key for key, act in acts.items() if act.input}
    assert typing == {
        ("shell_session", "exec"), ("shell_session", "write"), ("shell_session", "resize"), ("shell", "execute"),
    }  # fmt: skip
    assert {key for key, act in acts.items() if act.types} == typing - {("shell_session", "resize")}
    assert not any(act.rule for act in acts.values())


def test_what_is_not_known_always_asks() -> None:
    assert tool_named("shell_session").act({"action": "something"}).approval == "ask"
    assert tool_named("something").approval == "ask"
    execute = tool_named("execute")
    assert execute.act({"action": "read"}) is execute


def test_errors_of_shell_are_those_of_its_specification() -> None:
    said = [
        worded(error)
        for error in (
            PermissionDenied("admin", "read_only"), PathOutsideSandbox("/etc"), CommandDenied("it ruins"),
            SpawnFailed("no memory"), PtyError("no terminal"), SessionNotFound("x1"),
            TaskCompleted("x1", "exit code 0"),
        )
    ]  # fmt: skip
    assert said == [
        "permission denied: requires admin, have read_only", "path outside sandbox: /etc",
        "command denied by policy: it ruins", "process spawn failed: no memory", "pty error: no terminal",
        "unknown task: x1", "task already completed: exit code 0",
    ]  # fmt: skip
    assert tool_named("shell").worded is worded
    assert tool_named("shell_session").worded(CommandDenied("it ruins")) == "it ruins"


IN_A_HOME = {"workspace": "/ws", "private": "/home/agent", "user": "nobody"}


def test_a_login_shell_reads_no_file_of_a_home_and_becomes_one_that_reads_none() -> None:
    spec = CommandSpec(command="ls", cwd="/ws", login=True)
    argv, env = shell_words("/bin/bash", spec, **IN_A_HOME)
    assert argv[:2] == ("/bin/bash", "-lc")
    assert argv[3:] == ("/bin/bash", "/home/agent", "/ws", "/bin/bash", "--noprofile", "--norc", "-c", "--", "ls")
    assert env["HOME"] == "/proc"
    sh, _ = shell_words("/bin/sh", spec, **IN_A_HOME)
    assert sh[3:] == ("/bin/sh", "/home/agent", "/ws", "/bin/sh", "-c", "--", "ls")


def test_what_only_reads_is_run_without_any_start_up_file() -> None:
    spec = CommandSpec(command="ls", cwd="/ws", login=True, profile=READ_ONLY)
    argv, env = shell_words("/bin/bash", spec, **IN_A_HOME)
    assert argv == ("/bin/bash", "--noprofile", "--norc", "-c", "--", "ls")
    assert env["HOME"] == "/ws"


def test_the_home_of_shells_and_login_shells_is_the_workspace() -> None:
    for spec, home in (
        (CommandSpec(command="ls", cwd="/ws"), "/home/agent"),
        (CommandSpec(command="ls", cwd="/ws", login=True), "/ws"),
        (CommandSpec(command="ls", cwd="/ws", kind=SHELL), "/ws"),
    ):
        assert home_of(spec, workspace="/ws", private="/home/agent") == home


def test_the_timeout_of_run_shell_has_its_range_and_a_lower_bound_of_the_operator_holds(tmp_path: Path) -> None:
    def seconds(limits: Limits | None = None, timeout_ms: int = TIMEOUT_MS) -> float:
        engine: Any = SimpleNamespace(workspace=tmp_path, limits=limits or Limits())
        args = {"command": "ls", "cwd": None, "env": None, "timeout_ms": timeout_ms}
        return login_spec(engine, args).timeout_s

    assert (seconds(), seconds(timeout_ms=300_000)) == (60.0, 300.0)
    lower = Limits(foreground_timeout_max_s=20.0)
    assert seconds(lower) == 20.0
    with pytest.raises(InvalidCommand, match="it must be 100 to 20000"):
        seconds(lower, timeout_ms=30_000)
