"""What a person is told of a command: the files that its shell would open, and a script once."""

from __future__ import annotations

from pathlib import Path

import pytest

from shellback.exec.core.display import request_lines
from shellback.exec.core.secrets import Secrets
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.judge import judged, shown_of
from shellback.exec.policy.operands import named_in


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("shadow", "sub/shadow", "sub/f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def around(tree: Path) -> Surroundings:
    return Surroundings(cwd=tree, allowed=(tree,), secret=Secrets(()), home=Path("/home/agent"))


def names(tree: Path, command: str) -> list[set[str]]:
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
    assert names(tree, command)[-1] == opens


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
