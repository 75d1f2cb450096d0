"""Output that no disk takes: every count of it is true or says that it is not known, and the agent is told why."""

from __future__ import annotations

import errno
import os
import re
import resource
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.core.model import Session
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.logs import empty_logs
from shellback.exec.log.output import OutputLog
from shellback.exec.reports.callback_text import callback_payload, wake_text
from shellback.exec.reports.render import ended_line, measured, polled
from shellback.exec.wire import gaps, layout
from tests.execs import GATE, backend_of, end_all, launch, let_go, places
from tests.supervisors import SOON, rig, until
from tests.surroundings import SmallRig, small_rig

pytestmark = pytest.mark.anyio

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
    found = re.findall(r"printed ([\d,]+) bytes, ([\d,]+) of them dropped for good", text)
    return [(int(total.replace(",", "")), int(dropped.replace(",", ""))) for total, dropped in found]


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
        grown = await engine.supervised.grown(session.id, log.size(), err_beyond=None, rest_s=0, timeout_s=0.5)
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
        assert counts(text) == ([(0, 0)] if separate else [])


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
async def test_a_limit_of_file_sizes_costs_output_and_every_count_has_it(tmp_path: Path, separate: bool) -> None:
    limit = 1 << 20
    async with rig(tmp_path) as sup:
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
