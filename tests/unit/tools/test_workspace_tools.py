"""`shell_execute` and `evaluate_python` before they start anything, what they say of an end, and marks of files."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CommandSpec, Evidence, SessionEnd, SessionState
from shellback.exec.log.output import Slice
from shellback.exec.tools import short_commands as short
from shellback.exec.tools.capability import ExecCapability
from shellback.exec.tools.file_tools import looks
from shellback.exec.tools.file_tools.marks import marked
from shellback.exec.tools.toolset import ExecTools
from tests.sessions import a_session

END = SessionEnd(state=SessionState.EXITED, exit_code=0, duration_s=1.5)
SESSION = a_session(id="x1", separate_stderr=True, state=END.state, end=END)
OUT, ERR = (Slice(text=text, bytes_total=2, bytes_shown=2, end=2) for text in ("o\n", "e\n"))


def engine_of(workspace: Path) -> Any:
    return SimpleNamespace(workspace=workspace, backend=SimpleNamespace(inner="/workspace"), limits=Limits())


def spec(tmp_path: Path, *command: str, **more: Any) -> CommandSpec:
    args = {"command": command, "cwd": None, "env": None, "stdin": None, "timeout_seconds": 30.0, **more}
    return short.shell_spec(engine_of(tmp_path), args)


def evaluated(tmp_path: Path, code: str, **more: Any) -> CommandSpec:
    return short.python_spec(engine_of(tmp_path), {"code": code, "reads": None, "writes": {}, "globals": {}, **more})


@pytest.mark.parametrize(
    "word", ["$HOME", "a b", "'", "''\\''", "*", "A=1", "if", "~", "", "-n", "\n", "`id`", "!!", "#"]
)
def test_a_word_is_that_word_whatever_a_shell_would_make_of_it(tmp_path: Path, word: str) -> None:
    line = spec(tmp_path, "printf", "%s|", word, "end").command
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"{word}|end|"


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ([], {}, "empty"),
        ([""], {}, "empty"),
        (["echo", "ä"], {}, "word 1 of command is not ASCII"),
        (["echo", "a\0b"], {}, "NUL"),
        (["echo", "x" * 4_092], {}, "4,097 characters together; at most 4,096"),
        (["x"], {"cwd": ".."}, "'.' or '..'"),
        (["x"], {"cwd": "a/../b"}, "'.' or '..'"),
        (["x"], {"cwd": "/workspace/./a"}, "'.' or '..'"),
        (["x"], {"cwd": "missing"}, "does not exist"),
        (["x"], {"env": {"Ä": "1"}}, "not ASCII"),
        (["x"], {"env": {"A": "ä"}}, "not ASCII"),
        (["x"], {"env": {"A" * 81: "1"}}, "81 characters; at most 80"),
        (["x"], {"env": {f"A{n}": "1" for n in range(65)}}, "65 variables; at most 64"),
        (["x"], {"env": {"LD_PRELOAD": "x"}}, "LD_PRELOAD"),
        (["x"], {"stdin": "x" * 48_001}, "48,001 characters; at most 48,000"),
        (["x"], {"timeout_seconds": float("nan")}, "no number"),
    ],
)
def test_what_shell_execute_does_not_accept_names_the_bound(
    tmp_path: Path, command: list[str], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidCommand, match=said.replace("(", r"\(")):
        spec(tmp_path, *command, **more)


def test_the_longest_command_and_input_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    made = spec(tmp_path, "echo", "x" * 4_091, stdin="ä" * 48_000, cwd="/workspace/sub")
    assert made.stdin == ("ä" * 48_000).encode()
    assert (made.cwd, made.separate_stderr) == (str(tmp_path / "sub"), True)


@pytest.mark.parametrize("cwd", ["/etc", "/workspace-evil"])
def test_a_directory_outside_is_refused(tmp_path: Path, cwd: str) -> None:
    with pytest.raises(PathOutsideSandbox):
        spec(tmp_path, "x", cwd=cwd)


def test_a_link_out_of_the_workspace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(PathOutsideSandbox):
        spec(tmp_path, "x", cwd="out")


@pytest.mark.parametrize(
    ("given", "used"), [(0.0, 1.0), (-5.0, 1.0), (30.0, 30.0), (120.5, 120.0), (float("inf"), 120.0)]
)
def test_a_timeout_is_brought_into_what_is_possible(given: float, used: float) -> None:
    assert short.clamped(given, Limits()) == used


def test_an_operator_may_lower_what_is_possible() -> None:
    assert short.clamped(100.0, Limits(foreground_timeout_max_s=10.0)) == 10.0


@pytest.mark.parametrize("name", ["reads", "writes", "globals"])
def test_an_evaluation_takes_no_payload_and_names_what_to_use(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidCommand, match=f"{name} has to be empty here.*Use "):
        evaluated(tmp_path, "1", **{name: {"a": 1}})


def test_an_evaluation_has_no_bound_of_2000_characters_and_one_of_a_mebibyte(tmp_path: Path) -> None:
    made = evaluated(tmp_path, "#" * (1 << 20))
    assert (made.command, made.timeout_s, len(made.stdin or b"")) == ("'python3' '-'", 5.0, 1 << 20)
    for code, said in (
        ("#" * ((1 << 20) + 1), "1,048,577 bytes; at most 1,048,576"),
        (" \n", "empty"),
        ("\ud800", "surrogate"),
    ):
        with pytest.raises(InvalidCommand, match=said):
            evaluated(tmp_path, code)


def test_a_plain_end_has_the_promised_keys_and_no_other() -> None:
    assert short.result(SESSION, OUT, ERR) == {
        "exit_code": 0, "stdout": "o\n", "stderr": "e\n", "duration_ms": 1500, "timed_out": False,
    }  # fmt: skip
    dark = short.result(SESSION, OUT, ERR, captured=False)
    assert (dark["stdout"], dark["stderr"]) == ("capture disabled", "capture disabled")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (SessionEnd(state=SessionState.TIMED_OUT, signal=9), {"exit_code": 124, "timed_out": True}),
        (SessionEnd(state=SessionState.SIGNALED, signal=11), {"exit_code": None, "signal": 11, "session_id": "x1"}),
        (SessionEnd(state=SessionState.START_FAILED, errno=2), {"exit_code": 127, "state": "start_failed"}),
        (SessionEnd(state=SessionState.START_FAILED, errno=13), {"exit_code": 126}),
        (
            SessionEnd(state=SessionState.LOST, evidence=Evidence.MACHINE_REBOOTED),
            {"exit_code": None, "state": "lost", "evidence": "machine_rebooted"},
        ),
    ],
)
def test_another_end_is_told_as_what_it_is(end: SessionEnd, expected: dict[str, Any]) -> None:
    found = short.result(replace(SESSION, state=end.state, end=end), OUT, ERR)
    assert expected.items() <= found.items()


def test_what_is_cut_says_so() -> None:
    cut = Slice(text="o", bytes_total=90, bytes_shown=1, bytes_dropped=5, end=90)
    more = {"truncated": True, "bytes_total": 92, "bytes_dropped": 5, "session_id": "x1"}
    assert more.items() <= short.result(SESSION, cut, ERR).items()


def test_without_a_python_is_told_apart_from_a_program_that_says_so() -> None:
    gone = {"exit_code": 127, "stdout": "", "stderr": "bash: line 1: python3: command not found\n"}
    assert short.without_python(gone)
    assert not short.without_python({**gone, "stdout": "ran"})
    assert not short.without_python({**gone, "exit_code": 1})


def mark_of(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY)
    try:
        return marked(fd).mark
    finally:
        os.close(fd)


def test_a_mark_differs_where_anything_else_stands_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "f"
    file.write_text("one")
    marks = [mark_of(file), mark_of(tmp_path / "a")]
    file.write_text("two")
    marks += [mark_of(file), mark_of(tmp_path / "a")]
    (tmp_path / "a" / "g").touch()
    marks.append(mark_of(tmp_path / "a"))
    assert len(set(marks)) == len(marks)
    file.write_text("one")
    assert mark_of(file) == marks[0]


def test_a_person_is_shown_all_that_is_written_and_what_it_takes_the_place_of() -> None:
    text = "".join(f"{number}\n" for number in range(9_000))[:48_000]
    assert looks.shown_text(text)["content"] == text
    instead = {"content": "all of it"}
    diff = looks.shown_change(b"a\nb\nc\n", b"a\nB\nc", instead=instead)
    assert [*diff] == ["diff"]
    assert "-b\n-c\n+B\n+c\n\\ no line end here" in str(diff["diff"])
    # What no diff shows is shown by itself: binary, much that is taken away before it, a large file.
    for before, after in ((b"\0", b"x"), (b"x", b"\0"), (b"x\n" * 30_000, b"y"), (b"x" * 2_000_000, b"y")):
        change = looks.shown_change(before, after, instead=instead)
        assert str(change["diff"]).startswith("(not shown: ")
        assert change["content"] == "all of it"


def told(*, powered_by: str = "Podman", network: bool = False, preview: str = "", **more: Any) -> str | None:
    backend = SimpleNamespace(
        powered_by=powered_by, inner="/workspace", network=network, description="Commands run somewhere."
    )
    engine = SimpleNamespace(backend=backend, limits=Limits())
    instructions = more.pop("instructions", None)
    there = {"commands": True, "workspace": True, "sessions": False, "watches": False, "blocks": False, **more}
    asking = "A person approves.".format
    tools = ExecTools.__new__(ExecTools)
    parts = frozenset(part for part, on in there.items() if on)
    vars(tools).update(engine=engine, asking=asking, gate=bool, parts=parts)
    ctx: Any = SimpleNamespace(deps=None)
    capability = ExecCapability(tools, instructions=instructions, preview=preview)
    return asyncio.run(capability.get_instructions()(ctx))


def test_instructions_are_true_of_where_commands_run() -> None:
    podman = told() or ""
    assert podman.endswith(
        "Podman Workspace\n----------------\n"
        "You have access to an isolated Linux container powered by Podman. The `ls`, `read_file`, `write_file`, "
        "`edit_file`, `glob`, `grep`, and `rm` tools operate on `/workspace` inside the container; a person approves "
        "each change. The `evaluate_python` tool is a thin wrapper around `python3` (≤5 seconds); read and edit files "
        "directly from the workspace. `shell_execute` runs short commands (≤120 seconds) in the shared environment. "
        "No network access or privileged operations are available. Do not assume files outside `/workspace` exist."
    )
    assert told(powered_by="Docker") == podman.replace("Podman", "Docker")
    assert "No network" not in (told(network=True) or "")
    elsewhere = told(powered_by="") or ""
    assert "Podman" not in elsewhere
    assert "evaluate_python runs Python for at most 5 s" in elsewhere
    assert "evaluate_python" not in (told(workspace=False) or "")
    assert (told(preview="Mounted: docs") or "").endswith("\n\nMounted: docs")
    assert told(instructions="Be brief.") == "Be brief."
    for tool, given in (("process_watch", "watches"), ("shell_session", "sessions")):
        assert tool not in elsewhere
        there: dict[str, Any] = {given: True}
        assert tool in (told(**there) or "")
