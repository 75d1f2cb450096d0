"""What a proposal binds: every field of the call, where it runs, and the content of what it runs."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import CommandDenied
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import DETACHED, READ_ONLY, SHELL, CommandSpec, WindowSize
from shellback.exec.policy import binding
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.policy import Approval, Verdict, grant, grant_by_operator
from shellback.exec.wire.sandbox import Bounds

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


def made(workspace: Path, command: str = "bash x.sh", **more: Any) -> CommandSpec:
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
    spec, backend = made(ws), BubblewrapBackend(ws)
    plain = proposal_for(spec, backend)
    assert plain.digest == proposal_for(spec, backend).digest
    allowed = grant_by_operator(plain, "test")
    for name, value in SPEC.items():
        other = proposal_for(replace(spec, **{name: value}), backend)
        assert not allowed.covers(other), name
        with pytest.raises(CommandDenied, match="not what was approved"):
            grant(other, Verdict(decision="ask", reason=""), Approval("a1", plain.digest))


def test_every_fact_is_bound(ws: Path) -> None:
    plain = proposal_for(made(ws), BubblewrapBackend(ws))
    assert {"executables", "scripts", "mounts", "limits", "network", "secrets", "uid", "lifetime"} <= set(plain.facts)
    for name in plain.facts:
        assert replace(plain, facts={**plain.facts, name: "other"}).digest != plain.digest, name
        rest = {key: value for key, value in plain.facts.items() if key != name}
        assert replace(plain, facts=rest).digest != plain.digest, name


def test_where_it_runs_is_bound(ws: Path) -> None:
    others: dict[str, Any] = {
        "backend": HostBackend(ws),
        "network": BubblewrapBackend(ws, network=True),
        "uid": BubblewrapBackend(ws, exec_uid=1234, euid=lambda: 0),
        "readable": BubblewrapBackend(ws, readable=[Path("/srv")]),
        "hidden": BubblewrapBackend(ws, hidden=[ws / "sub"]),
        "memory": BubblewrapBackend(ws, bounds=Bounds(memory_bytes=1 << 30)),
        "processes": BubblewrapBackend(ws, bounds=Bounds(processes=3)),
        "scratch": BubblewrapBackend(ws, scratch_bytes=4096),
    }
    plain = proposal_for(made(ws), BubblewrapBackend(ws)).digest
    for name, other in others.items():
        assert proposal_for(made(ws), other).digest != plain, name


def test_a_fence_is_bound(ws: Path) -> None:
    assert proposal_for(made(ws), HostBackend(ws, fence=True)).digest != proposal_for(made(ws), HostBackend(ws)).digest


def test_content_is_bound_whatever_else_stays(ws: Path) -> None:
    spec, backend = made(ws), HostBackend(ws)
    before, status = proposal_for(spec, backend), (ws / "x.sh").stat()
    (ws / "x.sh").write_text("# y.sh\n")
    os.utime(ws / "x.sh", ns=(status.st_atime_ns, status.st_mtime_ns))
    now = proposal_for(spec, backend)
    assert now.digest != before.digest
    assert binding.changed(before.facts, now.facts) == "x.sh"


def test_another_file_with_the_same_bytes_is_the_same(ws: Path) -> None:
    before = proposal_for(made(ws), HostBackend(ws)).digest
    (ws / "new").write_bytes((ws / "x.sh").read_bytes())
    (ws / "new").rename(ws / "x.sh")
    assert proposal_for(made(ws), HostBackend(ws)).digest == before


def test_where_a_symlink_leads_is_bound(ws: Path) -> None:
    (ws / "y.sh").write_bytes((ws / "x.sh").read_bytes())
    (ws / "link").symlink_to("x.sh")
    before = proposal_for(made(ws, "bash link"), HostBackend(ws))
    (ws / "link").unlink()
    (ws / "link").symlink_to("y.sh")
    assert proposal_for(made(ws, "bash link"), HostBackend(ws)).digest != before.digest


def test_a_script_that_came_or_went_is_a_change(ws: Path) -> None:
    before = proposal_for(made(ws, "bash later.sh"), HostBackend(ws))
    (ws / "later.sh").write_text("")
    assert proposal_for(made(ws, "bash later.sh"), HostBackend(ws)).digest != before.digest


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
    assert rows["sort"]["path"] == os.path.realpath(binding.found("sort") or "")
    assert len(rows["sort"]["sha256"]) == 64
    assert rows["no-such-program"]["path"] is None


def test_what_may_write_nothing_is_bound_without_its_files(ws: Path) -> None:
    facts = proposal_for(replace(made(ws, "cat x.sh"), profile=READ_ONLY), BubblewrapBackend(ws)).facts
    assert facts["executables"] == facts["scripts"] == []
