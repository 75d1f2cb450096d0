"""Fixtures that every test may use, what has to be true before any test runs, and which come first."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.databases",
    "tests.supervisors",
    "tests.sandboxes",
    "tests.execs",
    "tests.shells",
    "tests.items",
]

# A busy machine makes any input slow to generate; no test is about speed.
settings.register_profile("shellback", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shellback")

ROOT = Path(__file__).parents[1]
FIRST = {"test_documents.py", "test_demo.py", "test_soak_sample.py", "test_loop_model.py", "test_models.py"}
"""Begun last, one of these would be waited for by every other process that runs tests."""
LONG = (
    "acceptance/*",
    "escape/*",
    "hostile/test_scarce_resources.py",
    "hostile/test_terminal_text.py",
    "integration/*",
    "integration/*/*",
    "model/*",
)
"""Whole programs, and parts that are tried together: `make test-long` runs them, and `make test` everything else."""
SHORT = ("acceptance/test_loop.py", "acceptance/test_story.py", "integration/engine/*", "integration/work/*")
"""Of these, the main job from end to end, and the engine and the queue behind it: `make test` runs them."""
TOO_LONG = (
    "test_approved_bytes.py",
    "test_bound_workspaces.py",
    "test_own_settings.py",
    "test_retention.py",
    "*_crash.py",
    "*directories*",
)
"""Of these in turn, what takes a minute. `make test` takes six on two cores."""
UNSTABLE = 5
"""How many tests of a run may pass at the second attempt only; `--reruns 1` gives a failed test that attempt."""


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test programs of another tree: what tests start elsewhere finds the installed package."""
    # `nohup` and a script's `&` ignore these, and every program that a test starts would inherit it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    command = [sys.executable, "-P", "-c", "import shellback; print(shellback.__path__[0])"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if Path(done.stdout.strip()).resolve() != (ROOT / "app").resolve():
        found = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
        raise pytest.UsageError(f"installed here is another tree ({found}), not {ROOT}: rm -rf .venv && make setup")


@functools.cache
def is_long(path: Path) -> bool:
    """Whether the tests of this file are among the long ones."""
    below = path.relative_to(ROOT / "tests")
    long, short, too_long = (any(below.match(one) for one in some) for some in (LONG, SHORT, TOO_LONG))
    return long and (too_long or not short)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests `-m` leaves out: each of the processes that run tests imports them all."""
    wanted = {"long": True, "not long": False}.get(config.option.markexpr)
    if wanted is None or not collection_path.match("test_*.py") or is_long(collection_path) == wanted:
        return None
    return True


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
    for item in items:
        if is_long(item.path):
            item.add_marker("long")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Show why tests needed a second attempt, and fail a run in which too many did."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    repeated = {report.nodeid: report for report in reporter.stats.get("rerun", [])} if reporter else {}
    if reporter is None or not repeated:
        return
    for name, report in repeated.items():
        reporter.write_sep("_", f"first attempt of {name}")
        reporter.write_line(report.longreprtext)
    if len(repeated) > UNSTABLE and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{len(repeated)} tests needed a second attempt; the limit is {UNSTABLE}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, which is what the product runs on."""
    return "asyncio"
