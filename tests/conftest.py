"""Fixtures that every test may use, what has to be true before any test runs, and which come first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["tests.databases", "tests.execs"]

ROOT = Path(__file__).parents[1]
LONG = {"test_documents.py", "test_demo.py", "test_soak_sample.py", "test_loop_model.py", "test_models.py"}
"""Begun last, one of these would be waited for by every other process that runs tests."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test programs of another tree: what tests start elsewhere finds the installed package."""
    if hasattr(config, "workerinput"):
        return
    command = [sys.executable, "-P", "-c", "import app; print(app.__path__[0])"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if Path(done.stdout.strip()).resolve() != (ROOT / "app").resolve():
        found = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
        raise pytest.UsageError(f"installed here is another tree ({found}), not {ROOT}: rm -rf .venv && make setup")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what the product runs on."""
    return "asyncio"
