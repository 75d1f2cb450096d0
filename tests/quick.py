"""`make quick`: the unit tests, then those that import from packages that changed, as many as begin in time.

Changed is what differs from the merge base with origin/main, or, without one, what the last commit and the working tree
do. This module is a plugin of the run that it starts, too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
UNIT: Final = "tests/unit"
BEGIN_S: Final = 38.0
"""No test of a changed package begins later; unit tests all run."""
_UNTIL: Final = "QUICK_UNTIL"
_LOOSE: Final = (Path("app"), Path("app/exec"), Path("tests"))
"""Whose modules right below are what changed, and not all of the package."""


def changed(root: Path) -> list[Path]:
    """The files that differ, committed or not, as paths in the repository."""
    base = _git(root, "merge-base", "HEAD", "origin/main") or _git(root, "rev-parse", "-q", "--verify", "HEAD^")
    lines = _git(root, "diff", "--name-only", (base or ["HEAD"])[0])
    lines += _git(root, "ls-files", "--others", "--exclude-standard")
    return [Path(line) for line in lines]


def selected(root: Path, files: Iterable[Path]) -> list[str]:
    """The test files outside of the unit tests that changed, or that import directly from a package that did."""
    files = [path for path in files if path.suffix == ".py"]
    targets = {_target(path) for path in files if path.parts[0] in {"app", "tests"}}
    found = [
        path
        for path in sorted(one.relative_to(root) for one in (root / "tests").rglob("test_*.py"))
        if path in files or not targets.isdisjoint(_imported((root / path).read_text(encoding="utf-8")))
    ]
    return [str(path) for path in found if not path.is_relative_to(UNIT)]


def _target(path: Path) -> str:
    named = path.parent if path.name == "__init__.py" or path.parent not in _LOOSE else path.with_suffix("")
    return ".".join(("shellback" if named.parts[0] == "app" else named.parts[0], *named.parts[1:]))


def _imported(text: str) -> Iterator[str]:
    """Modules and names that are imported, and the packages that they are in."""
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.ImportFrom) and one.module:
            names = [one.module, *(f"{one.module}.{alias.name}" for alias in one.names)]
        elif isinstance(one, ast.Import):
            names = [alias.name for alias in one.names]
        else:
            continue
        for name in names:
            yield name
            yield name.rpartition(".")[0]


def _git(root: Path, *words: str) -> list[str]:
    """The lines that git says; none where it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


@pytest.hookimpl(trylast=True)  # after the order was made random
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(UNIT))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not item.nodeid.startswith(UNIT) and time.monotonic() > float(os.environ[_UNTIL]):
        pytest.skip("did not begin in time: `make test` runs it")


def main(arguments: Sequence[str]) -> int:
    """Select, say what, run; returns pytest's exit code."""
    until = time.monotonic() + BEGIN_S
    files = selected(ROOT, changed(ROOT))
    print(f"quick: unit tests and {len(files)} more files", *files, sep="\n  ", flush=True)
    command = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-n", "auto", "-m", "not long", UNIT, *files]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env={**os.environ, _UNTIL: str(until)}, check=False
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
