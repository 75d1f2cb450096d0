"""A restored backup under living processes: noticed, left alone, and settled by a person, each exactly once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from shellback.exec.core.model import Session, SessionState
from shellback.exec.wire import layout
from shellback.work.hosts import generation
from tests.commands import assert_refused, facts, shellback, told
from tests.stage import Stage, stage


@pytest.fixture
def loop() -> Iterator[Stage]:
    with stage() as made:
        yield made


def database_of(loop: Stage) -> Path:
    return Path(str(loop.where.database.url.database))


def backed_up(loop: Stage) -> Path:
    """A whole copy of the database as it is now."""
    copy = loop.root / "backup.db"
    with sqlite3.connect(database_of(loop)) as conn:
        conn.execute("VACUUM INTO ?", (str(copy),))
    return copy


def restore(loop: Stage, copy: Path) -> None:
    """Put an older database in place of the present one, as nobody uses it."""
    path = database_of(loop)
    loop.stack.close()
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, path)
    loop.open()


def in_background(loop: Stage, command: str, conversation: str = "c1") -> Session:
    loop.send(f"$ {command} &", conversation)
    loop.approve(conversation)
    return loop.session(command.partition(";")[0])


def said(loop: Stage) -> str:
    return (loop.home / "worker.log").read_text()


def heard(loop: Stage, conversation: str) -> str:
    return "\n".join(loop.answers(conversation=conversation))


def alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


def check(loop: Stage, name: str) -> dict[str, str]:
    found = told(loop, "doctor", "--json")
    return next(one for one in json.loads(found.stdout)["checks"] if one["name"] == name)


def test_processes_that_an_older_database_does_not_know_are_settled_by_a_person_and_told_once(loop: Stage) -> None:
    loop.hire()
    copy = backed_up(loop)
    adopted = in_background(loop, "until test -e go; do sleep 0.05; done; exit 7")
    killed = in_background(loop, "exec sleep 1000", "c2")
    over = in_background(loop, "until test -e stop; do sleep 0.05; done; exit 9", "c3")
    loop.workers[-1].stop()
    (loop.workspace / "stop").touch()
    loop.until("the third has ended", lambda: not alive(over.pid))
    restore(loop, copy)
    assert loop.sessions() == []

    loop.hire()
    assert alive(adopted.pid)
    assert alive(killed.pid)
    assert "the database is older than the state directory" in said(loop)
    assert "3 process(es) of this host are unknown to this database" in said(loop)
    assert check(loop, "restored")["state"] == "fail"
    assert "shellback ps --unknown" in check(loop, "unknown processes")["remedy"]
    found = {one["id"]: one for one in facts(told(loop, "ps", "--unknown", "--json"))}
    assert found.keys() == {adopted.id, killed.id, over.id}
    assert found[killed.id]["command"] == "sleep 1000"
    assert found[over.id]["end"]["exit_code"] == 9

    assert facts(told(loop, "kill", killed.id, "--json")) == {"session_id": killed.id, "survivors": []}
    assert not alive(killed.pid)
    assert_refused(told(loop, "adopt", "process", killed.id, "-c", "new"), "no unknown process")
    for name in ("", "two words", "x" * 101):
        assert_refused(shellback(loop, "adopt", "process", adopted.id, "-c", name), "conversation name")
    for one in (adopted, over):
        row = facts(told(loop, "adopt", "process", one.id[:12], "-c", "new", "--json"))
        assert [each["session_id"] for each in row] == [one.id]
    (loop.workspace / "go").touch()
    for code in (7, 9):
        loop.until(f"the end with {code} is told", lambda code=code: f"exit code {code}" in heard(loop, "new"))
    loop.until("the conversation is at rest", loop.at_rest)
    assert sorted(loop.callbacks()) == sorted(f"EXEC_CALLBACK:{one.id}" for one in (adopted, over))
    assert {one.id: (one.state, one.conversation_id) for one in loop.sessions()} == {
        adopted.id: (SessionState.EXITED, "new"),
        over.id: (SessionState.EXITED, "new"),
    }
    assert facts(told(loop, "ps", "--unknown", "--json")) == []
    assert "no unknown processes" in told(loop, "kill", "--unknown").stderr
    assert generation.read(loop.home).older is None
    assert check(loop, "restored")["state"] == "ok"
    assert_refused(told(loop, "adopt", "process", adopted.id, "-c", "other"), "belongs to conversation new already")


def test_all_that_is_unknown_is_ended_only_when_that_is_confirmed(loop: Stage) -> None:
    loop.hire()
    copy = backed_up(loop)
    one = in_background(loop, "exec sleep 1000")
    loop.workers[-1].kill()
    restore(loop, copy)
    # No worker: neither noticed nor settled by anybody yet.
    refused = told(loop, "kill", "--unknown")
    assert refused.returncode != 0
    assert alive(one.pid)
    assert facts(told(loop, "kill", "--unknown", "--yes", "--json")) == [{"session_id": one.id, "survivors": []}]
    assert not alive(one.pid)
    loop.hire()
    assert loop.callbacks() == []
    assert "unknown to this database" not in said(loop)


def test_sessions_that_an_older_state_directory_does_not_know_are_left_until_a_person_settles_them(
    loop: Stage,
) -> None:
    loop.hire()
    older = loop.root / "older"
    shutil.copytree(loop.home, older, ignore=shutil.ignore_patterns("shellback.db*", "supervisor", "*.log"))
    lost = in_background(loop, "exec sleep 1000")
    loop.workers[-1].stop()
    pid, keeper = loop.supervisor_pids()
    for each in (keeper, pid):
        fd = os.pidfd_open(each)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
    for name in (layout.SESSIONS, generation.FILE):
        path = loop.home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if (older / name).is_dir():
            shutil.copytree(older / name, path)
        elif (older / name).exists():
            shutil.copy(older / name, path)

    loop.hire()
    loop.ended(loop.send("anything new?", "c2"))
    assert "the state directory is older than the database" in said(loop)
    restored = check(loop, "restored")
    assert restored["state"] == "fail"
    assert lost.id in restored["text"]
    assert [one.state for one in loop.sessions()] == [SessionState.RUNNING]
    assert_refused(told(loop, "kill", lost.id), "lives: process", str(lost.pid))
    assert lost.pid is not None
    fd = os.pidfd_open(lost.pid)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    os.close(fd)
    loop.until("it has gone", lambda: not alive(lost.pid))
    assert facts(told(loop, "kill", lost.id, "--json"))["session_id"] == lost.id
    loop.until("its agent is told", lambda: "lost, its exit status is not known" in heard(loop, "c1"))
    assert loop.callbacks() == [f"EXEC_CALLBACK:{lost.id}"]
    assert generation.read(loop.home).older is None


def test_an_emptied_state_directory_of_the_same_moment_still_tells_the_end(loop: Stage) -> None:
    loop.hire()
    lost = in_background(loop, "exec sleep 1000")
    loop.workers[-1].stop()
    pid, keeper = loop.supervisor_pids()
    for each in (keeper, pid, lost.pid or 0):
        fd = os.pidfd_open(each)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
    shutil.rmtree(loop.home / layout.SESSIONS)
    loop.hire()
    loop.until("it is told", lambda: "lost, its exit status is not known" in heard(loop, "c1"))
    assert loop.callbacks() == [f"EXEC_CALLBACK:{lost.id}"]
