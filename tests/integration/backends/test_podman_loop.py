"""A worker whose commands run in containers, from outside: approved, run once, in the background, told once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shellback.exec.core.model import Evidence
from shellback.exec.log.placements import Placements
from tests.commands import shellback
from tests.execs import end_of
from tests.podmans import contained, podman
from tests.stage import Stage

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def loop(sqlite_url: str) -> Iterator[Stage]:
    with contained("podman", sqlite_url) as made:
        made.patience_s = 120.0
        yield made


def containers(loop: Stage) -> list[str]:
    return [home.name for home in Placements(loop.home).homes()]


def test_what_runs_in_a_container_outlives_its_worker_and_is_told_once_whoever_dies(loop: Stage) -> None:
    loop.hire()
    item = loop.send("$ echo nonce >> out.txt; pwd; exit 4")
    request = loop.approve()
    assert "exit code 4" in loop.answer(item)
    assert (loop.workspace / "out.txt").read_text() == "nonce\n"
    assert request.display["inner_cwd"] == "/workspace"
    command = "until [ -e go ]; do sleep 0.05; done; echo tail of it; exit 3"
    session = loop.started(f"$ {command} &", command, rest=True)
    assert session.backend == "podman"
    loop.workers[-1].kill()
    (loop.workspace / "go").touch()
    loop.hire()
    wake = loop.ended(f"EXEC_CALLBACK:{session.id}")
    assert "exit code 3" in wake["answer"]
    assert "tail of it" in wake["answer"]
    assert Path(session.log_path).read_text() == "tail of it\n"

    dies = loop.started("$ echo up | tee out; sleep 600 &", "sleep 600", rest=True)
    (name,) = containers(loop)
    podman("kill", name)
    wake = loop.ended(f"EXEC_CALLBACK:{dies.id}")
    assert "the container was restarted" in wake["answer"]
    (ended,) = [one for one in loop.sessions() if one.id == dies.id]
    assert end_of(ended).evidence is Evidence.CONTAINER_RESTARTED
    item = loop.send("$ echo x >> out; exit 5")
    loop.approve()
    assert "exit code 5" in loop.answer(item)
    assert sorted(loop.callbacks()) == sorted(f"EXEC_CALLBACK:{one.id}" for one in (session, dies))
    assert containers(loop) == [name]
    assert not (loop.home / "supervisor" / "sock").exists(), "no supervisor of the host was needed"


def test_the_command_line_shows_reads_examines_and_ends_what_runs_in_a_container(loop: Stage) -> None:
    loop.hire()
    session = loop.started("$ echo said something | tee out; sleep 600 &", "said something", rest=True)
    (row,) = json.loads(shellback(loop, "ps", "--json").stdout)["sessions"]
    assert (row["id"], row["state"]) == (session.id, "running")
    loop.until("its output", lambda: "said something" in shellback(loop, "logs", session.id).stdout)
    checks, (name,) = examined(loop), containers(loop)
    # Other tests come and go beside this one.
    assert "of 1 run, and their" in checks["containers"]["text"] or name not in checks["containers"]["text"]
    assert checks["unknown processes"]["state"] == "ok", checks
    assert "/run/shellback" not in checks["leftovers"]["text"], "one in a container is none of the host's"
    killed = shellback(loop, "kill", session.id)
    assert killed.returncode == 0, killed.stderr
    assert "SIGTERM" in loop.ended(f"EXEC_CALLBACK:{session.id}")["answer"]
    (loop.home / "containers" / name).rename(loop.home / "containers" / ".away")
    try:
        checks = examined(loop)
    finally:
        (loop.home / "containers" / ".away").rename(loop.home / "containers" / name)
    assert checks["containers"]["state"] == "warn", checks
    assert name in checks["containers"]["text"]


def examined(loop: Stage) -> dict[str, dict[str, str]]:
    """What doctor says, without the try of the backend, which is made elsewhere."""
    done = shellback(loop, "doctor", "--json", BACKEND="host")
    return {row["name"]: row for row in json.loads(done.stdout)["checks"]}
