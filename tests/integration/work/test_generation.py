"""One count in the database and in the state directory: a crash between the two is told from a restored backup."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.wire import layout
from shellback.storage import sessions as session_rows
from shellback.storage.db import Database
from shellback.storage.errors import HomeUnusable
from shellback.storage.tables import hosts
from shellback.wiring.spaces import bound
from shellback.work.hosts import generation, unknown
from shellback.work.hosts import hosts as host_rows
from shellback.work.hosts.generation import Count, Generation, older
from shellback.work.queue import dead_letters
from shellback.work.queue.callbacks import CallbackSink
from shellback.work.queue.queues import DbosEnqueuer
from tests.bound import added
from tests.commands import assert_refused, facts, shellback, told
from tests.items import NotedEnqueuer, unrung
from tests.stage import Stage, stage
from tests.supervisors import kill, raising

HOST = "0123456789abcdef0123456789abcdef"


def starting(conn: sa.Connection) -> None:
    host_rows.heard_of(conn, HOST)


class Pair:
    """The two counts, of a worker that starts again and again."""

    def __init__(self, home: Path, database: Database) -> None:
        (home / "host_id").write_text(f"{HOST}\n")
        self.home, self.database = home, database
        self.file = home / generation.FILE
        self.generation = Generation(home, HOST, database)

    def start(self, times: int = 1, act: Callable[[sa.Connection], None] = starting) -> str | None:
        """What the last of these starts finds behind."""
        found = [self.generation.count(act) for _ in range(times)]
        assert not any(found[:-1])
        return found[-1]

    def read(self) -> Count:
        return generation.read(self.home)

    def both(self) -> tuple[int | None, Count]:
        return self.database.read_now(generation.in_database, HOST), self.read()


@pytest.fixture
def pair(tmp_path: Path, database: Database) -> Pair:
    return Pair(tmp_path, database)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every later write of the count fail."""

    return lambda: monkeypatch.setattr(generation, "write", raising(OSError(28, "No space left on device")))


@pytest.mark.parametrize(
    ("in_database", "committed", "attempted", "behind"),
    [
        (0, 0, 0, None),
        (5, 5, 5, None),
        (5, 5, 6, None),
        (6, 5, 6, None),
        (4, 5, 5, "database"),
        (4, 5, 6, "database"),
        (0, 5, 5, "database"),
        (None, 5, 5, None),
        (6, 5, 5, "directory"),
        (7, 5, 6, "directory"),
    ],
)
def test_only_a_crash_explains_a_difference_of_one(
    in_database: int | None, committed: int, attempted: int, behind: str | None
) -> None:
    assert older(in_database, Count(committed=committed, attempted=attempted)) == behind


def test_both_count_alike_and_so_do_workers_that_start_at_once(pair: Pair) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(pair.start, [1] * 12)) == [None] * 12
    assert pair.both() == (12, Count(committed=12, attempted=12))


