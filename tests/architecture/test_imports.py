"""What importing the library costs, and what it promises to export."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import shellback
import shellback.exec

ROOT = Path(__file__).parents[2]
HEAVY = ("dbos", "pydantic_ai", "pydantic", "sqlalchemy", "psycopg", "openai", "anthropic")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import shellback",
        "import shellback.exec",
        "from shellback.exec import Engine, HostBackend, MemorySessionStore, SupervisorClient",
        "from shellback.exec.reports import callback_text; from shellback.exec.policy import policy",
        "from shellback.exec.core import identity; from shellback.exec.engine import sessions",
        "from shellback.exec.log import logs",
    ],
)
def test_the_engine_loads_neither_dbos_nor_pydantic_ai_nor_a_database(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(HEAVY)


@pytest.mark.parametrize("name", shellback.exec.__all__)
def test_every_name_that_the_library_exports_exists(name: str) -> None:
    assert getattr(shellback.exec, name) is not None


@pytest.mark.parametrize("name", shellback.__all__)
def test_every_public_name_exists_and_has_an_example(name: str) -> None:
    assert getattr(shellback, name) is not None
    assert f"shellback.{name}" in (ROOT / "docs/library.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", [shellback, shellback.exec])
def test_a_name_that_is_not_exported_says_so(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_the_package_cannot_be_imported_under_the_name_of_its_directory() -> None:
    code = "import shellback.exec.core.model; import app.exec.core.model"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: import `shellback`, not `app`")


@pytest.mark.parametrize("module", ["pty_spawn", "exec_registry", "exec_tool", "process_tool"])
def test_the_modules_of_the_specification_are_where_it_says(module: str) -> None:
    assert importlib.import_module(f"shellback.exec.{module}").__name__ == f"shellback.exec.{module}"
