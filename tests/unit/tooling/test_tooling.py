"""What benchmarks judge, `make quick` selects and `make figures` counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as program
from benchmarks.harness import Bench, Figure, Options, Reading, Result, judge, missed
from tests.figures import ROOT, branches_on
from tests.quick import selected
from tests.supervisors import raising

QUICK = Figure(name="quick", says="how quick", compare="ratio", limit=1.5)
MANY = Figure(name="many", says="how many", unit="/s", limit=400.0, at_least=True)
SHOWN = Figure(name="shown", says="only printed")


def bench(*figures: Figure) -> Bench:
    def run(_: Options) -> Mapping[str, Reading]:
        raise NotImplementedError

    return Bench(name="bench", figures=figures, run=run)


def readings_of(*given: Mapping[str, Reading]) -> Callable[[], Mapping[str, Reading]]:
    return iter(given).__next__


@pytest.mark.parametrize(
    ("figure", "reading", "ok"),
    [
        (QUICK, Reading(measured=3.0, baseline=2.0), True),
        (QUICK, Reading(measured=3.1, baseline=2.0), False),
        (MANY, Reading(measured=400.0), True),
        (MANY, Reading(measured=399.0), False),
        (Figure(name="late", says="", compare="difference", limit=1.0), Reading(measured=6.0, baseline=5.0), True),
        (Figure(name="late", says="", compare="difference", limit=1.0), Reading(measured=6.5, baseline=5.0), False),
        (replace(QUICK, scaled=True), Reading(measured=3.1, baseline=2.0, floor=1.0), False),
        (replace(QUICK, scaled=True), Reading(measured=6.0, baseline=2.0, floor=3.2), True),
        (replace(MANY, scaled=True), Reading(measured=200.0, floor=3.2), True),
        (replace(MANY, scaled=True), Reading(measured=199.0, floor=3.2), False),
        (SHOWN, Reading(measured=1e9), True),
    ],
)
def test_a_reading_keeps_its_limit_or_not(figure: Figure, reading: Reading, ok: bool) -> None:
    result = Result(figure)
    result.take(reading)
    assert result.ok is ok


def test_the_best_of_three_repeats_decides() -> None:
    slow, slower = Reading(measured=1.8, baseline=1.0), Reading(measured=2.0, baseline=1.0)
    (result,) = judge(bench(QUICK), readings_of({"quick": slower}, {"quick": slow}, {"quick": slower}))
    assert (result.best, result.all) == (slow, [slower, slow, slower])
    assert missed([result]) == ["quick"]


def test_a_benchmark_that_fails_misses_all_its_figures() -> None:
    assert missed(judge(bench(QUICK, SHOWN), raising(RuntimeError("no room")))) == ["quick", "shown"]


def test_a_figure_that_was_not_measured_is_named_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = Result(MANY)
    fine.take(Reading(measured=500.0))
    file = tmp_path / "new" / "results.json"
    assert program.finish([fine, Result(QUICK)], Options(quick=True), file) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["MISSED: quick"]
    assert "QUICK" in said.out
    written = json.loads(file.read_text())
    assert (written["missed"], written["quick"], len(written["figures"])) == (["quick"], True, 2)


TESTS = {
    "integration/test_core.py": "from shellback.exec.core.model import Session",
    "integration/test_core_too.py": "from shellback.exec.core import model",
    "integration/test_rules.py": "import shellback.exec.policy.rules.file",
    "integration/test_settings.py": "from shellback.settings import Settings",
    "integration/test_helped.py": "from tests.helper import help",
    "unit/test_core.py": "from shellback.exec.core.model import Session",
    "helper.py": "from shellback.exec.core.model import Session",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("app/exec/core/model.py", ["core", "core_too"]),
        ("app/exec/core/__init__.py", ["core", "core_too"]),
        ("app/exec/policy/judge.py", []),
        ("app/exec/policy/rules/rule.py", ["rules"]),
        ("app/settings.py", ["settings"]),
        ("app/log.py", []),
        ("tests/helper.py", ["helped"]),
        ("tests/integration/test_rules.py", ["rules"]),
        ("tests/unit/test_core.py", []),
        ("docs/design.md", []),
    ],
)
def test_a_changed_file_selects_what_imports_from_its_package(root: Path, file: str, names: list[str]) -> None:
    assert selected(root, [Path(file)]) == [f"tests/integration/test_{name}.py" for name in names]


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
