"""A worker killed at any point of a call: the next one neither starts it again nor loses its end."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shellback.exec.link.client import SupervisorClient
from shellback.storage import schema
from tests.execs import places

POINTS = (
    "claim.before",
    "claim.committed",
    "start.sent",
    "start.answered",
    "started.recorded",
    "exit.received",
    "exit.finishing",
    "exit.committed",
    "exit.acked",
)


def call(home: Path, workspace: Path, url: str) -> int:
    command = [sys.executable, "-m", "tests.programs.engine_call", str(home), str(workspace), url]
    return subprocess.run(command, check=False, timeout=60, env={**os.environ, "PYTHONPATH": "."}).returncode


async def unacknowledged(home: Path) -> int:
    client = SupervisorClient(home, idle_s=1.0)
    try:
        return len(await client.unacknowledged())
    finally:
        await client.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_call_cut_off_anywhere_runs_once_and_its_end_is_told_once(tmp_path: Path, point: str) -> None:
    workspace, home = places(tmp_path)
    url = f"sqlite:///{home}/db.sqlite"
    schema.migrate(url)
    with closing(sqlite3.connect(home / "db.sqlite")) as file:
        file.execute("CREATE TABLE told (session TEXT, code INTEGER)")
    (home / "crash").mkdir()
    (home / "crash" / point).write_text("kill self")
    assert call(home, workspace, url) == -9
    assert call(home, workspace, url) == 0
    assert (workspace / "nonce").read_text() == "x\n"
    with closing(sqlite3.connect(home / "db.sqlite")) as file:
        assert file.execute("SELECT code FROM told").fetchall() == [(7,)]
    assert asyncio.run(unacknowledged(home)) == 0
