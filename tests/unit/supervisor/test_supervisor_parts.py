"""Parts of the supervisor by themselves: imports, frames, trees, namespaces, files that cannot grow, times of a log."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shellback.exec.link import launch
from shellback.exec.log.output import OutputLog
from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import landlock, link, procfs, spawn
from shellback.exec.supervisor.process.kill import Killer, Target, members
from shellback.exec.supervisor.process.link import Held, Line
from shellback.exec.supervisor.records import times
from shellback.exec.supervisor.records.diary import Diary
from shellback.exec.supervisor.records.logfile import LogFile
from shellback.exec.supervisor.records.records import Records
from shellback.exec.supervisor.records.times import Stretch, Times, offset_since, sizes, stretches
from shellback.exec.supervisor.sandbox import stubs
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.supervisor.sandbox.losses import Losses
from shellback.exec.supervisor.sandbox.proxying import Proxying
from shellback.exec.wire import gaps, layout, linux
from shellback.exec.wire.protocol import MAX_FRAME, Decoder, Message, ProtocolError, Refused, StartRequest, encode
from tests.supervisors import raising


def test_the_daemon_loads_the_standard_library_and_itself_only() -> None:
    root = Path(launch.__file__).parents[3]
    code = (
        f"import sys; sys.path.append({str(root)!r}); from shellback.exec.supervisor.service import keeper; "
        "print('\\n'.join(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    own = {name for name in modules if name.split(".")[0] == "shellback"}
    assert {name.split(".")[0] for name in modules - own} <= set(sys.stdlib_module_names) | {"__main__"}
    allowed = ("shellback.exec.supervisor", "shellback.exec.wire")
    assert {name for name in own if not name.startswith(allowed)} == {"shellback", "shellback.exec"}


@settings(database=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5), st.integers(1, 9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(messages: list[Message], size: int) -> None:
    data = b"".join(encode(message) for message in messages)
    decoder = Decoder(MAX_FRAME)
    got = [message for at in range(0, len(data), size) for message in decoder.feed(data[at : at + size])]
    assert got == messages


def test_a_frame_over_the_limit_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(ProtocolError):
        Decoder(100).feed(b"\0\0\1\0")


@settings(database=None)
@given(st.binary(max_size=100), st.text(max_size=20), st.booleans())
def test_a_start_request_survives_the_wire(stdin: bytes, word: str, flag: bool) -> None:
    request = StartRequest(
        session_id="a", argv=("x", word.replace("\0", "")), env={"A": "b"}, cwd="/", boot_id="b", uid=5, gid=None,
        groups=(1, 2), pty=(3, 4) if flag else None, stdin=stdin, keep_stdin_open=flag, timeout_s=1.5, log_cap=7,
        background=flag, umask=0o77,
    )  # fmt: skip
    (message,) = Decoder(MAX_FRAME).feed(encode(request.to_wire()))
    assert StartRequest.from_wire(message) == request


def proc(pid: int, ppid: int, sid: int, start: int = 100, state: str = "S") -> procfs.Proc:
    return procfs.Proc(pid, state, ppid, sid, sid, start)


def test_a_tree_has_its_session_its_marked_and_what_is_below_and_nobody_else() -> None:
    procs = [
        proc(10, 1, 10),
        proc(11, 10, 10),
        proc(12, 1, 12),
        proc(13, 12, 13),
        proc(14, 1, 14),
        proc(15, 10, 10, state="Z"),
        proc(16, 1, 10, start=50),
    ]
    markers: dict[int, str | None] = {12: "mine", 14: "other"}
    assert members(Target("mine", 10, 100, 100), procs, markers, {1}) == [10, 11, 12, 13]
    assert members(Target("mine", 10, 100, 100), procs, markers, {1, 12}) == [10, 11]


def test_a_number_that_was_given_to_another_process_is_not_ours() -> None:
    procs = [proc(10, 1, 10, start=900), proc(11, 10, 10, start=901), proc(12, 1, 12, start=500)]
    assert members(Target("mine", 10, 100, 100), procs, {12: "mine"}, set()) == [12]


def test_a_number_whose_new_leader_has_gone_too_is_not_ours_without_a_witness() -> None:
    target = Target("mine", 10, 100, 200)
    assert members(target, [proc(31, 1, 10, start=901)], {}, set()) == []
    assert members(target, [proc(30, 1, 10, start=200), proc(31, 1, 10, start=901)], {}, set()) == [30, 31]


def test_a_tree_is_ended_although_looking_fails_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError(errno.EMFILE, "no descriptor")] * 3
    snapshot = procfs.snapshot

    def look(since: int = 0) -> list[procfs.Proc]:
        if failures:
            raise failures.pop()
        return snapshot(since)

    monkeypatch.setattr(procfs, "snapshot", look)
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    found = procfs.read(child.pid)
    assert found is not None
    loop = Loop()
    told: list[list[int]] = []

    def done(survivors: list[int]) -> None:
        told.append(survivors)
        loop.stop()

    loop.after(10, loop.stop)
    Killer(loop, set).kill(Target("a", child.pid, found.start, found.start), 0, done)
    loop.run()
    assert (told, child.wait()) == ([[]], -9)


def test_a_deadline_in_a_thousand_years_does_not_stop_the_loop() -> None:
    loop = Loop()
    loop.after(3e10, loop.stop)
    loop.post(loop.stop)
    loop.run()


def test_nothing_that_came_in_the_meantime_is_begun_after_the_end_of_the_loop() -> None:
    loop = Loop()
    begun: list[int] = []
    reads, writes = os.pipe()
    loop.watch(reads, begun.append)

    def leave() -> None:
        os.write(writes, b"start")
        loop.stop()

    loop.after(0, leave)
    loop.run()
    os.close(reads)
    os.close(writes)
    assert begun == []


def test_a_process_that_proc_hides_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", raising(PermissionError(errno.EPERM, "hidepid")))
    assert procfs.read(1) is None


@pytest.mark.parametrize(
    "field",
    [
        {"argv": ["\ud800"]},
        {"argv": ["a\0b"]},
        {"argv": ["a", 1]},
        {"argv": [None]},
        {"cwd": "/\0"},
        {"env": {"A": "\ud800"}},
    ]
    + [{"uid": number} for number in (-1, 2**32 - 1, 2**32)]
    + [{"groups": [number]} for number in (-1, 2**32 - 1, 2**32)],
)
def test_a_start_that_no_kernel_could_be_given_is_refused_before_it_is_claimed(field: Message) -> None:
    (whole,) = Decoder(MAX_FRAME).feed(
        encode(StartRequest(session_id="a", argv=("true",), env={}, cwd="/", boot_id="b").to_wire())
    )
    assert StartRequest.from_wire(whole)
    with pytest.raises(Refused):
        StartRequest.from_wire({**whole, **field})


def test_a_process_that_has_gone_has_no_children_and_nobody_looks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    monkeypatch.setattr(procfs, "snapshot", None)
    assert procfs.children(gone) == []


def test_a_descriptor_is_for_exactly_the_process_that_was_meant() -> None:
    own = procfs.read(os.getpid())
    assert own is not None
    assert procfs.open_pidfd(own.pid, own.start - 1) is None
    fd = procfs.open_pidfd(own.pid, own.start)
    assert fd is not None
    os.close(fd)


@pytest.mark.parametrize("pid", [0, 1])
def test_the_first_processes_are_never_a_target(pid: int) -> None:
    procs = [proc(1, 0, 1, start=0), proc(2, 0, 0, start=0), proc(30, 1, 1), proc(31, 0, 0)]
    assert members(Target("mine", pid, 0, 100), procs, {}, {0, 1}) == []


@pytest.fixture
def records(tmp_path: Path) -> Records:
    made = Records(str(tmp_path))
    claim = made.claim("a", b"x\n")
    assert claim is not None
    os.close(claim)
    return made


def fill(log: LogFile, data: bytes) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    for at in range(0, len(data), 4096):
        os.write(write, data[at : at + 4096])
        while log.take(read, 1 << 20) > 0:
            pass
    os.close(write)
    assert log.take(read, 1 << 20) == 0
    os.close(read)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_without_punching_the_end_is_dropped_and_on_record(
    records: Records, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linux, "punch_hole", raising(OSError(number, "no")))
    log = LogFile(records, "a", (layout.LOG, layout.HOLES), 1 << 16)
    data = b"x" * 99 + b"\n"
    fill(log, data * 10_000)
    log.close()
    rows = records.read_list("a", layout.HOLES)
    assert log.size == 1_000_000
    assert sum(row["end"] - row["start"] for row in rows) == log.dropped > 0
    whole = data * 10_000
    for row in rows:
        assert whole[row["start"] : row["end"]].count(b"\n") == row["newlines"]
    again = LogFile(records, "a", (layout.LOG, layout.HOLES), 1 << 16)
    again.resume()
    assert (again.size, again.dropped) == (log.size, log.dropped)
    again.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("splices", [True, False])
def test_whatever_error_a_log_meets_it_counts_what_that_cost_and_names_it(
    records: Records, number: int, splices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = raising(OSError(number, "no"))

    log = LogFile(records, "a", (layout.LOG, layout.HOLES), 0)
    named: list[int] = []
    log.losing = named.append
    monkeypatch.setattr(os, "splice", refuse if splices else raising(OSError(errno.ENOSYS, "no")))
    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(Records, "write", refuse)
    fill(log, b"two\nthree\n")
    log.close()
    assert (log.size, log.dropped, log.errno, log.uncounted, named) == (10, 10, number, False, [number])
    shown = OutputLog(f"/proc/self/fd/{records.fd}/a", "a").last_lines(5, 100)
    assert (shown.bytes_total, shown.bytes_dropped, shown.errno) == (10, 10, number)
    assert shown.text == f"\n[10 bytes with 2 line ends were dropped here, not readable: {gaps.why(number)}]\n"
    again = LogFile(records, "a", (layout.LOG, layout.HOLES), 0)
    again.resume()
    assert (again.size, again.dropped, again.uncounted) == (10, 10, True), "it may have been at more when it died"
    again.close()


def test_writes_that_take_a_part_go_on_to_the_end(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.write

    def takes_three(fd: int, data: bytes) -> int:
        return really(fd, bytes(data)[:3])

    monkeypatch.setattr(os, "write", takes_three)
    claim = records.claim("b", b"a claim\n")
    assert claim is not None
    os.close(claim)
    assert records.claimed_by("b") == b"a claim\n"
    records.write("b", "one.json", {"key": "value"})
    assert records.read("b", "one.json") == {"key": "value"}
    stubs.make(str(tmp_path / "stub"), b"a stub\n", None)
    assert (tmp_path / "stub").read_bytes() == b"a stub\n"
    fd = linux.text_in_memory("text", b"in memory")
    assert os.read(fd, 100) == b"in memory"
    os.close(fd)


def test_a_claim_is_given_once(records: Records) -> None:
    assert records.claim("a", b"y") is None
    assert records.claimed_by("a") == b"x\n"
    assert records.claimed_by("nobody") is None


def test_a_claim_that_could_not_be_written_may_be_made_again(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", raising(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            records.claim("b", b"x\n")
    claim = records.claim("b", b"y\n")
    assert claim is not None
    os.close(claim)


@pytest.mark.parametrize("fence", [None, ()], ids=["pipes", "fork"])
def test_a_process_that_exists_is_reported_whatever_fails_after_its_fork(
    fence: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, chdir = tmp_path.stat(), os.chdir
    request = StartRequest(
        session_id="a", argv=("touch", "ran"), env={"PATH": "/usr/bin:/bin"}, cwd=str(tmp_path), boot_id="",
        place=(place.st_dev, place.st_ino), fence=fence,
    )  # fmt: skip

    def away(path: str) -> None:
        if path == "/":
            raise OSError(errno.EMFILE, "no room")
        chdir(path)

    def unfenced(_paths: Sequence[str]) -> int:
        return -1

    here, null = os.getcwd(), os.open(os.devnull, os.O_RDWR)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "chdir", away)
            patch.setattr(landlock, "ruleset", unfenced)
            if fence is None:
                pid = spawn.spawn(request, null, null, null)
            else:
                pid = spawn.spawn_by_fork(request, [null, null, null])
        assert os.waitpid(pid, 0) == (pid, 0)
    finally:
        os.chdir(here)
        os.close(null)
    assert (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("switches", [True, False])
def test_another_user_has_nothing_of_ours_by_either_way(switches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "SWITCHES", switches)
    request = StartRequest(
        session_id="a", argv=("cat", "/proc/self/status"), env={"PATH": "/usr/bin:/bin"}, cwd="/", boot_id="", uid=65534
    )
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    pid = spawn.spawn(request, null, write, write)
    os.close(write)
    with open(read, encoding="ascii") as file:
        text = file.read()
    os.close(null)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert "Uid:\t65534\t65534\t65534\t65534" in text
    assert "Gid:\t65534\t65534\t65534\t65534" in text
    assert "Groups:\t \n" in text
    assert "CapPrm:\t0000000000000000" in text
    assert (os.getresuid(), os.getresgid()) == ((0, 0, 0), (0, 0, 0))


def test_a_container_that_cannot_be_seen_now_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.EMFILE, errno.EIO, errno.ENOMEM):
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", raising(OSError(number, os.strerror(number))))
            with pytest.raises(OSError, match=os.strerror(number)):
                linux.container_id()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", raising(PermissionError(errno.EACCES, "closed")))
        assert linux.container_id() == ""


def test_what_a_busy_keeper_does_not_take_yet_reaches_it_in_order() -> None:
    loop = Loop()
    ours, keepers = link.pair()
    line = link.Line(loop, link.Legacy(os.getpid(), ours), lambda _dead: None, lambda: None)
    numbers = itertools.count()
    taken: list[int] = []

    def send() -> None:
        line.send_soon({"op": "forget", "numbers": [next(numbers)]})

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            while (got := link.receive(keepers)) is not None:
                taken.extend(got[0]["numbers"])

    def drain_between() -> None:
        drain()
        if len(taken) < 5_000:
            loop.after(0.001, drain_between)
        else:
            loop.stop()

    with ours, keepers:
        keepers.setblocking(False)
        for _ in range(4_999):
            send()
        drain()
        assert 0 < len(taken) < 4_999
        send()  # there is room for it now, and older ones wait
        loop.after(0, drain_between)
        loop.run()
    assert taken == list(range(5_000))


class Keeper:
    """Remembers what it was told to drop."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, name: str) -> None:
        self.dropped.append(name)


