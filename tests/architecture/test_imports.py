"""What importing the package loads, and what it promises to export."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import shellback
import shellback.exec
from tests.supervisors import run_to_end

ROOT = Path(__file__).parents[2]
AGENTS = {"dbos", "pydantic_ai"}
DRAWING = {"prompt_toolkit", "rich"}
HEAVY = {*AGENTS, *DRAWING, "mcp", "mcp_types", "openai", "anthropic", "psycopg", "pydantic", "sqlalchemy", "uvicorn"}


def loaded(program: str, *options: str, cwd: Path = ROOT, environ: dict[str, str] | None = None) -> set[str]:
    """Top-level names of all that a program has loaded when it ends, and our modules."""
    show = "print('', *{part for name in __import__('sys').modules for part in (name.partition('.')[0], name)})"
    code = f"import atexit; atexit.register(lambda: {show})\n{program}"
    done = run_to_end(sys.executable, *options, "-c", code, cwd=cwd, env=environ)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("program", "unloaded"),
    [
        ("import shellback", HEAVY),
        ("import shellback.exec", HEAVY),
        ("import shellback; shellback.Client, shellback.AsyncClient", HEAVY),
        ("from shellback.exec import Engine, HostBackend, MemorySessionStore, SupervisorClient", HEAVY),
        ("from shellback.exec.reports import callback_text; from shellback.exec.policy import policy", HEAVY),
        ("from shellback.exec.core import identity; from shellback.exec.engine import sessions", HEAVY),
        ("from shellback.exec.log import logs", HEAVY),
        ("import shellback.settings", AGENTS),
        ("import shellback.client.routes", {*AGENTS, "ag_ui"}),
        ("import sys; sys.argv = ['shellback', '--help']; from shellback.cli.main import main; main()", HEAVY),
        ("from shellback.cli.main import COMMANDS, cli; [cli.get_command(None, name) for name in COMMANDS]", HEAVY),
    ],
)
def test_neither_the_engine_nor_a_command_for_its_help_loads_a_database_settings_or_the_agent(
    program: str, unloaded: set[str]
) -> None:
    assert loaded(program).isdisjoint(unloaded)


@pytest.mark.parametrize("words", [["ps"], ["queue"], ["approvals", "list"]], ids=" ".join)
def test_a_command_that_reads_loads_neither_agent_nor_tools_nor_the_driver_of_another_database(
    words: list[str], tmp_path: Path
) -> None:
    environ = {"PATH": os.environ["PATH"], "SHELLBACK_HOME": f"{tmp_path}/home", "WORKSPACE_ROOT": f"{tmp_path}/work"}
    program = f"import sys; sys.argv = ['shellback', *{words!r}]; from shellback.cli.main import main; main()"
    loaded(program, cwd=tmp_path, environ=environ)  # the first command makes the tables
    names = loaded(program, cwd=tmp_path, environ=environ)
    assert "sqlalchemy" in names
    assert names.isdisjoint(
        {*AGENTS, *DRAWING, "psycopg", "tree_sitter", "shellback.exec.tools.registry", "shellback.exec.policy.policy"}
    )


def test_a_thread_that_judges_a_command_loads_nothing(tmp_path: Path) -> None:
    """It reads as the user of commands, who may not be able to read our packages."""
    program = """
import sys
from shellback.exec.policy.classify.grammar import parse
from shellback.exec.policy.rules.loose import read
before = {*sys.modules}
assert parse("ls | cat") and read("ls | cat")
assert before == {*sys.modules}, {*sys.modules} - before
"""
    loaded(program, cwd=tmp_path)


def test_a_file_of_settings_is_judged_without_the_engine(tmp_path: Path) -> None:
    tmp_path.joinpath(".env").write_text("MODEL=offline\n")
    environ = {"PATH": os.environ["PATH"], "SHELLBACK_HOME": "/nonexistent/home"}
    program = "from shellback.environment import variables; assert variables()['MODEL'] == 'offline'"
    names = loaded(program, cwd=tmp_path, environ=environ)
    assert names.isdisjoint({*HEAVY, "shellback.exec.core.model"})


def test_the_supervisor_loads_nothing_but_the_standard_library() -> None:
    exec_dir = ROOT / "app" / "exec"
    found = [path.relative_to(exec_dir) for name in ("supervisor", "wire") for path in (exec_dir / name).rglob("*.py")]
    assert found
    imports = "; ".join(f"import shellback.exec.{'.'.join(path.with_suffix('').parts)}" for path in sorted(found))
    # -I -S: no site-packages, no PYTHON* variables, as the supervisor itself is started.
    names = loaded(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {imports}", "-I", "-S", "-E")
    assert {name for name in names if "." not in name} - sys.stdlib_module_names <= {"shellback", "__main__"}


def test_the_supervisor_imports_nothing_once_it_runs() -> None:
    # The files may be those of another version by then, and while it acts as a command's user it may read none.
    for path in (ROOT / "app/exec/supervisor").rglob("*.py"):
        functions = (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef))
        late = [each for one in functions for each in ast.walk(one) if isinstance(each, ast.Import | ast.ImportFrom)]
        assert not late, f"{path}:{late[0].lineno}"


def test_the_keeper_loads_nothing_large_that_a_command_on_the_host_does_not_need() -> None:
    program = f"import sys; sys.path.append({str(ROOT)!r}); from shellback.exec.supervisor.service import keeper"
    names = loaded(program, "-I", "-S")
    assert "shellback.exec.supervisor.service.keeper" in names
    assert names.isdisjoint({"argparse", "asyncio", "ipaddress", "logging", "pathlib", "subprocess"})


def test_without_credentials_neither_worker_nor_proxy_loads_cryptography() -> None:
    program = """
from types import SimpleNamespace
import shellback.exec.proxy.program
from shellback.wiring.choice import lent
assert lent(None, [SimpleNamespace(reached=False)]) == {}
"""
    names = loaded(program)
    assert names >= {"h11", "shellback.wiring.choice"}
    assert "cryptography" not in names


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
    done = run_to_end(sys.executable, "-c", "import shellback.exec.core.model; import app.exec.core.model", cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: import `shellback`, not `app`")


@pytest.mark.parametrize("module", ["pty_spawn", "exec_registry", "exec_tool", "process_tool"])
def test_the_modules_of_the_specification_are_where_it_says(module: str) -> None:
    assert importlib.import_module(f"shellback.exec.{module}").__name__ == f"shellback.exec.{module}"
