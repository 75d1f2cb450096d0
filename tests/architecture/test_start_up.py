"""What is loaded when, and how long a file may be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUPERVISOR = ROOT / "app" / "exec" / "supervisor"
WORKER_SIDE = ("client", "launch", "reaching")
HEAVY = ("dbos", "pydantic_ai")
LINES_PER_MODULE = 400
LINES_PER_TEST_MODULE = 500


def loaded(program: str, *options: str) -> set[str]:
    """Top-level names of all that a program has loaded when it ends."""
    show = "print('', *{name.partition('.')[0] for name in __import__('sys').modules})"
    done = subprocess.run(
        [sys.executable, *options, "-c", f"import atexit; atexit.register(lambda: {show})\n{program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "program",
    [
        "import app.exec",
        "import app.settings",
        "import sys; sys.argv = ['shellback', '--help']; from app.cli.main import main; main()",
        "import sys; sys.argv = ['shellback', 'ps', '--help']; from app.cli.main import main; main()",
    ],
    ids=["app.exec", "app.settings", "help", "ps help"],
)
def test_neither_dbos_nor_the_agent_framework_is_loaded_by(program: str) -> None:
    assert loaded(program).isdisjoint(HEAVY)


def test_the_supervisor_loads_nothing_but_the_standard_library() -> None:
    modules = sorted(path.stem for path in SUPERVISOR.glob("*.py") if path.stem not in {"__main__", *WORKER_SIDE})
    assert modules
    imports = "; ".join(f"import app.exec.supervisor.{name}" for name in modules)
    # -I -S: no site-packages, no PYTHON* variables, as the supervisor itself is started.
    names = loaded(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {imports}", "-I", "-S", "-E")
    assert names - sys.stdlib_module_names <= {"app", "__main__"}


def test_the_supervisor_takes_nothing_from_the_side_of_the_worker() -> None:
    own = [path for path in SUPERVISOR.glob("*.py") if path.stem not in WORKER_SIDE]
    taken = re.compile(rf"supervisor(\.| import .*\b)({'|'.join(WORKER_SIDE)})\b")
    assert [path.name for path in own if taken.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("directory", "limit"), [("app", LINES_PER_MODULE), ("tests", LINES_PER_TEST_MODULE)])
def test_a_module_is_small_enough_to_be_read(directory: str, limit: int) -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / directory).rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > limit} == {}
