"""Grants: only policy makes them, each for exactly one proposal, and a proposal binds everything."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.host import HostBackend
from shellback.exec.core import runner
from shellback.exec.core.display import request_lines
from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import DETACHED, READ_ONLY, SHELL, CommandSpec, WindowSize
from shellback.exec.policy import binding
from shellback.exec.policy.commands import check_yield_after, command_spec, proposal_for
from shellback.exec.policy.judge import judged, shown_of
from shellback.exec.policy.operands import named_in
from shellback.exec.policy.policy import (
    Approval,
    Grant,
    Proposal,
    Verdict,
    grant,
    grant_by_operator,
)
from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.wire.sandbox import Bounds
from tests.judged import around

PROPOSAL = Proposal("execute", {"command": "make", "cwd": "/ws", "env": {"A": "1"}, "timeout_s": 30.0, "stdin": None})


@pytest.mark.parametrize(
    ("tool", "asks"),
    [
        *((tool, False) for tool in ("process_list", "process_poll", "process_log", "process_screen")),
        *((tool, False) for tool in ("ls", "read_file", "glob", "grep")),
        *((tool, True) for tool in ("execute", "execute_pty", "process_write", "process_send_keys", "process_resize")),
        *((tool, True) for tool in ("process_kill", "shell_execute", "evaluate_python", "write_file", "edit_file")),
        *((tool, True) for tool in ("rm", "not_in_the_table", "")),
    ],
)
def test_reading_tools_pass_and_all_else_asks(tool: str, asks: bool) -> None:
    assert tool_named(tool).asks is asks


def test_a_grant_cannot_be_constructed() -> None:
    with pytest.raises(TypeError, match="only policy makes a Grant"):
        Grant(object(), PROPOSAL, "because", "nobody")


@pytest.mark.parametrize(
    "facts",
    [
        {"command": "make "},
        {"cwd": "/ws/sub"},
        {"env": {"A": "2"}},
        {"env": {}},
        {"timeout_s": 31.0},
        {"stdin": ""},
        {"network": False},
    ],
)
def test_a_grant_is_for_nothing_but_its_proposal(facts: dict[str, Any]) -> None:
    made = grant(PROPOSAL, Verdict(decision="ask", reason="table"), Approval("a1", PROPOSAL.digest))
    assert made is not None
    assert made.covers(PROPOSAL)
    assert made.approval_id == "a1"
    assert not made.covers(Proposal("execute", {**PROPOSAL.facts, **facts}))
    assert not made.covers(Proposal("execute_pty", PROPOSAL.facts))


def test_the_order_of_facts_does_not_matter() -> None:
    assert Proposal("execute", dict(reversed(list(PROPOSAL.facts.items())))).digest == PROPOSAL.digest


def test_what_asks_has_no_grant_without_an_approval() -> None:
    assert grant(PROPOSAL, Verdict(decision="ask", reason="table"), None) is None


def test_an_approval_of_something_else_is_refused() -> None:
    with pytest.raises(CommandDenied, match="not what was approved"):
        grant(PROPOSAL, Verdict(decision="ask", reason="table"), Approval("a1", "0" * 64))


def test_a_denial_stays_one_even_with_an_approval() -> None:
    with pytest.raises(CommandDenied, match="refused by policy: listed"):
        grant(PROPOSAL, Verdict(decision="deny", reason="listed"), Approval("a1", PROPOSAL.digest))


def test_the_operators_grant_says_so() -> None:
    assert grant_by_operator(PROPOSAL, "bench").reason == "operator: bench"


def test_every_tool_has_the_category_of_its_specification() -> None:
    """004 names those of `execute*` and `process_*`; the tools of 001 are about a workspace."""
    found = {tool.name: tool.metadata for tool in tools().values()}
    shells = ("execute", "execute_pty", "run_shell", "shell_session", "shell")
    assert {tool: {"category": "exec"} for tool in shells}.items() <= found.items()
    files = ("shell_execute", "evaluate_python", "ls", "read_file", "glob", "grep", "write_file", "edit_file", "rm")
    assert {tool: {"category": "workspace"} for tool in files}.items() <= found.items()
    rest = found.keys() - {*shells, *files}
    assert all(tool.startswith("process_") and found[tool] == {"category": "process"} for tool in rest)


def made(workspace: Path, **args: Any) -> Any:
    given: dict[str, Any] = {"command": "true", "workspace": workspace, "limits": Limits()} | args
    return command_spec(**given)


@pytest.mark.parametrize(
    ("args", "timeout"),
    [
        ({}, 30.0),
        ({"timeout": 0.1}, 0.1),
        ({"timeout": 600}, 600.0),
        ({"background": True}, 0.0),
        ({"background": True, "timeout": 0}, 0.0),
        ({"background": True, "timeout": 604800}, 604800.0),
        ({"limits": Limits(foreground_timeout_s=5)}, 5.0),
        ({"limits": Limits(foreground_timeout_max_s=10)}, 10.0),
    ],
)
def test_timeouts(tmp_path: Path, args: dict[str, Any], timeout: float) -> None:
    assert made(tmp_path, **args).timeout_s == timeout


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 0.09, -5])
def test_timeouts_out_of_range_name_the_range(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InvalidCommand, match=r"a foreground command takes 0\.1 to 600 s, or background=true"):
        made(tmp_path, timeout=timeout)


def test_stdin_is_nothing_text_or_open(tmp_path: Path) -> None:
    assert made(tmp_path).stdin is None
    assert made(tmp_path, stdin="ä").stdin == "ä".encode()
    assert made(tmp_path, keep_stdin_open=True).stdin == b""


def test_a_lifetime_is_one_of_three_and_that_of_the_conversation_unless_said(tmp_path: Path) -> None:
    assert made(tmp_path).lifetime == "conversation"
    assert made(tmp_path, lifetime="turn").lifetime == "turn"
    with pytest.raises(InvalidCommand, match="lifetime is 'system'; it must be one of turn, conversation, detached"):
        made(tmp_path, lifetime="system")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    both: list[dict[str, Any]] = [{"command": "echo \ud800"}, {"stdin": "\ud800"}]
    for args in both:
        with pytest.raises(InvalidCommand, match="lone surrogate"):
            made(tmp_path, **args)


def test_settings_may_lower_a_bound_and_never_raise_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidCommand, match="has 5 characters; at most 4"):
        made(tmp_path, command="12345", limits=Limits(command_chars=4))
    wrongs: list[dict[str, Any]] = [
        {"command_chars": 5000},
        {"foreground_timeout_max_s": 601},
        {"background_timeout_max_s": 1e9},
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="it must be above 0 and at most"):
            Limits(**wrong)


def test_yield_after_is_bounded() -> None:
    check_yield_after(None, background=True, limits=Limits())
    check_yield_after(600, background=False, limits=Limits())
    with pytest.raises(InvalidCommand, match="at most 600 s"):
        check_yield_after(601, background=False, limits=Limits())


def test_another_directory_under_the_same_name_is_another_proposal(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    spec, backend = made(tmp_path, cwd="sub"), HostBackend(tmp_path)
    before = proposal_for(spec, backend).digest
    (tmp_path / "sub").rename(tmp_path / "old")
    (tmp_path / "sub").mkdir()
    assert proposal_for(spec, backend).digest != before


def test_a_directory_that_has_gone_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    spec = made(tmp_path, cwd="sub")
    (tmp_path / "sub").rmdir()
    with pytest.raises(InvalidCommand, match="cannot be used: No such file"):
        proposal_for(spec, HostBackend(tmp_path))


SPEC: dict[str, Any] = {
    "command": "bash ./x.sh",
    "cwd": "/",
    "env": {"A": "1"},
    "timeout_s": 1.0,
    "stdin": b"a",
    "keep_stdin_open": True,
    "pty": WindowSize(1, 2),
    "background": True,
    "separate_stderr": True,
    "profile": READ_ONLY,
    "log_bytes": 1,
    "env_mode": "replace",
    "grace_s": 0.5,
    "lifetime": DETACHED,
    "on_exit": "never",
    "kind": SHELL,
    "login": True,
}
"""Another value for each field of a command."""


def bound_spec(workspace: Path, command: str = "bash x.sh", **more: Any) -> CommandSpec:
    return command_spec(command=command, workspace=workspace, limits=Limits(), **more)


def bound(workspace: Path, command: str, **more: Any) -> binding.Binding:
    return binding.read(command, cwd=str(workspace), workspace=workspace, **more)


def names(workspace: Path, command: str) -> set[str]:
    return {str(row["name"]) for row in bound(workspace, command).scripts}


def held(workspace: Path, command: str) -> set[str]:
    return {str(row["name"]) for row in bound(workspace, command).scripts if row["held"]}


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    for name in ("x.sh", "y.sh", "run.py", "hook.js", "main.js", "data.csv", "Makefile", "tools/run.py", "sub/x.sh"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path.resolve()


def test_every_field_of_a_command_is_bound(ws: Path) -> None:
    assert set(SPEC) == {field.name for field in fields(CommandSpec)}
    spec, backend = bound_spec(ws), BubblewrapBackend(ws)
    plain = proposal_for(spec, backend)
    assert plain.digest == proposal_for(spec, backend).digest
    allowed = grant_by_operator(plain, "test")
    for name, value in SPEC.items():
        other = proposal_for(replace(spec, **{name: value}), backend)
        assert not allowed.covers(other), name
        with pytest.raises(CommandDenied, match="not what was approved"):
            grant(other, Verdict(decision="ask", reason=""), Approval("a1", plain.digest))


def test_every_fact_is_bound(ws: Path) -> None:
    plain = proposal_for(bound_spec(ws), BubblewrapBackend(ws))
    assert {"executables", "scripts", "mounts", "limits", "network", "secrets", "uid", "lifetime"} <= set(plain.facts)
    for name in plain.facts:
        assert replace(plain, facts={**plain.facts, name: "other"}).digest != plain.digest, name
        rest = {key: value for key, value in plain.facts.items() if key != name}
        assert replace(plain, facts=rest).digest != plain.digest, name


def test_where_it_runs_is_bound(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    others: dict[str, Any] = {
        "backend": HostBackend(ws),
        "fence": HostBackend(ws, fence=True),
        "network": BubblewrapBackend(ws, network=True),
        "uid": BubblewrapBackend(ws, exec_uid=1234),
        "readable": BubblewrapBackend(ws, readable=[Path("/srv")]),
        "hidden": BubblewrapBackend(ws, hidden=[ws / "sub"]),
        "memory": BubblewrapBackend(ws, bounds=Bounds(memory_bytes=1 << 30)),
        "processes": BubblewrapBackend(ws, bounds=Bounds(processes=3)),
        "scratch": BubblewrapBackend(ws, scratch_bytes=4096),
    }
    made = {name: proposal_for(bound_spec(ws), one).digest for name, one in others.items()}
    made["plain"] = proposal_for(bound_spec(ws), BubblewrapBackend(ws)).digest
    assert len(set(made.values())) == len(made), made


def test_content_is_bound_whatever_else_stays(ws: Path) -> None:
    spec, backend = bound_spec(ws), HostBackend(ws)
    before, status = proposal_for(spec, backend), (ws / "x.sh").stat()
    (ws / "x.sh").write_text("# y.sh\n")
    os.utime(ws / "x.sh", ns=(status.st_atime_ns, status.st_mtime_ns))
    now = proposal_for(spec, backend)
    assert now.digest != before.digest
    assert binding.changed(before.facts, now.facts) == "x.sh"


def test_another_file_with_the_same_bytes_is_the_same(ws: Path) -> None:
    before = proposal_for(bound_spec(ws), HostBackend(ws)).digest
    (ws / "new").write_bytes((ws / "x.sh").read_bytes())
    (ws / "new").rename(ws / "x.sh")
    assert proposal_for(bound_spec(ws), HostBackend(ws)).digest == before


def test_where_a_symlink_leads_is_bound(ws: Path) -> None:
    (ws / "y.sh").write_bytes((ws / "x.sh").read_bytes())
    (ws / "link").symlink_to("x.sh")
    before = proposal_for(bound_spec(ws, "bash link"), HostBackend(ws))
    (ws / "link").unlink()
    (ws / "link").symlink_to("y.sh")
    assert proposal_for(bound_spec(ws, "bash link"), HostBackend(ws)).digest != before.digest


def test_a_script_that_came_or_went_is_a_change(ws: Path) -> None:
    before = proposal_for(bound_spec(ws, "bash later.sh"), HostBackend(ws))
    (ws / "later.sh").write_text("")
    assert proposal_for(bound_spec(ws, "bash later.sh"), HostBackend(ws)).digest != before.digest


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("./x.sh", {"./x.sh"}),
        ("bash x.sh data.csv", {"x.sh", "data.csv"}),
        ("bash -eu x.sh", {"x.sh"}),
        ("python3 -u -W ignore run.py", {"run.py"}),
        ("python3.11 run.py --in=data.csv", {"run.py", "data.csv"}),
        ("python3 -m tools.run", {"tools/run.py"}),
        ("node -r ./hook.js main.js", {"./hook.js", "main.js"}),
        ("node --require=./hook.js main.js", {"./hook.js", "main.js"}),
        ("make test", {"Makefile"}),
        ("make -C sub; make -f data.csv", {"Makefile", "data.csv"}),
        (". ./x.sh", {"./x.sh"}),
        ("source x.sh", {"x.sh"}),
        ("sh -c './x.sh; sh -c \"python3 run.py\"'", {"./x.sh", "run.py"}),
        ("env A=1 nice -n 3 timeout 5 ./x.sh", {"./x.sh"}),
        ("xargs bash x.sh", {"x.sh"}),
        ("find . -exec bash x.sh {} +", {"x.sh"}),
        ("cd sub && bash x.sh", {"x.sh"}),
        ("for f in x.sh y.sh; do bash $f; done", {"x.sh", "y.sh"}),
        ("bash *.sh", {"*.sh"}),
        ("cat x.sh | bash", {"x.sh"}),
        ("bash < x.sh", {"x.sh"}),
        ("echo $(./x.sh)", {"./x.sh"}),
        ('x=1; "$x" y.sh', {"y.sh"}),
        ("if true; then bash x.sh; fi", {"x.sh"}),
        ("bash <<< 'true' ; unknown-program data.csv", {"data.csv"}),
        ("awk -f x.sh data.csv", {"x.sh"}),
        ("cat data.csv", set[str]()),
        ("grep -r x.sh .", set[str]()),
        ("rm x.sh; cp y.sh z.sh; git add run.py", set[str]()),
        ("true", set[str]()),
    ],
)
def test_what_a_line_runs_is_bound(ws: Path, command: str, expected: set[str]) -> None:
    assert names(ws, command) == expected


def test_each_script_of_a_pattern_is_bound(ws: Path) -> None:
    assert {Path(row["path"]).name for row in bound(ws, "bash *.sh").scripts} == {"x.sh", "y.sh"}
    assert {row["path"] for row in bound(ws, "cd sub && bash x.sh").scripts} == {f"{ws}/x.sh", f"{ws}/sub/x.sh"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("bash x.sh data.csv", {"x.sh"}),
        ("chmod +x x.sh && ./x.sh", set[str]()),
        ("echo true > x.sh; bash x.sh", set[str]()),
        ("bash y.sh && bash x.sh", {"x.sh", "y.sh"}),
        ("black run.py && python3 run.py", set[str]()),
        ("cat x.sh; bash x.sh", {"x.sh"}),
        ("make", set[str]()),
    ],
)
def test_what_the_line_itself_may_change_is_not_held(ws: Path, command: str, expected: set[str]) -> None:
    assert held(ws, command) == expected


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("PATH=.:$PATH; x.sh", "PATH is set"),
        ("for f in $(ls); do bash $f; done", "what a variable in it stands for is not bound"),
        ("find . -name '*.sh' -exec bash {} ;", "find: the files that it finds"),
        ("bash big", "big: larger than 16 MiB"),
        ("bash /run/x.sh", "in a directory of the sandbox's own"),
    ],
)
def test_what_is_not_bound_is_said(ws: Path, command: str, said: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with (ws / "big").open("wb") as file:
        file.truncate(binding.FILE_BYTES + 1)
    if "/run/" in command:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        (elsewhere / "x.sh").write_text("")
        command, private = f"bash {elsewhere}/x.sh", [str(elsewhere)]
    else:
        private = []
    assert any(said in one for one in bound(ws, command, private=private).unbound)


def test_what_is_too_large_is_bound_by_its_identity(ws: Path) -> None:
    with (ws / "big").open("wb") as file:
        file.truncate(binding.FILE_BYTES + 1)
    before = bound(ws, "bash big").scripts
    os.utime(ws / "big", (1, 1))
    assert bound(ws, "bash big").scripts != before
    assert before[0]["sha256"] is None


def test_there_is_a_bound_on_how_much_is_read(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "FILES", 1)
    found = bound(ws, "bash x.sh; bash y.sh")
    assert [row["sha256"] is not None for row in found.scripts] == [True, False]
    assert any("more than 1 files" in one for one in found.unbound)


def test_a_pipe_in_the_workspace_keeps_nobody(ws: Path) -> None:
    os.mkfifo(ws / "pipe")
    assert bound(ws, "bash pipe").scripts == ()


def test_programs_are_bound_by_path_and_content(ws: Path) -> None:
    rows = {row["name"]: row for row in bound(ws, "sort x.sh | python3 -V; no-such-program").executables}
    assert rows["sort"]["path"] == os.path.realpath(runner.found("sort") or "")
    assert len(rows["sort"]["sha256"]) == 64
    assert rows["no-such-program"]["path"] is None
    assert runner.found("/bin/sh") is None


def test_what_may_write_nothing_is_bound_without_its_files(ws: Path) -> None:
    facts = proposal_for(replace(bound_spec(ws, "cat x.sh"), profile=READ_ONLY), BubblewrapBackend(ws)).facts
    assert facts["executables"] == facts["scripts"] == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("shadow", "sub/shadow", "sub/f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def named(tree: Path, command: str) -> list[set[str]]:
    """The files that each command of a line is said to name; those of the workspace relative to it."""
    segments = judged(command, around(tree)).segments
    return [{path.removeprefix(f"{tree}/") for path in one.paths} for one in segments]


@pytest.mark.parametrize(
    ("command", "opens"),
    [
        ("cd /etc && cat shadow", {"/etc/shadow"}),
        ("cd /etc && ls && cat shadow", {"/etc/shadow"}),
        ("cd /etc; cat shadow", {"/etc/shadow", "shadow"}),
        ("cd /etc || cat shadow", {"/etc/shadow", "shadow"}),
        ("! cd /etc && cat shadow", {"/etc/shadow", "shadow"}),
        ("builtin cd /etc && cat shadow", {"/etc/shadow"}),
        ("pushd /etc && cat shadow", {"/etc/shadow"}),
        ("cd sub && cat shadow", {"sub/shadow"}),
        ("cd sub && cd .. && cat shadow", {"shadow"}),
        ("cd sub && cd /etc && cat shadow", {"/etc/shadow"}),
        ("(cd /etc; ls); cat shadow", {"shadow"}),
        ("(cd /etc && cat shadow)", {"/etc/shadow"}),
        ("ls | cd sub && cat shadow", {"shadow", "sub/shadow"}),
        ("cat $(cd sub && echo f) && cat shadow", {"shadow", "sub/shadow"}),
        ("(cd sub; cat <<')'\n;\n)\ncat shadow)", {"shadow", "sub/shadow"}),
        ("cd nowhere && cat shadow", {"nowhere/shadow"}),
        ("cd /etc && rm shadow", {"/etc/shadow"}),
        ("cd sub && rm f", {"sub/f"}),
        ("cd sub && echo x > new", {"sub/new"}),
        ("cd /etc && rm ./new", {"/etc/new"}),
        ("cd /etc && rm ~/new", {"/home/agent/new"}),
    ],
)
def test_a_command_behind_cd_names_what_its_shell_would_open(tree: Path, command: str, opens: set[str]) -> None:
    assert named(tree, command)[-1] == opens


@pytest.mark.parametrize("move", ["cd $X", "cd -", "cd", "popd", "eval 'cd /etc'", ". ./env", "cd a b"])
def test_where_nobody_knows_the_directory_no_file_of_the_workspace_is_named(tree: Path, move: str) -> None:
    judgement = judged(f"{move} && cat shadow", around(tree))
    last = judgement.segments[-1]
    assert last.paths == ()
    assert "in which directory" in last.reason


@pytest.mark.parametrize(
    "command",
    [
        "python3 -c 'import os\nprint(os.listdir(\"/etc\"))\n\tprint(os)'",
        "cd sub && python3 -c 'import os\nprint(os)\nopen(\"/etc/x\")'",
        "bash -c 'cd /etc; cat print(os)'",
        'python3 - <<E\nimport os\nprint("$HOME", print(os))\nE',
        "echo \"$(python3 -c 'import os\nprint(os)')\"",
    ],
)
def test_a_script_stands_once_in_a_request(tree: Path, command: str) -> None:
    told = shown_of(judged(command, around(tree)))
    lines = request_lines({"command": command, **told, "unbound": list(named_in(command).unknown)})
    text = "\n".join(lines)
    assert text.count("print(os)") == 1
    assert r"\x0a" not in text


@pytest.mark.parametrize("command", ["find . -exec", "find . -exec ;", "find . -ok +", "fd -x", "fd --exec-batch"])
def test_a_search_that_is_given_no_command_to_run_names_none(command: str) -> None:
    assert list(named_in(command).files) == []
