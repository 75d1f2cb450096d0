"""The write fence of the host backend, through the real supervisor: on pipes and on a terminal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import landlock
from tests.databases import unless
from tests.execs import end_of, places, run

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _landlock() -> None:
    unless(landlock.refusal())


@pytest.fixture
def ground() -> Generator[Path]:
    """A directory that is not below /tmp, which stays writable."""
    base = Path(tempfile.mkdtemp(prefix="shellback-test-", dir="/var/tmp")).resolve()
    base.chmod(0o755)
    for name in ("ws", "outside"):
        (base / name).mkdir()
        (base / name).chmod(0o777)
    yield base
    shutil.rmtree(base)


@pytest.mark.parametrize("pty", [False, True])
async def test_a_fenced_command_writes_the_workspace_and_nothing_beside_it(
    ground: Path, tmp_path: Path, pty: bool
) -> None:
    workspace, outside, home = ground / "ws", ground / "outside", tmp_path
    home.chmod(0o700)
    backend = HostBackend(workspace, fence=True)
    async with Engine(MemorySessionStore(), SupervisorClient(home, idle_s=0.5), backend, home=home) as engine:
        line = (
            f"echo in > in; echo out > {outside}/out || echo held; cat /etc/hostname > /dev/null && echo read; exit 3"
        )
        done = await run(engine, line, pty=pty)
    assert end_of(done.session).exit_code == 3
    assert "held" in done.output.text
    assert "read" in done.output.text
    assert (workspace / "in").read_text() == "in\n"
    assert os.listdir(outside) == []


def test_where_there_is_no_landlock_the_backend_refuses_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    workspace, _ = places(tmp_path)
    with pytest.raises(BackendUnavailable, match=r"HOST_WRITE_FENCE.*lsm="):
        HostBackend(workspace, fence=True).check()