def held(*names: str) -> Held:
    return Held({name: os.open("/dev/null", os.O_RDONLY) for name in names}, json.dumps({"whole": sorted(names)}))


def test_an_instance_that_lacks_a_namespace_is_never_entered() -> None:
    keeper = Keeper()
    loop = Loop()
    diary = Diary(os.devnull, "test")
    proxying = Proxying(loop, None, None, diary)
    instances = Instances(loop, proxying, cast("Line", keeper), diary, Losses(loop, lambda _: None))
    whole, partly, old = held("inner", "mnt", "net", "user"), held("inner", "mnt", "user"), held("mnt", "net", "user")
    partly.noted = whole.noted
    all_held = {"instance.whole": whole, "instance.partly": partly, "instance.old": old, "session": Held()}
    instances.adopt(all_held)
    assert len(instances) == 1
    assert keeper.dropped == ["instance.partly", "instance.old"]
    assert list(all_held) == ["session"]
    for fd in whole.fds.values():
        os.close(fd)


class Ticking:
    """A directory with a table of times, and the clock that it goes by."""

    def __init__(self, directory: Path) -> None:
        self.now = 1000.0
        self.path = directory / "t"
        self.fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def time(self) -> float:
        return self.now

    def table(self, began: float = 0.0, name: str = "t") -> Times:
        return Times(self.fd, name, began)

    def since(self, *moments: float) -> list[int]:
        return [offset_since(str(self.path), moment) for moment in moments]

    def nothing_is_hidden(self, steps: Iterable[float]) -> None:
        """What was printed at each step of the clock is read from there on, or from earlier."""
        table, moments = self.table(), list[float]()
        for number, step in enumerate(steps):
            self.now += step
            moments.append(self.now)
            table.arrived(number * 5)
        assert all(offset <= number * 5 for number, offset in enumerate(self.since(*moments)))


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ticking]:
    made = Ticking(tmp_path)
    monkeypatch.setattr(times, "time", made)
    yield made
    os.close(made.fd)


