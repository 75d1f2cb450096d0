"""What the README shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shellback.settings import plain_environment
from tests.stage import stage

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "own_agent.py"


def test_an_agent_of_ones_own_asks_and_runs_without_a_queue() -> None:
    with stage() as place:
        place.settings = place.settings.model_copy(
            update={"shellback_home": place.root / "state"}
        )  # ends its supervisor
        done = subprocess.run(
            [sys.executable, str(EXAMPLE)],
            cwd=place.root,
            env=plain_environment(),
            input="y\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "{'command': 'uname -sm'} [y/n]" in done.stdout
    assert "Linux" in done.stdout
    assert "[exit code 0" in done.stdout


@pytest.mark.parametrize("example", ["own_agent", "shell_usage"])
def test_an_example_works_in_a_new_directory_and_says_what_is_wrong_with_another(example: str) -> None:
    with stage() as place:
        place.settings = place.settings.model_copy(update={"shellback_home": place.root / "new/state"})
        there = place.root / "new"
        there.mkdir(mode=0o755)

        def run() -> subprocess.CompletedProcess[str]:
            argv = [sys.executable, str(PROJECT / "examples" / f"{example}.py")]
            env = plain_environment()
            return subprocess.run(
                argv, cwd=there, env=env, input="y\n", capture_output=True, text=True, timeout=60, check=False
            )

        good = run()
        (there / "workspace").rename(there / "before")
        (there / "workspace").touch()
        bad = run()
    assert (good.returncode, good.stderr) == (0, "")
    assert bad.returncode == 1
    assert bad.stderr.startswith(f"{example}: workspace ")
    assert len(bad.stderr.splitlines()) == 1


def test_the_readme_shows_the_example_as_it_is() -> None:
    readme = (PROJECT / "README.md").read_text()
    shown = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert shown is not None
    assert textwrap.indent(shown[1], "    ") in EXAMPLE.read_text()


def test_a_shell_of_ones_own_builds_times_out_streams_and_signals_without_a_key() -> None:
    with stage() as place:
        place.settings = place.settings.model_copy(update={"shellback_home": place.root / "state"})
        done = subprocess.run(
            [sys.executable, str(PROJECT / "examples" / "shell_usage.py")],
            cwd=place.root,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (place.root / "workspace/built").read_text() == "done\n"
    lines = done.stdout.splitlines()
    assert lines[0] == f"Working in: {(place.root / 'workspace').resolve()}"
    assert lines[1].startswith("PATH: /")
    assert "compiling" in lines
    assert "waiting: Command timed out after 0.5s" in lines
    assert lines[-3] == "ended by signal 2"
    assert lines[-2].startswith("hello world in ")
    assert lines[-1] == "the answer was y"
