"""The state directory, the names of this machine, and one living worker for each executor id."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shellback.storage.db import Database
from shellback.storage.errors import ExecutorTaken, HomeUnusable
from shellback.storage.executor_lock import hold_executor
from shellback.storage.host import boot_id, ensure_home, host_id
from tests.databases import PostgresServer, at_once


def test_a_state_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = ensure_home(tmp_path / "a" / "home")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert ensure_home(home) == home


def test_a_host_id_is_made_once_also_by_several_at_once(tmp_path: Path) -> None:
    found = at_once(*[lambda: host_id(tmp_path)] * 8)
    assert len(set(found)) == 1
    assert len(found[0]) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["host_id"]
    assert stat.S_IMODE((tmp_path / "host_id").stat().st_mode) == 0o600
    (tmp_path / "host_id").write_text("../x\n")
    with pytest.raises(HomeUnusable, match="does not hold a host id"):
        host_id(tmp_path)


def test_the_boot_id_is_the_kernels() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# Executor ids

HOLDER = """
import sys
from pathlib import Path
from shellback.storage.db import Database
from shellback.storage.executor_lock import hold_executor
lock = hold_executor("w/1", home=Path(sys.argv[1]), database=Database(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_worker_under_one_id_is_refused_by_pid_and_a_restart_is_immediate(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(ExecutorTaken, match=f"process {holder.pid} on "):
            hold_executor("w/1", home=tmp_path, database=database)
        hold_executor("w/2", home=tmp_path, database=database).release()
        holder.kill()
    # Postgres notices the dead connection in its own time, a file lock at once.
    for _ in range(3000):
        try:
            lock = hold_executor("w/1", home=tmp_path, database=database)
        except ExecutorTaken:
            threading.Event().wait(0.02)
        else:
            break
    else:
        pytest.fail("the lock of a dead process is still held")
    assert lock.still_held()
    lock.release()
    lock.release()
    assert not lock.still_held()


def test_a_lock_is_known_to_be_lost_when_its_connection_breaks(
    postgres: Database, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    lock = hold_executor("w", home=tmp_path, database=postgres)
    postgres_server.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE application_name LIKE 'shellback {os.getpid()}@%'"
    )
    assert not lock.still_held()
    lock.release()
