"""A machine that has run out of something: refused by name, what runs goes on, and all is well when there is room."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
from pathlib import Path

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import SpawnFailed
from shellback.exec.engine.ends import Ends
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.wire import layout
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import mailbox
from shellback.work.queue.callbacks import CallbackSink
from tests.items import NotedEnqueuer
from tests.sessions import EXITED, a_session
from tests.supervisors import SOON, Rig, gone, removed, rig, until
from tests.surroundings import small_rig

pytestmark = pytest.mark.anyio


async def test_a_full_disk_costs_output_and_never_a_status(tmp_path: Path) -> None:
    async with small_rig(tmp_path) as sup:
        pid, _ = await sup.pids()
        await sup.start("a", "echo one; read line; seq 100000; exit 7", keep_stdin_open=True)
        await sup.start("b", "read line; exit 8", keep_stdin_open=True)
        await sup.until_log("a", b"one")
        sup.fill()
        await sup.client.write("a", b"\n")
        full = await sup.exit("a")
        printed = len("".join(f"{number}\n" for number in range(1, 100_001)))
        assert (full["state"], full["exit_code"], full["bytes_total"]) == ("exited", 7, 4 + printed)
        assert printed - 4096 <= full["bytes_dropped"] <= printed
        assert not await sup.client.ack("a")
        outcomes = [await sup.start(f"s{number}", f"exit {number}") for number in range(40)]
        refused = {(answer.outcome, answer.code) for answer in outcomes if answer.outcome != "started"}
        assert refused == {("refused", "disk")}
        for number, answer in enumerate(outcomes):
            if answer.outcome == "started":
                assert (await sup.exit(f"s{number}"))["exit_code"] == number
        assert (await sup.pids())[0] == pid
        await sup.kill_supervisor()
        await sup.client.write("b", b"\n")
        assert (await sup.exit("b"))["exit_code"] == 8
        assert (await sup.client.status("a"))["record"] == full
        sup.forget()
        sup.make_room()
        for name in ("a", "b"):
            assert (await sup.exit(name))["exit_code"] in {7, 8}, "told once more when it can be acknowledged"
            assert (sup.folder(name) / layout.EXIT).exists()
            assert await sup.client.ack(name)
        assert json.loads((sup.folder("a") / layout.ACKED).read_text()) == full
        again = await sup.start("s39", "echo whole; exit 5")
        assert again.outcome == "started"
        assert (await sup.exit("s39"))["exit_code"] == 5
        assert sup.log("s39") == b"whole\n"


async def test_a_log_goes_on_behind_what_a_full_disk_has_cost(tmp_path: Path) -> None:
    async with small_rig(tmp_path) as sup:
        script = "echo one; read a; echo two; seq 20000; read b; echo four; exit 7"
        await sup.start("a", script, keep_stdin_open=True)
        await sup.until_log("a", b"one\n")
        sup.fill()
        await sup.client.write("a", b"\n")
        await _printed(sup, "a", 4 + 4 + 108_894)
        sup.make_room()
        await asyncio.sleep(0.6)  # a full log is not tried with every byte, but twice a second
        await sup.client.write("a", b"\n")
        record = await sup.exit("a")
        rows = json.loads((sup.folder("a") / layout.HOLES).read_text())
        log = sup.log("a")
        assert log.endswith(b"four\n")
        assert len(log) == record["bytes_total"]
        assert record["bytes_dropped"] == sum(row["end"] - row["start"] for row in rows) > 0
        whole = b"one\ntwo\n" + b"".join(b"%d\n" % number for number in range(1, 20_001)) + b"four\n"
        at = 0
        for row in rows:
            assert log[at : row["start"]] == whole[at : row["start"]]
            assert whole[row["start"] : row["end"]].count(b"\n") == row["newlines"]
            at = row["end"]
        assert log[at:] == whole[at:]


async def test_an_end_that_the_database_has_no_room_for_is_recorded_when_it_has(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, queue = Database(sqlite_url), NotedEnqueuer()
    store = SqlSessionStore(database, sink=CallbackSink(queue, "h", lambda _: {}))
    session = a_session(command="x" * 100_000, turn_id="")
    acknowledged: list[str] = []

    async def acknowledge(session_id: str) -> None:
        acknowledged.append(session_id)

    def bound(pages: int) -> None:
        database.write_now(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close())

    try:
        await store.claim(session)
        await store.started(session.id, pid=5, started_at=1.0)
        ends = Ends(store, ExecRegistry(store), acknowledge)
        bound(1)  # SQLite takes that for no more than there are
        ends.received(session.id, EXITED)
        await until(lambda: caplog.text.count("is not recorded yet") >= 2)
        assert "is full" in caplog.text
        assert not acknowledged
        bound(1 << 30)
        async with asyncio.timeout(30):
            await ends.settled()
        assert acknowledged == [session.id]
        ended = await store.get(session.id)
        assert ended is not None
        assert ended.end == EXITED
        assert [item.id for item in queue.items][-1] == f"EXEC_CALLBACK:{session.id}"
        count = sa.select(sa.func.count()).select_from(mailbox)
        assert database.read_now(lambda conn: conn.execute(count).scalar_one()) == 1
    finally:
        database.close()


async def _printed(sup: Rig, name: str, size: int) -> None:
    async with asyncio.timeout(SOON):
        while (await sup.client.status(name))["bytes_total"] < size:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)


async def test_a_read_only_state_directory_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system anew that others look into")
    async with small_rig(tmp_path, below=layout.SESSIONS) as sup:
        sup.remount("ro")
        answer = await sup.start("a", "exit 3")
        assert (answer.outcome, answer.message) == ("refused", "Read-only file system")
        assert (await sup.client.status("a"))["state"] == "unknown"
        sup.remount("rw")
        assert (await sup.run("a", "exit 3"))["exit_code"] == 3


@pytest.mark.parametrize("pty", [None, (24, 80)])
async def test_a_process_limit_is_the_reason_and_starts_nothing_twice(sup: Rig, pty: tuple[int, int] | None) -> None:
    pid, _ = await sup.pids()
    await sup.start("runs", "read line; exit 7", keep_stdin_open=True)
    _, most = resource.prlimit(pid, resource.RLIMIT_NPROC)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (0, most))
    answer = await sup.start("a", "exit 3", pty=pty)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))
    assert answer.outcome == "start_failed"
    assert answer.record is not None
    assert (answer.record["errno"], answer.record["exit_code"]) == (errno.EAGAIN, None)
    assert (await sup.start("a", "exit 3", pty=pty)).outcome in {"already", "start_failed"}
    await sup.client.write("runs", b"\n")
    assert (await sup.exit("runs"))["exit_code"] == 7
    assert (await sup.run("b", "exit 3", pty=pty))["exit_code"] == 3


async def test_what_runs_ends_as_it_would_when_no_descriptor_is_left(tmp_path: Path) -> None:
    async with rig(tmp_path, crash_dir=None) as sup:  # an armed point needs a descriptor to look at
        pid, _ = await sup.pids()
        await sup.start("a", "read line; echo out; sleep 0.1; echo more; exit 7", keep_stdin_open=True)
        await sup.start("b", "exec sleep 60")
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        await sup.client.write("a", b"\n")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, most))
        record = await sup.exit("a")
        refused = await sup.start("c", "exit 3")
        assert (refused.outcome, refused.code) == ("refused", "descriptors")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        assert (record["exit_code"], sup.log("a")) == (7, b"out\nmore\n")
        await until((sup.folder("a") / layout.EXIT).exists)
        assert (await sup.run("c", "exit 3"))["exit_code"] == 3
        assert (await sup.client.kill("b", grace_s=0, ended_by="agent")).killed
        assert (await sup.pids())[0] == pid


async def test_a_state_directory_that_is_removed_costs_no_status_and_is_made_anew(sup: Rig) -> None:
    pid, keeper = await sup.pids()
    await sup.start("a", "read line; exit 7", keep_stdin_open=True, background=True)
    await sup.start("b", "read line; exit 8", keep_stdin_open=True)
    await until(lambda: removed(sup.home))
    await sup.client.write("a", b"\n")
    assert (await sup.exit("a"))["exit_code"] == 7
    refused = await sup.start("c", "exit 3")
    assert (refused.outcome, refused.code) == ("refused", "state_gone")
    assert "was removed" in refused.message
    with pytest.raises(SpawnFailed, match="was removed"):
        await sup.client.abandon("c")
    await sup.client.write("b", b"\n")
    assert (await sup.exit("b"))["exit_code"] == 8
    assert await gone(pid)
    assert await gone(keeper)
    assert (await sup.run("c", "exit 3"))["exit_code"] == 3
    assert sup.folder("c").exists()
