"""Which tests `make quick` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import selected

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
