"""What is loaded when, and how long a file may be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("supervisor", "wire")
HEAVY = ("dbos", "pydantic_ai")


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
        "import shellback",
        "import shellback.exec",
        "import shellback.settings",
        "import sys; sys.argv = ['shellback', '--help']; from shellback.cli.main import main; main()",
        "from shellback.cli.main import COMMANDS, cli; [cli.get_command(None, name) for name in COMMANDS]",
    ],
    ids=["shellback", "shellback.exec", "shellback.settings", "help", "every command"],
)
def test_neither_dbos_nor_the_agent_framework_is_loaded_by(program: str) -> None:
    assert loaded(program).isdisjoint(HEAVY)


def test_the_supervisor_loads_nothing_but_the_standard_library() -> None:
    exec_dir = ROOT / "app" / "exec"
    modules = [path.relative_to(exec_dir) for package in ALONE for path in sorted((exec_dir / package).rglob("*.py"))]
    assert modules
    imports = "; ".join(f"import shellback.exec.{'.'.join(path.with_suffix('').parts)}" for path in modules)
    # -I -S: no site-packages, no PYTHON* variables, as the supervisor itself is started.
    names = loaded(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {imports}", "-I", "-S", "-E")
    assert names - sys.stdlib_module_names <= {"shellback", "__main__"}