def test_reading_begins_with_the_first_stretch_that_reaches_the_moment(ticking: Ticking) -> None:
    table = ticking.table()
    assert ticking.since(1000.0) == [0], "there is none yet"
    for moment, offset in ((1000.0, 0), (1000.5, 10), (1060.0, 20), (1060.2, 30), (1200.0, 40)):
        ticking.now = moment
        table.arrived(offset)
    assert ticking.since(0.0, 1000.5, 1000.6, 1060.2, 1060.3, 1200.0) == [0, 0, 20, 20, 40, 40]


def test_a_process_that_ended_quickly_leaves_no_table(ticking: Ticking) -> None:
    table = ticking.table()
    table.arrived(0)
    ticking.now += 0.9
    table.arrived(100)
    assert not ticking.path.exists()


def test_the_table_is_bounded_and_what_it_leaves_out_is_read_earlier(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "ENTRIES", 16)
    ticking.nothing_is_hidden([10.0] * 1000)
    assert ticking.path.stat().st_size <= 17 * 16
    assert ticking.since(ticking.now) == [999 * 5]


def test_a_later_supervisor_goes_on_and_a_table_that_cannot_be_written_is_left_alone(ticking: Ticking) -> None:
    ticking.table().arrived(0)
    ticking.now = 2000.0
    ticking.table(1000.0).arrived(50)
    assert ticking.since(1000.0, 1000.1) == [0, 50]
    ticking.path.write_bytes(ticking.path.read_bytes() + b"torn")
    assert ticking.since(1000.1) == [50]
    ticking.now = 3000.0
    ticking.table(2000.0).arrived(55)
    assert ticking.since(1000.1, 2000.1) == [50, 55]
    ticking.table(2000.0, "missing/t").arrived(60)


def test_the_first_and_the_last_size_of_a_terminal_stay_in_a_bounded_table(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "ENTRIES", 8)
    table = ticking.table()
    assert sizes(str(ticking.path)) == []
    for number in range(100):
        table.resized(number * 10, 24 + number, 80)
    found = sizes(str(ticking.path))
    assert len(found) <= 8
    assert [(found[place].offset, found[place].rows) for place in (0, -1)] == [(0, 24), (990, 123)]
    assert [one.offset for one in found] == sorted(one.offset for one in found)


def test_each_stretch_is_told_with_the_time_of_its_last_output(ticking: Ticking) -> None:
    table = ticking.table()
    for moment, offset in ((1000.0, 0), (1000.5, 10), (1060.0, 20), (1060.2, 30), (1200.0, 40)):
        ticking.now = moment
        table.arrived(offset)
    assert stretches(str(ticking.path)) == [Stretch(1000.5, 20), Stretch(1060.2, 40)]


def test_a_clock_that_is_set_back_hides_nothing(ticking: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "ENTRIES", 8)
    ticking.nothing_is_hidden(10.0 if number % 7 else -45.0 for number in range(100))
