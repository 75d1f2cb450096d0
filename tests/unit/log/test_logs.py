"""Old logs go, the oldest when all are too many; never one that somebody may still need."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.engine.sessions import Sessions
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import cleanup_exec_logs, empty_logs, kept_logs, remove_session
from shellback.exec.log.output import OutputLog
from shellback.exec.supervisor.records.logfile import LogFile
from shellback.exec.supervisor.records.records import Records
from shellback.exec.wire import layout, linux
from tests.supervisors import raising, returning
from tests.unit.reports.test_render import SESSION

HOUR = 3600.0
NOW = 1_000_000.0
MB = 1024 * 1024
TEXT = "0123456789abcde\n" * (MB // 16)


class Logs:
    def __init__(self, root: Path) -> None:
        (root / "ws").mkdir()
        self.sessions = root / "sessions"
        self.links = LogLinks(root / "ws", self.sessions)
        self.store = MemorySessionStore()

    def keep(
        self,
        name: str,
        age_hours: float | None,
        text: str = "x",
        delivery: Delivery = Delivery.CALLBACK,
        conversation: str = SESSION.conversation_id,
    ) -> None:
        """A session whose end was acknowledged so long ago; None is one that runs."""
        session = replace(SESSION, id=SessionId(name), conversation_id=conversation, delivery=delivery)
        self.run(self.store.claim(replace(session, state=SessionState.CLAIMED)))
        directory = self.sessions / name
        directory.mkdir(parents=True)
        (directory / "log").write_text(text)
        self.links.add(name, separate_stderr=False)
        at = NOW if age_hours is None else NOW - age_hours * HOUR
        if age_hours is not None:
            (directory / "acked.json").write_text("{}")
            end = SessionEnd(state=SessionState.EXITED, exit_code=0, ended_at=at, bytes_total=len(text))
            self.run(self.store.finish(SessionId(name), end))
        for path in (*directory.iterdir(), directory):
            os.utime(path, (at, at))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def clean(self, **more: Any) -> list[str]:
        return self.run(cleanup_exec_logs(self.store, self.links, now=NOW, **more))

    def read(self, name: str) -> Any:
        return self.run(OutputLog(self.sessions / name, name).lines(0, 10))

    def there(self) -> list[str]:
        return sorted(path.name for path in self.sessions.iterdir())


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_only_old_ended_and_delivered_ones_go(logs: Logs, tmp_path: Path) -> None:
    for name, age in (("old", 200.0), ("young", 100.0), ("untold", 200.0), ("running", None)):
        logs.keep(name, age)
    logs.keep("awaited", 200.0, delivery=Delivery.INLINE)
    assert logs.clean(undelivered={"untold"}) == ["old"]
    assert logs.there() == ["awaited", "running", "untold", "young"]
    assert not (tmp_path / "ws/.tmp/exec/old.log").is_symlink()
    assert (tmp_path / "ws/.tmp/exec/young.log").is_symlink()
    assert logs.clean(undelivered={"untold"}) == []
    assert logs.run(logs.store.get(SessionId("old"))) is not None
    logs.links.close()


def test_the_age_is_that_of_the_end_and_168_hours_by_default(logs: Logs) -> None:
    logs.keep("a", 167.9)
    logs.keep("b", 168.1)
    assert logs.clean() == ["b"]


def test_what_is_looked_at_are_the_logs_that_are_there_and_old(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age in (("old", 200.0), ("young", 1.0), ("gone", 300.0)):
        logs.keep(name, age)
    remove_session(logs.links, "gone")
    asked: list[str] = []
    get = logs.store.get

    async def noted(session_id: SessionId) -> Any:
        asked.append(session_id)
        return await get(session_id)

    monkeypatch.setattr(logs.store, "get", noted)
    logs.clean()
    assert asked == ["old"]


def test_an_end_that_the_supervisor_still_tells_keeps_its_directory(logs: Logs) -> None:
    logs.keep("old", 200.0)
    (logs.sessions / "old/acked.json").rename(logs.sessions / "old/exit.json")
    os.utime(logs.sessions / "old", (0, 0))
    assert logs.clean() == []
    assert logs.there() == ["old"]


def test_beyond_the_budget_the_oldest_ended_and_delivered_logs_are_emptied(logs: Logs) -> None:
    for name, age in (("running", None), ("untold", 9.0), ("oldest", 8.0), ("older", 7.0), ("new", 6.0)):
        logs.keep(name, age, TEXT)
    assert logs.clean(undelivered={"untold"}, total_bytes=3 * MB + MB // 2) == ["oldest", "older"]
    sizes: dict[str, int] = {one.session_id: one.log_bytes for one in kept_logs(logs.sessions)}
    assert sizes["oldest"] == sizes["older"] == 0
    assert min(sizes[name] for name in ("running", "untold", "new")) >= MB
    assert logs.clean(undelivered={"untold"}, total_bytes=3 * MB + MB // 2) == []


def test_a_conversation_displaces_its_own_logs_before_those_of_others(logs: Logs) -> None:
    logs.keep("quiet", 9.0, TEXT, conversation="quiet")
    for number in range(5):
        logs.keep(f"loud{number}", 8.0 - number, TEXT, conversation="loud")
    assert logs.clean(total_bytes=4 * MB, conversation_bytes=3 * MB) == ["loud0", "loud1", "loud2"]
    sizes = {str(one.session_id): one.log_bytes for one in kept_logs(logs.sessions)}
    assert sizes["quiet"] >= MB
    assert logs.clean(total_bytes=4 * MB, conversation_bytes=3 * MB) == []


def test_what_a_conversation_writes_at_the_moment_displaces_nobody_elses_logs(logs: Logs) -> None:
    logs.keep("quiet", 9.0, TEXT, conversation="quiet")
    for number in range(6):
        logs.keep(f"loud{number}", None, TEXT, conversation="loud")
    assert logs.clean(total_bytes=4 * MB, conversation_bytes=2 * MB) == []
    assert logs.clean(total_bytes=4 * MB) == ["quiet"]


def test_of_many_conversations_within_their_quota_the_oldest_logs_go(logs: Logs) -> None:
    for number in range(5):
        logs.keep(f"log{number}", 9.0 - number, TEXT, conversation=f"talk{number}")
    assert logs.clean(total_bytes=3 * MB + MB // 2, conversation_bytes=2 * MB) == ["log0", "log1"]


def test_a_reader_of_an_emptied_log_is_told_how_much_there_was(logs: Logs) -> None:
    logs.keep("old", 8.0, "line\n" * 100_000)
    assert logs.clean(total_bytes=1) == ["old"]
    read = logs.read("old")
    assert (read.bytes_total, read.bytes_dropped, read.dropped_lines) == (500_000, 500_000, 100_000)
    assert read.lines_total == 100_000
    assert "emptied to make room on the disk: 500,000 bytes with 100,000 line ends" in read.text


def test_a_reader_of_a_log_that_is_gone_for_its_age_is_told_so(logs: Logs) -> None:
    logs.keep("old", 200.0, "x" * 500)
    logs.keep("silent", 200.0, "")
    assert sorted(logs.clean()) == ["old", "silent"]

    def output(session: Session) -> OutputLog:
        return OutputLog(logs.sessions / session.id, session.id)

    def streams(session: Session) -> tuple[OutputLog, None]:
        return output(session), None

    engine: Any = SimpleNamespace(registry=ExecRegistry(logs.store), output=output, streams=streams, host_id="h")
    sessions = Sessions(engine, None)
    for read in (sessions.log_lines("old", 0, 10), sessions.log_bytes("old", 0, 10)):
        with pytest.raises(InvalidCommand, match="has expired; it had 500 bytes"):
            logs.run(read)
    assert logs.run(sessions.log_lines("silent", 0, 10))[1].text == ""


def test_without_a_budget_and_within_it_nothing_is_emptied(logs: Logs) -> None:
    logs.keep("old", 8.0, "line\n" * 100_000)
    assert logs.clean(total_bytes=0) == logs.clean(total_bytes=MB) == []
    assert logs.read("old").bytes_dropped == 0


def test_a_log_that_is_still_written_to_is_not_emptied(logs: Logs) -> None:
    """What an ended process has left behind holds its pipe."""
    logs.keep("old", 8.0, "line\n" * 1000)
    os.utime(logs.sessions / "old/log", (NOW, NOW))
    assert logs.clean(total_bytes=1) == []


def test_what_counts_is_what_a_log_takes_on_the_disk(logs: Logs) -> None:
    logs.keep("sparse", 8.0, "")
    with (logs.sessions / "sparse/log").open("r+b") as file:
        file.truncate(100 * MB)
    os.utime(logs.sessions / "sparse/log", (0, 0))
    logs.keep("dense", 7.0, "x" * MB)
    assert logs.clean(total_bytes=10 * MB) == []


def test_what_cannot_be_read_or_removed_stays_and_is_in_nobodys_way(
    logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("foreign", "kept", "linked", "old"):
        logs.keep(name, 200.0)
    (logs.sessions / "linked").rename(tmp_path / "elsewhere")
    (logs.sessions / "linked").symlink_to(tmp_path / "elsewhere")
    scandir, rmtree = os.scandir, shutil.rmtree

    def unreadable(path: Any) -> Any:
        if str(path).endswith("foreign"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    def unremovable(path: Any) -> None:
        if str(path).endswith("kept"):
            raise PermissionError(13, "Permission denied")
        rmtree(path)

    monkeypatch.setattr(os, "scandir", unreadable)
    monkeypatch.setattr(shutil, "rmtree", unremovable)
    assert logs.clean() == ["old"]
    assert [one.session_id for one in kept_logs(logs.sessions)] == ["kept"]
    assert not remove_session(logs.links, "linked")
    assert logs.there() == ["foreign", "kept", "linked"]
    assert (tmp_path / "elsewhere/log").read_text() == "x"
    assert {record.message.split(" ", 1)[0].rpartition("/")[2] for record in caplog.records} == {
        "foreign", "kept", "linked",
    }  # fmt: skip


def test_a_log_of_which_nothing_can_be_noted_stays_and_the_next_one_is_emptied(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, age in (("older", 8.0), ("old", 7.0)):
        logs.keep(name, age, "line\n" * 1000)
    write_text = Path.write_text

    def full(path: Path, *args: Any) -> int:
        if "older" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, *args)

    def no_inode(_text: str, path: str, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(os, "symlink", no_inode)
    assert logs.clean(total_bytes=1) == ["old"]
    assert logs.read("older").bytes_dropped == 0


def test_no_more_is_emptied_where_blocks_are_counted_late(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age in (("older", 8.0), ("old", 7.0)):
        logs.keep(name, age, "x" * MB)

    def later(_fd: int, _start: int, _size: int) -> None:
        """The blocks are given back at the next commit of the file system."""

    monkeypatch.setattr(linux, "punch_hole", later)
    assert logs.clean(total_bytes=MB + MB // 2) == ["older"]


def test_what_writes_on_after_the_log_was_emptied_does_not_bring_back_what_was_dropped(logs: Logs) -> None:
    """A child that the ended process has left behind holds its output."""
    directory = logs.sessions / "s"
    directory.mkdir(parents=True)
    records = Records(str(logs.sessions.parent))
    file = LogFile(records, "s", (layout.LOG, layout.HOLES), 1 << 16)
    output, writer = os.pipe()
    os.set_blocking(output, False)

    def write(pages: int) -> None:
        for _ in range(pages):
            os.write(writer, b"0123456789abcde\n" * 256)
            while file.take(output, 4096) > 0:
                pass

    write(10)
    assert empty_logs(directory, before=2e9)
    write(5)
    assert logs.read("s").bytes_dropped == 10 * 4096
    write(25)
    file.close()
    read = logs.read("s")
    assert read.bytes_total == 40 * 4096
    assert read.lines_total == 40 * 256
    assert read.bytes_dropped >= 40 * 4096 - (1 << 16)
    text = logs.run(OutputLog(directory, "s").bytes(0, 20_000)).text
    assert "\0" not in text
    assert text.startswith("\n[")
    for fd in (output, writer, records.fd):
        os.close(fd)


def test_two_workers_of_a_host_empty_and_remove_no_more_than_one(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age in (("oldest", 8.0), ("older", 7.0), ("old", 6.0)):
        logs.keep(name, age, "x" * MB)
    seen = kept_logs(logs.sessions)
    budget = 2 * MB + MB // 2
    assert logs.clean(total_bytes=budget) == ["oldest"]

    monkeypatch.setattr("shellback.exec.log.logs.kept_logs", returning(seen))
    logs.clean(total_bytes=budget)
    assert logs.read("older").bytes_dropped == 0
    monkeypatch.setattr(shutil, "rmtree", raising(FileNotFoundError("the other one has it")))
    assert not remove_session(logs.links, "oldest")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    root.mkdir()
    return root


@pytest.fixture
def links(workspace: Path) -> Iterator[LogLinks]:
    made = LogLinks(workspace, workspace.parent / "sessions")
    yield made
    made.close()


def test_the_link_points_to_the_log(links: LogLinks, workspace: Path) -> None:
    links.add("x1", separate_stderr=True)
    links.add("x1", separate_stderr=True)
    assert links.path("x1") == f"{workspace}/.tmp/exec/x1.log"
    assert os.readlink(links.path("x1")) == f"{workspace.parent}/sessions/x1/log"
    assert os.readlink(workspace / ".tmp/exec/x1.err") == f"{workspace.parent}/sessions/x1/err"
    assert (workspace / ".tmp/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize("planted", [".tmp", ".tmp/exec"])
def test_a_planted_symlink_is_not_followed(
    links: LogLinks, workspace: Path, planted: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = workspace.parent / "elsewhere"
    target.mkdir()
    (workspace / planted).parent.mkdir(exist_ok=True)
    (workspace / planted).symlink_to(target)
    links.add("x1", separate_stderr=False)
    assert list(target.iterdir()) == []
    assert "no link to the log of session x1" in caplog.text


def test_git_ignores_the_links_from_the_first_moment_on(
    links: LogLinks, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, there = os.write, list[bool]()

    def written(fd: int, data: bytes) -> int:
        there.append((workspace / ".tmp/.gitignore").exists())
        return write(fd, data)

    monkeypatch.setattr(os, "write", written)
    links.add("s1", separate_stderr=False)
    assert there == [False], "the file comes with its content"
    assert (workspace / ".tmp/.gitignore").read_text() == "*\n"


def test_a_planted_gitignore_is_left_as_it_is(links: LogLinks, workspace: Path) -> None:
    precious = workspace.parent / "precious"
    precious.write_text("precious")
    (workspace / ".tmp").mkdir()
    (workspace / ".tmp/.gitignore").symlink_to(precious)
    links.add("x1", separate_stderr=False)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("moved", [".tmp/exec", ".tmp"])
def test_a_directory_that_was_removed_or_moved_away_is_made_again(links: LogLinks, workspace: Path, moved: str) -> None:
    links.add("x1", separate_stderr=False)
    (workspace / moved).rename(workspace / "moved")
    if moved == ".tmp/exec":
        shutil.rmtree(workspace / "moved")
    links.add("x2", separate_stderr=False)
    assert (workspace / ".tmp/exec/x2.log").is_symlink()


def test_removing_what_is_not_there_is_fine(links: LogLinks, workspace: Path) -> None:
    links.add("x1", separate_stderr=False)
    links.remove("x1")
    links.remove("x1")
    assert not (workspace / ".tmp/exec/x1.log").is_symlink()
    links.close()
