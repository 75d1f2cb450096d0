"""The state directory, the names of this machine, and one living worker for each executor id."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shellback.storage import executor_lock
from shellback.storage.errors import ExecutorTaken, HomeUnusable
from shellback.storage.executor_lock import ExecutorLock
from shellback.storage.host import boot_id, ensure_home, host_id
from tests.databases import at_once


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
from shellback.storage.executor_lock import ExecutorLock
lock = ExecutorLock("w/1", Path(sys.argv[1]))
print(lock.token, flush=True)
sys.stdin.read()
"""


def test_a_second_worker_under_one_id_is_refused_by_pid_and_a_restart_is_immediate(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        token = holder.stdout.readline().strip()
        with pytest.raises(ExecutorTaken, match=f"process {holder.pid} on "):
            ExecutorLock("w/1", tmp_path)
        ExecutorLock("w/2", tmp_path).release()
        holder.kill()
    lock = ExecutorLock("w/1", tmp_path)
    assert lock.before == token
    assert lock.token != token
    lock.release()
    lock.release()


@pytest.mark.parametrize("copied", [True, False])
def test_of_another_directory_or_boot_nobody_knows_whether_the_worker_before_has_ended(
    tmp_path: Path, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    ExecutorLock("w", first).release()
    if copied:
        shutil.copytree(first, tmp_path / "second")
    else:
        monkeypatch.setattr(executor_lock, "boot_id", lambda: "another")
    assert ExecutorLock("w", tmp_path / "second" if copied else first).before == ""
