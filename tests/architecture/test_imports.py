"""What importing the library costs, and what it promises to export."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import app.exec

HEAVY = ("dbos", "pydantic_ai", "pydantic", "sqlalchemy", "psycopg", "openai", "anthropic")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import app.exec",
        "from app.exec import Engine, HostBackend, MemorySessionStore, SupervisorClient",
        "import app.exec.callback_text, app.exec.policy, app.exec.identity, app.exec.sessions, app.exec.logs",
    ],
)
def test_the_engine_loads_neither_dbos_nor_pydantic_ai_nor_a_database(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(HEAVY)


@pytest.mark.parametrize("name", app.exec.__all__)
def test_every_exported_name_exists(name: str) -> None:
    assert getattr(app.exec, name) is not None


def test_a_name_that_is_not_exported_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        app.exec.__getattr__("nothing")


@pytest.mark.parametrize("module", ["pty_spawn", "exec_registry", "exec_tool", "process_tool"])
def test_the_modules_of_the_specification_are_where_it_says(module: str) -> None:
    assert importlib.import_module(f"app.exec.{module}").__name__ == f"app.exec.{module}"
