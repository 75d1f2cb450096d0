"""What `make figures` counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.figures import ROOT, branches_on

TREE = {
    "app/__init__.py": "",
    "app/log.py": "import logging\n",
    "app/exec/__init__.py": "",
    "app/exec/face.py": "from shellback.exec.tools import calls\n",
    "app/exec/tools/__init__.py": "",
    "app/exec/tools/calls.py": 'import shellback.exec.wire.frame\nimport shellback.log\n\nBOTH = {"execute", "ls"}\n',
    "app/exec/tools/more.py": 'from shellback.exec.tools import calls\nfrom shellback.exec.wire import frame\n',
    "app/exec/wire/__init__.py": "",
    "app/exec/wire/frame.py": "",
    "app/exec/classify/__init__.py": "",
    "app/exec/classify/git.py": 'LIST = "ls" == "x"\n',
    "tests/test_it.py": "import app\n\n",
    "docs/agents.md": "| `execute` | `command` | yes |\n| `ls` | `path` | no |\n| `other` | nothing |\n",
}  # fmt: skip


@pytest.fixture
def figures(tmp_path: Path) -> dict[str, Any]:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "shellback").symlink_to("app")
    (tmp_path / "app/migrations").symlink_to("../tests")
    command = [sys.executable, "-m", "tests.figures", "--json", str(tmp_path)]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True).stdout)


def test_a_tree_is_counted(figures: dict[str, Any]) -> None:
    packages = figures.pop("packages")
    assert figures == {
        "lines": 9,
        "modules": 11,
        "lines of tests": 2,
        "modules of tests": 1,
        "deepest import chain": 3,
        "branches on tool names": 1,
        "files with such branches": 1,
        "branches": {"app/exec/tools/calls.py": [4]},
    }
    assert packages == {
        "app": {
            "packages": 1, "loose modules": 1, "layers": 2, "imports between them": 1, "module by module": 1,
            "lines": {"exec": 8, "log": 1},
        },
        "app/exec": {
            "packages": 3, "loose modules": 1, "layers": 3, "imports between them": 2, "module by module": 3,
            "lines": {"tools": 6, "classify": 1, "face": 1, "wire": 0},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tool == 'ls'", 1),
        ("tool != other.SHELL == 'ls'", 1),
        ("tool in {'ls', 'execute'}", 1),
        ("tool not in ('ls', 'execute')", 1),
        ("'ls' in tools", 1),
        ("match tool:\n case 'ls' | 'execute': pass\n case 'find': pass", 1),
        ("TABLE = {'ls': 1, 'execute': 2}", 1),
        ("TABLE: Final = frozenset({'ls'})", 1),
        ("TABLE = frozenset(['ls'])", 1),
        ("TABLE = ('ls', 'execute')", 1),
        ("run({'ls': 1}[tool])", 1),
        ("program in {'ls', 'find'}", 0),
        ("program == 'find'", 0),
        ("WORDS = ('ls', path)", 0),
        ("TABLE = {'ls': 1, name: 2}", 0),
        ("TOOL = 'ls'", 0),
        ("run('ls')", 0),
        ("EMPTY = {}", 0),
    ],
)
def test_what_is_a_branch_on_names_of_tools(text: str, found: int) -> None:
    assert len(list(branches_on(text, {"ls", "execute"}))) == found
