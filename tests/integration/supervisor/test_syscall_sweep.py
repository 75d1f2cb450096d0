"""A sample of the sweep over system calls: the order of a session's calls, and some kills and errors at them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.syscalls import tracer
from chaos.syscalls.life import template, watch
from chaos.syscalls.points import ALL, forked, marked
from chaos.syscalls.tracer import Call
from shellback.exec.supervisor.process import procfs
from tests.databases import unavailable
from tests.supervisors import rig, until


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Path:
    try:
        tracer.check()
    except tracer.NoTracing as error:
        unavailable(str(error))
    path = tmp_path_factory.mktemp("sweep") / "template.db"
    shutil.copyfile(sqlite_template, path)
    return template(path)


@pytest.fixture(scope="module")
def trace(database: Path) -> list[Call]:
    """All threads of a supervisor during a session's life."""
    path = database.with_name("trace")
    count = watch("session", "supervisor", ALL, database, path)
    assert count.clean, count
    return tracer.calls(path)


def first(calls: list[Call], what: Callable[[Call], bool], after: int = -1) -> int:
    return next(index for index, call in enumerate(calls) if index > after and what(call))


def named(name: str, *texts: str) -> Callable[[Call], bool]:
    return lambda call: call.name == name and call.done and all(text in call.text for text in texts)


def test_the_order_is_mark_fork_record_ring_and_only_then_reap_and_sync(trace: list[Call]) -> None:
    mark = first(trace, marked)
    assert "O_EXCL" in trace[mark].text
    fork = first(trace, forked, mark)
    assert len([call for call in trace if forked(call) and call.thread == trace[mark].thread]) == 1
    peeked = first(trace, named("waitid", "P_PIDFD", "WNOWAIT"), fork)
    written = first(trace, named("write", "exit.json.new", "exit_code"))
    renamed = first(trace, named("renameat", 'exit.json.new"', 'exit.json"'))
    rung = first(trace, named("sendto", '\\"event\\":\\"exit\\"'))
    reaped = first(trace, lambda call: named("waitid", "P_PIDFD")(call) and "WNOWAIT" not in call.text)
    assert mark < fork < peeked < written < renamed < rung < reaped
    synced = first(trace, named("fsync", "/exit.json>"))
    assert rung < synced < first(trace, named("fsync"), synced)


@pytest.mark.anyio
@pytest.mark.usefixtures("database")
async def test_an_orphan_that_ends_while_the_first_thread_is_about_to_wait_is_reaped(tmp_path: Path) -> None:
    orphan = "(sleep 0.1 </dev/null >/dev/null 2>&1 & echo $!)"
    async with rig(tmp_path) as r:
        supervisor, _ = await r.pids()
        with tracer.attached(supervisor, tmp_path / "trace", inject="rt_sigtimedwait,read:delay_enter=1000000"):
            await r.run("orphaned", orphan)
            pid = int(r.log("orphaned"))
            await until(lambda: procfs.read(pid) is None)
