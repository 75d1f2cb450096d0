"""Handlers of tools with shells and files that run nothing; a worker's are in `tests/acceptance/test_handlers.py`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from examples.handlers import (
    BuildParams,
    Params,
    RunTestsParams,
    RunTestsResult,
    build_handler,
    my_handler,
    run_tests_handler,
)
from shellback.exec.shell import (
    AsyncShell,
    ExecutionResult,
    Filesystem,
    MockAsyncShell,
    MockFilesystem,
    MockShell,
    Running,
    Shell,
    ShellSession,
    SyncFiles,
    ToolContext,
)
from shellback.exec.shell.mock import MockRunning, MockShellSession
from shellback.work.turn.deps import TurnDeps


def result(code: int = 0, out: str = "", err: str = "", *, late: bool = False) -> ExecutionResult:
    return ExecutionResult(code, out, err, ("x",), "/workspace", 5.2, False, late, 9 if late else None)


def test_a_build_tool_uses_the_shell() -> None:
    mock = MockShell()
    mock.add_response("bash build.sh", result(out="Build succeeded"))
    context = ToolContext(shell=mock, filesystem=MockFilesystem())
    answer = build_handler(BuildParams(), context=context)
    assert answer.success
    assert len(mock.execute_calls) == 1
    assert mock.execute_calls[0] == (["bash", "build.sh"], {"timeout_seconds": 300.0})
    assert context.filesystem is not None
    assert context.filesystem.read("build.sh").startswith("#!/bin/bash\n")


def test_without_a_workspace_a_handler_says_so() -> None:
    empty = ToolContext()
    assert run_tests_handler(RunTestsParams("t"), context=empty).message == "No shell available in this context."
    assert my_handler(Params("x"), context=empty).message == "No shell available"
    assert build_handler(BuildParams(), context=empty).message == "Workspace not available"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (result(out="all"), "Command succeeded"),
        (result(3, err="no"), "Command failed (exit 3):\nno"),
        (result(-1, "part", late=True), "Command timed out after 5.2s.\nPartial output:\npart"),
    ],
)
def test_a_handler_tells_its_results_apart(given: ExecutionResult, message: str) -> None:
    assert my_handler(Params("x"), context=ToolContext(shell=MockShell(given))).message == message


def test_a_handler_answers_with_what_the_tests_printed() -> None:
    mock = MockShell(result(1, "1 failed", "warning"))
    answer = run_tests_handler(RunTestsParams("tests/unit", "sub"), context=ToolContext(shell=mock))
    assert (answer.message, answer.value) == ("Tests failed", RunTestsResult(False, "1 failed", "warning"))
    assert mock.execute_calls == [(["pytest", "tests/unit", "-v"], {"cwd": "sub", "timeout_seconds": 120.0})]
    late = run_tests_handler(RunTestsParams("t"), context=ToolContext(shell=MockShell(result(late=True))))
    assert late.message == "Tests timed out after 5.2s"


def test_the_dependencies_of_a_turn_are_the_context_of_a_handler() -> None:
    deps = TurnDeps(conversation_id="c", turn_id="t", epoch=1, gate=False, began_at=0.0, seconds=1.0)
    assert isinstance(deps, ToolContext)
    assert (deps.shell, deps.filesystem, deps.async_shell, deps.async_filesystem) == (None, None, None, None)
    deps.beat()


# -- the mocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mock", "real"), [(MockAsyncShell, AsyncShell), (MockRunning, Running), (MockShellSession, ShellSession)]
)
def test_a_mock_for_the_event_loop_has_every_method_of_what_it_stands_for(mock: type, real: type) -> None:
    public = {name for name, one in vars(real).items() if not name.startswith("_") and callable(one)}
    assert public <= vars(mock).keys()
    for name in public:
        assert inspect.iscoroutinefunction(getattr(mock, name)) == inspect.iscoroutinefunction(getattr(real, name))


@pytest.mark.anyio
async def test_a_mock_for_the_event_loop_answers_and_remembers_as_that_for_threads() -> None:
    mock = MockShell(programs={"make": "/usr/bin/make"}, variables={"A": "1"})
    mock.add_response("make", result(2, "out", "err"))
    shell = MockAsyncShell(mock)
    assert (shell.backend_name, shell.sandboxed, shell.network_enabled) == ("mock", True, False)
    assert (await shell.execute(["make", "x"], timeout_seconds=5)).exit_code == 2
    assert (await shell.execute_script("make")).stderr == "err"
    assert (await shell.which("make")).found
    assert (await shell.env()).get("A") == "1"
    assert [chunk.text async for chunk in shell.stream("make")] == ["out", "err"]
    running = await shell.spawn("make all", keep_stdin_open=True)
    assert await running.write("yes\n") == 4
    await running.close_stdin()
    assert (await running.wait()).exit_code == (await running.kill()).exit_code == 2
    assert await running.output() == ("out", "err")
    end = (await running.session()).end
    assert end is not None
    assert end.exit_code == 2
    assert running.calls == [("write", "yes\n"), ("close_stdin", None), ("kill", None)]
    async with await shell.session(cwd="sub") as stays:
        executed = await stays.exec("make")
        assert (executed.output, executed.exit_code) == ("outerr", 2)
        assert (await stays.read()).output == ""
    commands = [command for command, _ in mock.execute_calls]
    assert commands == [["make", "x"], "make", "make", "make all", "make"]


def test_files_in_memory_answer_as_those_of_a_workspace() -> None:
    files = MockFilesystem()
    files.write("src/deep/a.txt", "ü")
    files.write_bytes("/workspace/src/b", b"\xff")
    assert files.read("/workspace/src/deep/../deep/a.txt") == "ü"
    assert files.read_bytes("src/b") == b"\xff"
    assert [(one.name, one.path, one.is_dir, one.size) for one in files.list_dir("src")] == [
        ("b", "/workspace/src/b", False, 1),
        ("deep", "/workspace/src/deep", True, None),
    ]
    assert [one.name for one in files.list_dir()] == ["src"]
    files.make_dir("src")
    refused: list[tuple[type[Exception], Any]] = [
        (FileNotFoundError, lambda: files.read("absent")),
        (IsADirectoryError, lambda: files.read("src")),
        (IsADirectoryError, lambda: files.write("src", "x")),
        (NotADirectoryError, lambda: files.list_dir("src/b")),
        (FileExistsError, lambda: files.make_dir("src/b")),
        (ValueError, lambda: files.write("../outside", "x")),
        (OSError, lambda: files.remove(".")),
    ]
    for kind, act in refused:
        with pytest.raises(kind):
            act()
    files.remove("src/deep")
    assert (files.exists("src/deep/a.txt"), files.exists("src/b"), files.exists(".")) == (False, True, True)


def test_all_shells_and_files_have_one_shape() -> None:
    assert isinstance(MockShell(), Shell)
    for kind in (MockFilesystem, SyncFiles):
        for name, one in vars(Filesystem).items():
            if inspect.isfunction(one) and not name.startswith("_"):
                assert list(inspect.signature(getattr(kind, name)).parameters) == list(
                    inspect.signature(one).parameters
                ), name
