"""The process that forks workers for tests: what comes of it is a worker like any other, and nobody is left."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from shellback.settings import plain_environment
from shellback.storage.host import boot_id
from tests.databases import unavailable
from tests.nursery import ROOT, NoNursery, Nursery, Nursling, nursery, probe_machines

PATIENCE_S = 60.0


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def said_by(forked: Nursling) -> tuple[int, str]:
    with forked.stdin, forked.stderr:
        said = forked.stderr.read().decode()
    return forked.wait(PATIENCE_S), said


def test_a_setting_of_the_environment_is_the_workers_own_and_so_is_its_exit_code(null: int, tmp_path: Path) -> None:
    environ = {**plain_environment(), "SHELLBACK_HOME": str(tmp_path / "home"), "TURN_SLOTS": "many"}
    code, said = said_by(nursery().fork(["worker"], environ, null))
    assert code == 2
    assert "TURN_SLOTS" in said


def test_two_of_them_draw_other_random_numbers(null: int, tmp_path: Path) -> None:
    """And have homes of their own: each makes its host id."""
    ids: set[str] = set()
    for name in ("one", "two"):
        home = tmp_path / name
        environ = {**plain_environment(), "SHELLBACK_HOME": str(home), "WORKSPACE_ROOT": str(home / "w")}
        assert said_by(nursery().fork(["ps"], environ, null))[0] == 0
        ids.add((home / "host_id").read_text())
    assert len(ids) == 2


def test_a_nursery_that_has_ended_says_so(null: int) -> None:
    own = Nursery()
    own.close()
    with pytest.raises(NoNursery, match="ended"):
        own.fork(["worker"], plain_environment(), null)


def test_a_signal_to_one_that_was_reaped_and_is_not_told_of_yet_is_no_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen(["true"], stderr=subprocess.PIPE) as process:
        pidfd = os.pidfd_open(process.pid)
        socket.send_fds(theirs, [json.dumps({"pid": process.pid}).encode()], [pidfd])
        os.close(pidfd)
        stdin, stdin_in = os.pipe()
        assert process.stderr is not None
        forked = Nursling(ours, stdin_in, os.dup(process.stderr.fileno()))
        os.close(stdin)
        process.wait()
        forked.terminate()
        forked.kill()
        assert forked.poll() is None
        theirs.send(json.dumps({"status": 3}).encode())
        assert said_by(forked) == (3, "")


def test_a_machine_has_a_boot_id_of_its_own_and_ours_stays(null: int, tmp_path: Path) -> None:
    try:
        probe_machines()
    except NoNursery as error:
        if os.geteuid() != 0:
            pytest.skip(str(error))
        unavailable(str(error))
    before = boot_id()
    path = tmp_path / "boot_id"
    path.write_text("11111111-2222-3333-4444-555555555555\n")
    code, said = said_by(nursery().fork(["--version"], plain_environment(), null, path))
    assert (code, said) == (0, "")
    assert boot_id() == before


def test_nobody_outlives_a_test_process_that_is_killed() -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.stage import Stage
        place = Stage(Path(sys.argv[1]), SUPERVISOR_IDLE_SECONDS="1")
        place.open()
        print(place.hire().process.pid, flush=True)
        sys.stdin.read()
    """)
    # The supervisor of that worker leaves a moment later, and may write there until then.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        tests = subprocess.Popen(
            [sys.executable, "-c", program, folder], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with tests:
            assert tests.stdout is not None
            worker = int(tests.stdout.readline())
            pidfd = os.pidfd_open(worker)
            tests.send_signal(signal.SIGKILL)
            gone, _, _ = select.select([pidfd], [], [], PATIENCE_S)
            os.close(pidfd)
    assert gone
