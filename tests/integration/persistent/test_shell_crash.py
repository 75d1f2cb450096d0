"""A worker killed at any point of a command in a persistent shell: the next one neither runs it again nor loses it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from shellback.storage import schema
from tests import sandboxes
from tests.execs import places
from tests.supervisors import run_to_end

TOLD = [["", 0, "sub"], ["done 5 6\n", 3, "sub"], ["3 5 6 sub\n", 0, "sub"]]


def calls(home: Path, workspace: Path, kind: str) -> tuple[int, list[list[object]]]:
    """One worker, from its start to its end: how it ended, and what its calls returned."""
    url = f"sqlite:///{home}/db.sqlite"
    command = (sys.executable, "-m", "tests.programs.shell_call", home, workspace, url, kind)
    done = run_to_end(*command, timeout=100, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode in {0, -9}, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        ("shell.asked", "host"),
        ("shell.given", "bubblewrap"),
        ("shell.told", "host"),
        ("worker.supervisor.asked_for", "host"),
        ("worker.supervisor.handed", "bubblewrap"),
    ],
)
def test_a_command_cut_off_anywhere_runs_once_and_is_told(tmp_path: Path, point: str, kind: str) -> None:
    if kind == "bubblewrap":
        sandboxes.needed()
    workspace, home = places(tmp_path)
    schema.migrate(f"sqlite:///{home}/db.sqlite")
    (home / "crash").mkdir()
    (home / "crash" / point).write_text("kill self")
    assert calls(home, workspace, kind) == (-9, TOLD[:1])
    assert calls(home, workspace, kind) == (0, TOLD)
    assert (workspace / "ran").read_text() == "x\n"
    if point == "shell.told":
        # All of it is recorded by now, and the shell has gone: told again, and nothing runs.
        assert calls(home, workspace, kind) == (0, TOLD)
        assert (workspace / "ran").read_text() == "x\n"
