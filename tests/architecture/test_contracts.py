"""Which module may import which: kept by the tree, and each contract seen to break when it is violated."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.supervisors import run_to_end

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

VIOLATIONS = [
    ("application layers", "storage/tables.py", "import shellback.work.queue.items"),
    ("application layers", "work/queue/items.py", "import shellback.settings"),
    ("application layers", "unheard_of.py", ""),
    ("exec layers", "exec/core/model.py", "import shellback.exec.engine.engine"),
    ("supervisor layers", "exec/supervisor/process/spawn.py", "import shellback.exec.supervisor.service.keeper"),
    ("work layers", "work/queue/items.py", "import shellback.work.turn.turn"),
    ("exec layers", "exec/unheard_of.py", ""),
    ("the supervisor stands alone", "exec/wire/layout.py", "import pydantic"),
    ("the supervisor stands alone", "exec/wire/layout.py", "import shellback.exec.core.model"),
    ("policy is pure", "exec/policy/policy.py", "import subprocess"),
    ("only the queue side knows DBOS", "exec/engine/engine.py", "import dbos"),
    ("only the queue side knows DBOS", "cli/main.py", "import dbos"),
    ("the engine does not know the agent framework", "exec/engine/engine.py", "import pydantic_ai"),
    ("no cycles", "exec/wire/layout.py", "import shellback.exec.supervisor.process.procfs"),
]


def lint(directory: Path) -> str:
    done = run_to_end(LINT_IMPORTS, "--no-cache", cwd=directory)
    return done.stdout + done.stderr


def test_the_tree_keeps_every_contract() -> None:
    assert "0 broken." in lint(ROOT)


@pytest.mark.parametrize(("contract", "module", "line"), VIOLATIONS)
def test_a_violation_breaks_its_contract(contract: str, module: str, line: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "migrations")
    shutil.copytree(ROOT / "app", tmp_path / "shellback", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "shellback" / module).open("a") as file:
        file.write(f"\n{line}\n")
    said = lint(tmp_path)
    # A module without a layer stops the run with its name instead of breaking the one contract.
    assert "unheard_of" in said if not line else f"{contract} BROKEN" in said


def test_only_settings_reads_the_environment_and_nobody_kills_by_number() -> None:
    probe = "import os\n\nos.environ\nos.getenv\nos.kill\nos.killpg\n"
    ruff = (sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", "--output-format", "concise")
    found = run_to_end(*ruff, "--stdin-filename", "app/exec/probe.py", "-", cwd=ROOT, input=probe)
    assert found.stdout.count("TID251") == 4
    clean = run_to_end(*ruff, "app", cwd=ROOT)
    assert clean.returncode == 0, clean.stdout
