"""The state directory, the names of this machine, and one living worker for each executor id."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shellback.exec.supervisor.process import procfs
from shellback.storage import executor_lock
from shellback.storage.errors import ExecutorTaken, HomeUnusable
from shellback.storage.executor_lock import ExecutorLock, has_ended
from shellback.storage.host import boot_id, ensure_home, host_id
from tests.databases import at_once, unavailable
from tests.supervisors import kill, run_to_end

# pyright: reportPrivateUsage=false


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


def test_an_end_is_known_in_another_pid_namespace_and_not_before_it(tmp_path: Path) -> None:
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    if shutil.which("unshare") is None or run_to_end(*apart, "true").returncode:
        unavailable("PID namespaces cannot be made here (needs user namespaces and unshare)")
    command = [*apart, sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        token = holder.stdout.readline().strip()
        assert not has_ended(tmp_path, "w/1", token)
        kill(*procfs.children(holder.pid))
    assert has_ended(tmp_path, "w/1", token)
    assert not has_ended(tmp_path, "w/1", "another token")
    assert not has_ended(tmp_path, "w/2", token)


def test_a_look_for_an_end_keeps_no_worker_from_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ExecutorLock("w", tmp_path).release()
    look = os.open(executor_lock._path(tmp_path, "w"), os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    waits = list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(look)

    monkeypatch.setattr(executor_lock, "time", SimpleNamespace(sleep=sleep))
    ExecutorLock("w", tmp_path).release()
    assert len(waits) == 2


@pytest.mark.parametrize("copied", [True, False])
def test_of_another_directory_or_boot_nobody_knows_whether_the_worker_before_has_ended(
    tmp_path: Path, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    lock = ExecutorLock("w", first)
    lock.release()
    if copied:
        shutil.copytree(first, tmp_path / "second")
    else:
        monkeypatch.setattr(executor_lock, "boot_id", lambda: "another")
    home = tmp_path / "second" if copied else first
    assert not has_ended(home, "w", lock.token)
    assert ExecutorLock("w", home).before == ""
