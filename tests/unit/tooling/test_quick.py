"""Which tests `make quick` runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.quick import changed, selected

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


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", "-C", str(root), *identity, *words], capture_output=True, timeout=30, check=True)


def commit(root: Path, name: str) -> None:
    (root / name).write_text("")
    git(root, "add", name)
    git(root, "commit", "-m", name)


def test_changed_is_what_differs_from_origin_or_from_the_commit_before(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "main")
    for name in ("first", "second", "third"):
        commit(tmp_path, name)
    (tmp_path / "first").write_text("edited")
    (tmp_path / "new").write_text("")
    assert changed(tmp_path) == [Path("first"), Path("third"), Path("new")]
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD~2")
    assert changed(tmp_path) == [Path("first"), Path("second"), Path("third"), Path("new")]
