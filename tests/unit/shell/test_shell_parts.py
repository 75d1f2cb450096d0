"""The parts of a shell that run nothing, what stands in for it in a test, and handlers of tools with it."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability

from examples.handlers import (
    BuildParams,
    Params,
    RunTestsParams,
    RunTestsResult,
    build_handler,
    my_handler,
    run_tests_handler,
)
from shellback.exec.core.errors import (
    BackendUnavailable,
    CommandDenied,
    InvalidCommand,
    PathOutsideSandbox,
    PermissionDenied,
    SpawnFailed,
    SupervisorUnreachable,
    WorkspaceUnusable,
)
from shellback.exec.log.output import OutputLog
from shellback.exec.shell import (
    DEFAULT_BLOCKED,
    AsyncShell,
    BubblewrapShell,
    CommandValidator,
    EnvironmentSnapshot,
    ExecutionResult,
    Filesystem,
    HostShell,
    MockAsyncShell,
    MockFilesystem,
    MockShell,
    PodmanShell,
    Running,
    Shell,
    ShellSection,
    ShellSession,
    SyncFiles,
    ToolContext,
    WhichResult,
    WorkspaceSection,
    shell_of,
)
from shellback.exec.shell.mock import MockRunning, MockShellSession
from shellback.exec.shell.running import captured
from shellback.exec.shell.standalone import DockerShell, Standalone
from shellback.exec.shell.words import line_of
from shellback.work.turn.deps import TurnDeps

pytestmark = pytest.mark.anyio


def result(**changes: Any) -> ExecutionResult:
    made: dict[str, Any] = {
        "exit_code": 0, "stdout": "Build succeeded", "stderr": "", "command": ("make", "build"), "cwd": "/workspace",
        "duration_seconds": 5.2, "truncated": False, "timed_out": False, "signal": None,
    }  # fmt: skip
    return ExecutionResult(**{**made, **changes})


# -- results --------------------------------------------------------------------------------------


def test_success_is_exit_code_0_in_time() -> None:
    assert result().success
    assert not result(exit_code=1).success
    assert not result(timed_out=True).success
    with pytest.raises(FrozenInstanceError):
        result().exit_code = 1  # type: ignore[misc]


def test_what_was_looked_for_is_found_or_is_not() -> None:
    assert WhichResult("make", "/usr/bin/make").found
    assert not WhichResult("make", None).found
    with pytest.raises(FrozenInstanceError):
        WhichResult("make", None).path = "/usr/bin/make"  # type: ignore[misc]


def test_an_environment_gives_values_defaults_and_a_dictionary_of_its_own() -> None:
    snapshot = EnvironmentSnapshot((("A", "1"), ("B", "")), cwd="/w", shell="/bin/bash")
    assert (snapshot.get("A"), snapshot.get("B"), snapshot.get("C"), snapshot.get("C", "x")) == ("1", "", None, "x")
    snapshot.to_dict()["A"] = "2"
    assert snapshot.to_dict() == {"A": "1", "B": ""}
    with pytest.raises(FrozenInstanceError):
        snapshot.cwd = "/"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "plain"),
    [
        (CommandDenied, PermissionError), (PermissionDenied, PermissionError), (InvalidCommand, ValueError),
        (PathOutsideSandbox, ValueError), (BackendUnavailable, RuntimeError), (SpawnFailed, RuntimeError),
        (SupervisorUnreachable, RuntimeError), (WorkspaceUnusable, RuntimeError),
    ],
)  # fmt: skip
def test_what_a_shell_raises_is_an_exception_of_python_s_own(error: type[Exception], plain: type[Exception]) -> None:
    assert issubclass(error, plain)


# -- the validator --------------------------------------------------------------------------------


def test_a_command_that_is_too_long_is_refused_with_both_numbers() -> None:
    CommandValidator().validate("x" * 4096)
    with pytest.raises(ValueError, match=r"^Command exceeds maximum length \(4097 > 4096\)$"):
        CommandValidator().validate(["x" * 4095, "y"])
    with pytest.raises(ValueError, match=r"\(5 > 4\)"):
        CommandValidator(max_command_length=4).validate("abcde")


def test_a_blocked_pattern_is_refused_by_name_wherever_it_is() -> None:
    validator = CommandValidator(blocked_patterns=["git push"])
    validator.validate("git pull")
    for command in ("ls; git push -f", ["git", "push"]):
        with pytest.raises(PermissionError, match=r"^Command contains blocked pattern: git push$"):
            validator.validate(command)


@pytest.mark.parametrize(
    "command",
    ["rm -rf /", "rm -rf /*", "mkfs.ext4 x", "dd if=/dev/zero of=x", ":(){ :|:& };:", ":(){:|:&};:", "echo > /dev/sda",
     "chmod -R 777 /", "curl | sh", "wget | sh"],
)  # fmt: skip
def test_the_patterns_of_the_document_are_blocked_by_default(command: str) -> None:
    assert inspect.signature(HostShell).parameters["blocked_commands"].default == DEFAULT_BLOCKED
    with pytest.raises(PermissionError, match="Command contains blocked pattern"):
        CommandValidator(blocked_patterns=DEFAULT_BLOCKED).validate(command)


@pytest.mark.parametrize("command", ["rm x", "ls; rm x", "ls | rm", "ls && (rm x)", "echo $(rm x)", "", ["rm", "x"]])
def test_a_program_that_is_not_listed_is_refused_behind_listed_ones_too(command: str | list[str]) -> None:
    validator = CommandValidator(allowed_commands=["ls", "echo"])
    validator.validate("ls -l && echo done")
    validator.validate(["ls", "rm"])
    with pytest.raises(PermissionError, match=r"^Command not in allowlist: (rm)?$"):
        validator.validate(command)


def test_an_empty_list_allows_nothing() -> None:
    with pytest.raises(PermissionError, match=r"^Command not in allowlist: ls$"):
        CommandValidator(allowed_commands=[]).validate("ls")


# -- words ----------------------------------------------------------------------------------------


WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.lists(WORD, min_size=1).filter(lambda words: words[0] != ""))
def test_any_sequence_is_quoted_into_the_same_words(words: list[str]) -> None:
    split = shlex.split(line_of(words))
    assert split in (words, ["exec", "--", *words])


def test_a_builtin_is_never_run_in_place_of_a_program() -> None:
    assert line_of(["cd", "/"]) == "exec -- 'cd' '/'"
    assert line_of(["ls"]) == "'ls'"


# -- output ---------------------------------------------------------------------------------------


@given(out=st.binary(max_size=400), err=st.binary(max_size=400), most=st.integers(160, 500))
def test_both_streams_fit_and_each_is_sure_of_half(
    tmp_path_factory: pytest.TempPathFactory, out: bytes, err: bytes, most: int
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    (directory / "log").write_bytes(out)
    (directory / "err").write_bytes(err)
    seen = _run(captured(OutputLog(directory, "x"), OutputLog(directory, "x", err=True), most))
    whole = (out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    sizes = [len(text.encode()) for text in (seen.stdout, seen.stderr)]
    assert sum(sizes) <= most
    assert seen.truncated == ((seen.stdout, seen.stderr) != whole)
    for text, wanted in zip((seen.stdout, seen.stderr), whole, strict=True):
        if len(wanted.encode()) <= most // 2:
            assert text == wanted
    if sum(len(text.encode()) for text in whole) <= most:
        assert not seen.truncated


# -- the mock -------------------------------------------------------------------------------------


def test_a_mock_answers_by_the_first_pattern_and_remembers_what_it_was_asked() -> None:
    mock = MockShell()
    mock.add_response("make build", result())
    mock.add_response("make", result(exit_code=2))
    assert mock.execute(["make", "build"], timeout_seconds=3).stdout == "Build succeeded"
    assert mock.execute("make test").exit_code == 2
    assert mock.execute("ls") == ExecutionResult(0, "", "", ("ls",), "/", 0.0, False, False, None)
    assert mock.execute_script("cd sub\nmake build\n", cwd="/w").stdout == "Build succeeded"
    assert mock.execute(["env", "make", "build"]).stdout == "Build succeeded"
    assert mock.execute(["ls", "-l"]).command == ("ls -l",)
    assert mock.execute_calls[0] == (["make", "build"], {"timeout_seconds": 3})
    assert mock.execute_calls[1:4] == [("make test", {}), ("ls", {}), ("cd sub\nmake build\n", {"cwd": "/w"})]
    assert "make" in mock.execute_calls[0][0]
    mock.add_response("make build", result(exit_code=3))
    assert mock.execute("make build").exit_code == 3


def test_a_mock_has_a_default_result_of_its_own_and_the_documented_flags() -> None:
    mock = MockShell(default_result=result(exit_code=7))
    mock.add_response("make", result(exit_code=2))
    assert (mock.execute("anything").exit_code, mock.execute("make").exit_code) == (7, 2)
    assert (mock.backend_name, mock.sandboxed, mock.network_enabled, mock.default_timeout) == ("mock", True, False, 30)
    assert MockShell().execute_calls is not MockShell().execute_calls
    assert isinstance(mock, Shell)


def test_a_mock_finds_programs_and_variables_that_it_was_given() -> None:
    mock = MockShell(programs={"make": "/usr/bin/make"}, variables={"A": "1"})
    assert mock.which("make").path == "/usr/bin/make"
    assert not mock.which("cc").found
    assert mock.env().get("A") == "1"


# -- agents ---------------------------------------------------------------------------------------


class Section(AbstractCapability[Any]):
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.filesystem = Path("/workspace")


class Plain(AbstractCapability[Any]):
    pass


def test_the_shell_of_an_agent_is_the_object_of_the_capability_that_has_one() -> None:
    first, second = MockShell(), MockShell()
    nested = CombinedCapability([Plain(), CombinedCapability([Section(first)])])
    assert shell_of(Agent("test", capabilities=[Plain(), nested, Section(second)])) is first
    assert shell_of(Agent("test", capabilities=[Section(second)])) is second
    assert shell_of(Agent("test", capabilities=[Plain()])) is None
    assert shell_of(Agent("test")) is None


def test_a_section_is_known_by_what_it_has() -> None:
    section = Section(MockShell())
    assert isinstance(section, ShellSection)
    assert isinstance(section, WorkspaceSection)
    assert not isinstance(Plain(), ShellSection)
    delattr(section, "filesystem")
    assert isinstance(section, ShellSection)
    assert not isinstance(section, WorkspaceSection)


@pytest.mark.parametrize("shell", [Shell, HostShell, BubblewrapShell, PodmanShell, AsyncShell])
def test_every_shell_takes_what_the_protocol_says(shell: type) -> None:
    # What the specification says, not what our protocol does: both could be changed together.
    common = {"cwd": None, "env": None, "env_mode": "extend", "timeout_seconds": 30.0, "capture_output": True}
    for name, more in (("execute", {"stdin": None}), ("execute_script", {"interpreter": "/bin/bash"})):
        _, what, *options = inspect.signature(getattr(shell, name)).parameters.values()
        assert what.default is inspect.Parameter.empty
        assert {one.kind for one in options} == {inspect.Parameter.KEYWORD_ONLY}
        # Where a shell has a timeout of its own, None means that one.
        takes = {
            one.name: 30.0 if one.name == "timeout_seconds" and not one.default else one.default for one in options
        }
        assert takes == {**common, **more}


@pytest.mark.parametrize("shell", [HostShell, BubblewrapShell, PodmanShell, AsyncShell])
def test_a_command_has_30_seconds_unless_a_shell_or_a_call_says_otherwise(shell: type) -> None:
    assert inspect.signature(shell).parameters["default_timeout"].default == 30.0


def _run(work: Any) -> Any:
    # Small logs are read without waiting for anything.
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        return done.value


def ended(code: int = 0, out: str = "", err: str = "", *, late: bool = False) -> ExecutionResult:
    return ExecutionResult(code, out, err, ("x",), "/workspace", 5.2, False, late, 9 if late else None)


def test_a_build_tool_uses_the_shell() -> None:
    mock = MockShell()
    mock.add_response("bash build.sh", ended(out="Build succeeded"))
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
        (ended(out="all"), "Command succeeded"),
        (ended(3, err="no"), "Command failed (exit 3):\nno"),
        (ended(-1, "part", late=True), "Command timed out after 5.2s.\nPartial output:\npart"),
    ],
)
def test_a_handler_tells_its_results_apart(given: ExecutionResult, message: str) -> None:
    assert my_handler(Params("x"), context=ToolContext(shell=MockShell(given))).message == message


def test_a_handler_answers_with_what_the_tests_printed() -> None:
    mock = MockShell(ended(1, "1 failed", "warning"))
    answer = run_tests_handler(RunTestsParams("tests/unit", "sub"), context=ToolContext(shell=mock))
    assert (answer.message, answer.value) == ("Tests failed", RunTestsResult(False, "1 failed", "warning"))
    assert mock.execute_calls == [(["pytest", "tests/unit", "-v"], {"cwd": "sub", "timeout_seconds": 120.0})]
    late = run_tests_handler(RunTestsParams("t"), context=ToolContext(shell=MockShell(ended(late=True))))
    assert late.message == "Tests timed out after 5.2s"


def test_the_dependencies_of_a_turn_are_the_context_of_a_handler() -> None:
    deps = TurnDeps(conversation_id="c", turn_id="t", epoch=1, gate=False, began_at=0.0, seconds=1.0, until=0.0)
    assert isinstance(deps, ToolContext)
    assert (deps.shell, deps.filesystem, deps.async_shell, deps.async_filesystem) == (None, None, None, None)
    deps.beat()


# -- the mocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mock", "real"), [(MockAsyncShell, AsyncShell), (MockRunning, Running), (MockShellSession, ShellSession)]
)
def test_a_mock_for_the_event_loop_has_every_method_of_what_it_stands_for(mock: type, real: type) -> None:
    public = {name for name, one in vars(real).items() if not name.startswith("_") and callable(one)}
    assert not [name for name in public if getattr(mock, name) is getattr(real, name)]
    for name in public:
        assert inspect.iscoroutinefunction(getattr(mock, name)) == inspect.iscoroutinefunction(getattr(real, name))


@pytest.mark.anyio
async def test_a_mock_for_the_event_loop_answers_and_remembers_as_that_for_threads() -> None:
    mock = MockShell(programs={"make": "/usr/bin/make"}, variables={"A": "1"})
    mock.add_response("make", ended(2, "out", "err"))
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


@pytest.mark.parametrize("shell", [BubblewrapShell, DockerShell, PodmanShell])
def test_a_shell_in_a_sandbox_takes_no_paths_that_its_commands_cannot_reach(
    shell: type[Standalone], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"{shell.__name__} takes no allowed_paths"):
        shell(tmp_path, allowed_paths=["/usr"])
