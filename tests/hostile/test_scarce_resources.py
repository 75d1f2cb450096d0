"""A machine that has run out of something: refused by name, what runs goes on, and every count of output is true."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import resource
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shellback.exec.core.errors import SpawnFailed
from shellback.exec.core.model import Session
from shellback.exec.engine.ends import Ends
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.registry import ExecRegistry
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.logs import empty_logs
from shellback.exec.log.output import OutputLog
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.reports.render import ended_line, measured, polled
from shellback.exec.wire import gaps, layout
from shellback.storage.db import Database
from shellback.storage.sessions import SqlSessionStore
from shellback.storage.tables import mailbox
from shellback.work.queue.callbacks import CallbackSink
from tests.execs import GATE, backend_of, end_all, launch, let_go, places
from tests.items import NotedEnqueuer
from tests.sessions import EXITED, a_session
from tests.supervisors import SOON, Rig, SmallRig, answered, assert_kept, failure, gone, removed, rig, small_rig, until

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
        refused = {answer["error"] for answer in outcomes if not answer["ok"]}
        assert refused == {"disk"}
        for number, answer in enumerate(outcomes):
            if answer["ok"]:
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
        assert again["outcome"] == "started"
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
        assert_kept(log, whole, rows)


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
    await answered(lambda: sup.client.status(name), lambda status: status["bytes_total"] >= size)


async def test_a_read_only_state_directory_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system anew that others look into")
    async with small_rig(tmp_path, below=layout.SESSIONS) as sup:
        sup.remount("ro")
        answer = await sup.start("a", "exit 3")
        assert answer["message"] == "Read-only file system"
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
    assert failure(answer) == errno.EAGAIN
    assert (await sup.start("a", "exit 3", pty=pty))["outcome"] in {"already", "start_failed"}
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
        assert refused["error"] == "descriptors"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        assert (record["exit_code"], sup.log("a")) == (7, b"out\nmore\n")
        await until((sup.folder("a") / layout.EXIT).exists)
        assert (await sup.run("c", "exit 3"))["exit_code"] == 3
        assert await sup.client.kill("b", grace_s=0, ended_by="agent") == ()
        assert (await sup.pids())[0] == pid


async def test_a_state_directory_that_is_removed_costs_no_status_and_is_made_anew(sup: Rig) -> None:
    pid, keeper = await sup.pids()
    await sup.start("a", "read line; exit 7", keep_stdin_open=True, background=True)
    await sup.start("b", "read line; exit 8", keep_stdin_open=True)
    await until(lambda: removed(sup.home))
    await sup.client.write("a", b"\n")
    assert (await sup.exit("a"))["exit_code"] == 7
    refused = await sup.start("c", "exit 3")
    assert refused["error"] == "state_gone"
    assert "was removed" in refused["message"]
    with pytest.raises(SpawnFailed, match="was removed"):
        await sup.client.abandon("c")
    await sup.client.write("b", b"\n")
    assert (await sup.exit("b"))["exit_code"] == 8
    assert await gone(pid)
    assert await gone(keeper)
    assert (await sup.run("c", "exit 3"))["exit_code"] == 3
    assert sup.folder("c").exists()


PRINTED = 3_000_005
FULL = "because the disk of the state directory is full"


@asynccontextmanager
async def small_engine(tmp_path: Path, **more: Any) -> AsyncGenerator[tuple[Engine, SmallRig]]:
    """An engine whose state directory has 2 MB of disk."""
    async with small_rig(tmp_path, **more) as sup:
        (tmp_path / "other").mkdir()
        workspace, _ = places(tmp_path / "other")
        client = SupervisorClient(sup.home, spawn=False, wait_s=10.0)
        async with Engine(MemorySessionStore(), client, backend_of("host", workspace), home=sup.home) as engine:
            try:
                yield engine, sup
            finally:
                await end_all(engine)


async def ended(engine: Engine, session: Session) -> Session:
    return await engine.wait(session.id, up_to=SOON)


def told(engine: Engine, session: Session) -> str:
    return wake_text(callback_payload(session, *engine.streams(session)))


def counts(text: str) -> list[tuple[int, int]]:
    """What a wake says was printed and dropped, of each stream."""
    found = re.findall(r"printed ([\d,]+) bytes(?:, ([\d,]+) of them dropped for good)?", text)
    return [(int(total.replace(",", "")), int((dropped or "0").replace(",", ""))) for total, dropped in found]


@pytest.mark.parametrize("separate", [False, True])
async def test_what_a_full_disk_has_cost_is_told_to_the_byte_and_that_it_is_full(
    tmp_path: Path, separate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with small_engine(tmp_path) as (engine, sup):
        command = f"echo first; head -c {PRINTED - 6} /dev/zero | tr '\\0' x"
        session = await launch(engine, f"({command}) >&2" if separate else command, separate_stderr=separate)
        session = await ended(engine, session)
        text = told(engine, session)
        total, dropped = counts(text)[-1]
        log = engine.output(session, err=separate)
        kept = (await log.raw(0, log.size())).rstrip(b"\0")
        assert (total, dropped) == (PRINTED, PRINTED - len(kept))
        assert dropped > 0
        assert kept == b"first\n" + b"x" * (len(kept) - 6)
        assert f"of them dropped for good {FULL}" in text
        assert "output is dropped: No space left on device" in (sup.home / "supervisor" / layout.DIARY).read_text()
        assert "output of a process was dropped: the disk of the state directory is full" in caplog.text
        shown = await log.ends()
        out, err = (shown, None) if not separate else (await engine.output(session).ends(), shown)
        assert FULL in ended_line(session, out, err)
        assert str(polled(session, out, err)["stderr_dropped_because" if separate else "dropped_because"]) in FULL
        assert f"[{dropped:,} bytes" in shown.text
        assert "first\n" in shown.text
        assert (shown.bytes_total, shown.bytes_dropped) == (PRINTED, dropped)
        assert str(measured(shown)["dropped_because"]) in FULL


async def test_while_it_runs_the_same_is_told_and_nobody_looks_without_end(tmp_path: Path) -> None:
    async with small_engine(tmp_path) as (engine, _):
        session = await launch(engine, f"head -c {PRINTED} /dev/zero | tr '\\0' x; touch done; sleep 1000")
        await until((engine.workspace / "done").exists)
        log = engine.output(session)
        await until(lambda: log.size() == PRINTED)
        shown = await log.ends()
        assert (shown.bytes_total, shown.errno, shown.uncounted) == (PRINTED, errno.ENOSPC, False)
        assert 0 < shown.bytes_dropped < PRINTED
        grown = await engine.supervised.port.grown(session.id, log.size(), err_beyond=None, rest_s=0, timeout_s=0.5)
        assert (grown.size, grown.ended) == (PRINTED, False)


@pytest.mark.parametrize("separate", [False, True])
async def test_without_even_an_inode_the_record_of_the_end_tells_the_least_that_it_was(
    tmp_path: Path, separate: bool
) -> None:
    async with small_engine(tmp_path, size="2m,nr_inodes=200") as (engine, sup):
        command = f"{GATE}; head -c {PRINTED} /dev/zero | tr '\\0' x"
        session = await launch(engine, f"({command}) >&2" if separate else command, separate_stderr=separate)
        sup.take_inodes()
        let_go(engine)
        session = await ended(engine, session)
        shown = engine.output(session, err=separate).last_lines(5, 2_000)
        assert (shown.bytes_total, shown.uncounted, shown.errno) == (PRINTED, True, errno.ENOSPC)
        text = told(engine, session)
        assert f"printed at least {PRINTED:,} bytes" in text
        assert FULL in text
        assert ("No output." in text.splitlines()) == separate


async def test_a_loss_that_a_supervisor_died_in_is_at_least_what_is_known_of_it(tmp_path: Path) -> None:
    async with small_rig(tmp_path) as sup:
        await sup.start("a", "echo one; read a; seq 20000; read b; seq 20000; exit 7", keep_stdin_open=True)
        await sup.until_log("a", b"one\n")
        sup.fill()
        await sup.client.write("a", b"\n")
        await until(lambda: gaps.read_last(str(sup.folder("a") / layout.HOLES)) is not None)
        await sup.kill_supervisor()
        await sup.client.write("a", b"\n\n")
        record = await sup.exit("a")
        assert (record["exit_code"], record.get("uncounted"), record.get("log_errno")) == (7, True, errno.ENOSPC)
        shown = OutputLog(sup.folder("a"), "a").last_lines(5, 2_000)
        assert (shown.uncounted, shown.bytes_total) == (True, record["bytes_total"])
        assert measured(shown)["uncounted"] is True
        sup.make_room()


@pytest.mark.parametrize("separate", [False, True])
async def test_a_limit_of_file_sizes_costs_output_and_every_count_has_it(sup: Rig, separate: bool) -> None:
    limit = 1 << 20
    for pid in await sup.pids():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
    script = f"head -c {PRINTED} /dev/zero | tr '\\0' x" + " >&2" * separate
    record = await sup.run("a", script, separate_stderr=separate)
    stream = "err_" * separate
    assert (record[f"{stream}bytes_total"], record[f"{stream}bytes_dropped"]) == (PRINTED, PRINTED - limit)  # type: ignore[literal-required]
    assert record.get("log_errno") == errno.EFBIG
    log = OutputLog(sup.folder("a"), "a", err=separate)
    shown = await log.ends()
    assert (log.size(), shown.bytes_total, shown.bytes_dropped) == (PRINTED, PRINTED, PRINTED - limit)
    assert f"[{PRINTED - limit:,} bytes with 0 line ends were dropped here" in shown.text
    assert "the file may not grow" in shown.text


async def test_a_full_disk_gets_room_by_emptying_logs_which_needs_none(tmp_path: Path) -> None:
    async with small_engine(tmp_path) as (engine, sup):
        session = await ended(engine, await launch(engine, "seq 20000"))
        sup.fill()
        directory = sup.folder(session.id)
        assert empty_logs(directory, time.time() + 60)
        assert os.stat(directory / layout.LOG).st_blocks <= 8  # one page
        assert "It printed 108,894 bytes, 108,894 of them dropped for good" in told(engine, session)
