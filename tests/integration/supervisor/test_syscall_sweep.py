"""A sample of the sweep over system calls: the order of a session's calls, and some kills and errors at them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.syscalls import tracer
from chaos.syscalls.life import Count, disturb, template, watch
from chaos.syscalls.points import ALL, Point, forked, marked
from chaos.syscalls.tracer import Call
from shellback.exec.supervisor.process import procfs
from tests.databases import unavailable
from tests.supervisors import rig, until

DISTURBED = {
    "the mark cannot be made": ("openat", '/started"', "EMFILE", "refused"),
    "who was forked cannot be identified": ("openat", "/stat", "EMFILE", ""),
    "who was forked cannot be watched": ("pidfd_open", "", "EMFILE", ""),
    "the pid cannot be put on record": ("write", '\\"began\\"', "ENOSPC", ""),
    "the answer to a start is not sent": ("sendto", '\\"outcome\\"', "EIO", ""),
    "the exit record has no room": ("write", '\\"exit_code\\"', "ENOSPC", ""),
    "the exit is not rung": ("sendto", '\\"event\\"', "EIO", ""),
    "the keeper does not hear what to let go": ("sendto", '\\"drop\\"', "ENOSPC", ""),
    "the acknowledgement is not noted": ("renameat", "acked.json", "EIO", ""),
    "killed before the fork": ("vfork", "", None, "never_started"),
    "killed after the fork": ("close", "", None, ""),
    "killed before the record is renamed": ("renameat", "exit.json.new", None, ""),
    "killed before the ring": ("sendto", '\\"event\\"', None, ""),
}


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
    return traced(database)


def traced(database: Path) -> list[Call]:
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


@pytest.mark.parametrize("what", DISTURBED)
def test_nothing_is_lost_or_done_twice_when(what: str, trace: list[Call], database: Path) -> None:
    error, outcome = DISTURBED[what][2:]
    count = disturbed(place_of(what, trace), error, database)
    for _ in range(2):
        # Two lives have not always the same number of calls: the one that was seen may have had one more before it.
        count = count if count.reached else disturbed(place_of(what, traced(database)), error, database)
    assert count.reached, count
    assert (count.refused, count.never_started) == (outcome == "refused", outcome == "never_started"), count


def disturbed(place: tuple[str, int], error: str | None, database: Path) -> Count:
    count = disturb(Point("session", "supervisor", "serve", *place, error), database, database.with_name("one"))
    assert count.clean, count
    return count


def place_of(what: str, trace: list[Call]) -> tuple[str, int]:
    """The name of the call that is disturbed, and the how many-th of its thread it was."""
    name, text = DISTURBED[what][:2]
    serve = trace[first(trace, marked)].thread
    own = [call for call in trace if call.thread == serve]
    if what == "killed after the fork":
        name, begin = own[first(own, forked) + 1].name, first(own, forked)
    elif name == "vfork":
        name, begin = own[first(own, forked)].name, first(own, forked) - 1
    else:
        begin = -1
    index = first(own, lambda call: call.name == name and text in call.text, begin)
    return name, sum(call.name == name for call in own[: index + 1])


@pytest.mark.parametrize(
    ("call", "error"), [("openat", "EMFILE"), ("sendto", "EIO")], ids=["look at who ended", "tell who ended"]
)
def test_a_keeper_that_cannot_do_it_now_does_it_later(call: str, error: str, database: Path) -> None:
    count = disturb(Point("recovery", "keeper", "main", call, 1, error), database, database.with_name("later"))
    assert (count.clean, count.reached) == (True, 1), count


@pytest.mark.parametrize("name", ['"', '/started"', '/log"'], ids=["its directory", "the mark", "the log"])
def test_a_supervisor_that_has_no_room_to_look_leaves_it_to_the_next_one(name: str, database: Path) -> None:
    path = database.with_name("looks")
    assert watch("recovery", "supervisor", ALL, database, path).clean
    opened = [call for call in tracer.calls(path) if call.name == "openat"]
    index = next(at for at, call in enumerate(opened) if re.search(rf'/sessions>, "[^/"]+{name}', call.text))
    nth = sum(call.thread == opened[index].thread for call in opened[: index + 1])
    count = disturb(Point("recovery", "supervisor", ALL, "openat", nth, "EMFILE"), database, path)
    assert (count.clean, count.reached) == (True, 1), count


def test_a_keeper_killed_at_its_first_message_costs_nothing(database: Path) -> None:
    count = disturb(Point("session", "keeper", "main", "recvmsg", 1), database, database.with_name("keeper"))
    assert (count.clean, count.reached) == (True, 1), count


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
