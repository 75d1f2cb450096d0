"""The wheel: what it installs, and that it runs beside a project whose own package is called `app`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shellback import make_workspace
from tests.supervisors import run_to_end

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

SERVICE = {
    "app/__init__.py": "",
    "app/settings.py": "GREETING = 'hello from the settings of the project'\n",
    "app/main.py": (
        "from pydantic_ai import Agent\n"
        "from app.settings import GREETING\n"
        "agent = Agent(name='service', instructions=GREETING)\n"
        "@agent.tool_plain\n"
        "def greeting() -> str:\n"
        "    return GREETING\n"
    ),
}
"""A project as frameworks for web services lay it out: a package `app` with settings of its own."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run_to_end(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT, check=True)
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are those of this one."""
    directory = tmp_path_factory.mktemp("fresh") / "venv"
    run_to_end(sys.executable, "-m", "venv", "--without-pip", directory, check=True)
    program = directory / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    run_to_end(sys.executable, "-m", "pip", "--python", program, *install, check=True)
    where = run_to_end(program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", check=True)
    # Directories that a .pth file adds have no .pth files read: the checkout stays out.
    (Path(where.stdout.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return directory


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user of commands may enter, with a workspace."""
    with tempfile.TemporaryDirectory(prefix="shellback-wheel-") as name:
        Path(name).chmod(0o755)
        make_workspace(Path(name) / "workspace")
        yield Path(name)


def test_a_wheel_has_one_package_and_its_migrations_inside_of_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"shellback"}
    source = {path.name for path in (ROOT / "migrations/versions").glob("*.py")}
    assert {Path(name).name for name in names if name.startswith("shellback/migrations/versions/")} == source
    assert {"shellback/py.typed", "shellback/migrations/env.py"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]


def test_an_agent_of_a_project_whose_package_is_app_runs_under_the_installed_worker(
    installed: Path, place: Path
) -> None:
    project = place / "service"
    for name, text in SERVICE.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    environ = {
        "PATH": f"{installed / 'bin'}:{os.environ['PATH']}",
        "HOME": str(place),
        "AGENT": "app.main:agent",
        "MODEL": "offline",
        "SHELLBACK_HOME": str(place / "state"),
        "WORKSPACE_ROOT": str(place / "workspace"),
    }

    def shellback(*words: str) -> str:
        done = run_to_end(installed / "bin" / "shellback", *words, cwd=project, env=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shellback("migrate")
    worker = subprocess.Popen(
        [installed / "bin" / "shellback", "worker", "--while-stdin"],
        cwd=project, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stderr is not None
    next(line for line in worker.stderr if "ready" in line)
    try:
        answer = json.loads(shellback("send", "--conversation", "desk", "--wait", "--json", "!greeting {}"))
    finally:
        _, log = worker.communicate(timeout=LIMIT_S)
    assert "hello from the settings of the project" in json.dumps(answer), log
    assert (project / "app/settings.py").read_text() == SERVICE["app/settings.py"]


def test_the_installed_wheel_gives_the_demo_from_any_directory(installed: Path, place: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(place)}
    program = installed / "bin" / "shellback"
    done = run_to_end(program, "demo", "--json", cwd=place, env=environ, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {one["exit_code"] for one in json.loads(done.stdout)["sessions"]} >= {0, 3, 7}