def test_a_crash_before_or_after_the_commit_is_no_restored_backup(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.start()

    with pytest.raises(KeyboardInterrupt):
        pair.start(act=raising(KeyboardInterrupt()))
    assert pair.both() == (1, Count(committed=1, attempted=2))
    assert pair.start() is None
    write = generation.write

    def unconfirmed(home: Path, one: Count) -> None:
        if one.committed != one.attempted:
            write(home, one)

    monkeypatch.setattr(generation, "write", unconfirmed)
    assert pair.start() is None
    monkeypatch.undo()
    known, kept = pair.both()
    assert known is not None
    assert (known, kept.committed) == (kept.attempted, known - 1)
    assert pair.start() is None


def test_what_is_found_behind_is_remembered_until_it_is_settled(pair: Pair) -> None:
    pair.start(3)
    pair.database.write_now(lambda conn: conn.execute(sa.update(hosts).values(generation=1)))
    assert pair.start() == "database"
    assert pair.start() is None, "told once"
    kept = pair.read()
    assert (kept.older, kept.database, kept.directory) == ("database", 1, 3)
    assert generation.absence_tells(pair.home, kept.since - 1)
    pair.generation.settled()
    assert pair.read().older is None

    pair.file.unlink()
    assert pair.start() == "directory"
    kept = pair.read()
    assert not generation.absence_tells(pair.home, kept.since - 1)
    assert generation.absence_tells(pair.home, kept.since + 1), "what began since is not older"


def test_a_directory_that_cannot_be_written_keeps_no_worker_from_starting(
    pair: Pair, full: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    pair.start()
    full()
    assert pair.start() is None
    assert "No space left on device" in caplog.text
    assert pair.both() == (1, Count(committed=1, attempted=1))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", "{", '{"committed": "x"}', '{"committed": 3, "attempted": 1}', '{"other": 1}',
        '{"committed": 1e400, "attempted": 1e400}', '{"attempted": 1000000000000000000000000}',
        '{"older": "database", "since": "x"}', '{"older": ["database"]}', '{"committed": NaN}',
    ],
)  # fmt: skip
def test_a_damaged_count_is_refused_with_its_path_and_can_be_removed(pair: Pair, text: str) -> None:
    pair.start()
    pair.file.write_text(text)
    with pytest.raises(HomeUnusable, match=f"{pair.home}.*remove it"):
        pair.start()
    assert pair.database.read_now(generation.in_database, HOST) == 1
    pair.file.unlink()
    assert pair.start() == "directory", "which leaves alone what the directory does not know"


def test_a_host_that_the_database_forgot_or_never_met_is_not_taken_for_a_restored_backup(pair: Pair) -> None:
    pair.start(3)
    pair.database.write_now(lambda conn: conn.execute(sa.delete(hosts)))
    assert pair.start() is None
    assert pair.both() == (4, Count(committed=4, attempted=4))


def test_a_worker_whose_directory_became_another_hosts_counts_nothing_there(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.start(2)
    pair.file.unlink()
    (pair.home / "host_id").write_text("f" * 32 + "\n")
    assert pair.start() is None
    assert "another host's" in caplog.text
    assert not pair.file.exists()


def test_a_lock_that_a_stopped_process_holds_and_a_full_disk_hold_nobody_up(
    pair: Pair, full: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "_LOCK_S", 0.1)
    pair.start()
    with (pair.home / "generation.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert pair.start() is None
        pair.generation.settled()
    assert pair.both() == (1, Count(committed=1, attempted=1))
    pair.file.unlink()
    assert pair.start() == "directory"
    full()
    pair.generation.settled()
    assert pair.read().older == "directory"


# -- adoption, on both databases -------------------------------------------------------------------


def home_of(tmp_path: Path) -> unknown.Home:
    return unknown.Home(
        host_id=HOST, uid=os.geteuid(), backend="host", profile="work", workspace="/w",
        log_path=lambda name: f"/w/{name}.log", sessions=tmp_path,
    )  # fmt: skip


def a_stranger(name: str, end: SessionEnd | None = None) -> unknown.Unknown:
    return unknown.Unknown(id=SessionId(name), state="running", pid=4711, since=50.0, command="sleep 9", end=end)


def test_an_adopted_process_is_told_once_however_often_and_however_it_ends(database: Database, tmp_path: Path) -> None:
    enqueuer = NotedEnqueuer()
    sink = CallbackSink(enqueuer, HOST, lambda session: {"session_id": session.id})
    end = SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=60.0)
    home = home_of(tmp_path)
    first = database.write_now(unknown.adopt, a_stranger("x1"), "c1", home, sink, by="ann")
    assert (first.state, first.delivery, first.command) == (SessionState.RUNNING, Delivery.CALLBACK, "sleep 9")
    assert (first.tool_call_id, first.turn_id, first.created_at) == ("adopted by ann", "", 50.0)
    assert enqueuer.items == []
    for _ in range(2):
        database.write_now(session_rows.finish, first.id, end, sink)
    second = database.write_now(unknown.adopt, a_stranger("x2", end), "c1", home, sink, by="ann")
    assert (second.state, second.end) == (SessionState.EXITED, end)
    assert [item.id for item in enqueuer.items] == ["EXEC_CALLBACK:x1", "EXEC_CALLBACK:x2"]
    for name in ("x1", "x2"):
        with pytest.raises(unknown.AdoptionRefused, match="belongs to conversation c1 already"):
            database.write_now(unknown.adopt, a_stranger(name), "c2", home, sink, by="ann")


def test_a_conversation_of_another_host_takes_no_process_of_this_one(database: Database, tmp_path: Path) -> None:
    sink = CallbackSink(NotedEnqueuer(), HOST, lambda _: {})
    elsewhere = replace(home_of(tmp_path), host_id="elsewhere")
    database.write_now(unknown.adopt, a_stranger("x1"), "c1", elsewhere, sink, by="ann")
    with pytest.raises(unknown.AdoptionRefused, match="is of host elsewhere"):
        database.write_now(unknown.adopt, a_stranger("x2"), "c1", home_of(tmp_path), sink, by="ann")
    assert [one.id for one in database.read_now(session_rows.find)] == ["x1"]


# -- what the queue gave up ------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"])
def test_a_callback_that_was_given_up_unread_and_items_for_nobody_are_found(
    database: Database, database_url: str, tmp_path: Path, status: str
) -> None:
    from dbos import DBOSClient

    client = DBOSClient(system_database_url=database_url)
    try:
        sink = CallbackSink(DbosEnqueuer(client, unrung), HOST, lambda _: {})
        end = SessionEnd(state=SessionState.EXITED, exit_code=3, ended_at=60.0)
        database.write_now(unknown.adopt, a_stranger("x1", end), "c1", home_of(tmp_path), sink, by="ann")
        assert database.read_now(dead_letters.callbacks) == []
        assert database.read_now(dead_letters.for_nobody, HOST) == {}
        assert database.read_now(dead_letters.for_nobody, "another") == {HOST: 1}

        def give_up(conn: sa.Connection) -> None:
            table = "workflow_status" if database.dialect == "sqlite" else "dbos.workflow_status"
            conn.execute(sa.text(f"UPDATE {table} SET status = :status"), {"status": status})

        database.write_now(give_up)
        found = database.read_now(dead_letters.callbacks)
        assert [(one.session_id, one.conversation_id, one.status) for one in found] == [("x1", "c1", status)]
        assert database.read_now(dead_letters.for_nobody, "another") == {}
    finally:
        client.destroy()


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
    assert_refused(told(loop, "adopt", "process", adopted.id, "-c", "other"), "already belongs to conversation new")


def test_an_unknown_process_is_linked_where_the_conversation_works_that_gets_it(loop: Stage) -> None:
    web = added(loop, "web")
    loop.hire()
    copy = backed_up(loop)
    one = in_background(loop, "exec sleep 1000")
    loop.workers[-1].stop()
    restore(loop, copy)
    loop.send("hello", "shop", workspace=bound(loop.settings, "web"))
    facts(told(loop, "adopt", "process", one.id, "-c", "shop", "--json"))
    (session,) = loop.sessions()
    assert session.workspace == str(web)
    assert Path(session.log_path).is_relative_to(web)
    assert os.path.lexists(session.log_path)


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


def test_sessions_that_an_older_state_directory_does_not_know_are_left_until_a_person_settles_them(loop: Stage) -> None:
    loop.hire()
    older = loop.root / "older"
    left_out = shutil.ignore_patterns("shellback.db*", "supervisor", "bells", "desk", "*.log")
    shutil.copytree(loop.home, older, ignore=left_out)
    lost = in_background(loop, "exec sleep 1000")
    loop.workers[-1].stop()
    pid, keeper = loop.supervisor_pids()
    for each in (keeper, pid):
        kill(each)
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
    assert_refused(told(loop, "kill", lost.id), "its process", str(lost.pid))
    assert lost.pid is not None
    kill(lost.pid)
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
        kill(each)
    shutil.rmtree(loop.home / layout.SESSIONS)
    loop.hire()
    loop.until("it is told", lambda: "lost, its exit status is not known" in heard(loop, "c1"))
    assert loop.callbacks() == [f"EXEC_CALLBACK:{lost.id}"]
