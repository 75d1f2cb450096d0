"""Process facts from /proc. They may be out of date at once; only (pid, start time) identifies a process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from shellback.exec.wire import layout
from shellback.exec.wire.descriptors import closing, kept

TICKS: Final = os.sysconf("SC_CLK_TCK")
_TERM, _HUP, _KILL = (1 << number - 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))
_EXITING: Final = 0x4  # PF_EXITING of linux/sched.h
_MARK: Final = b"\0" + layout.MARKER.encode() + b"="


class Proc(NamedTuple):
    """One process; `start` is in ticks since boot, `state` that of its first thread, `threads` the number of all.

    `hangs_up`: it has a terminal, ignores SIGTERM and handles SIGHUP, as interactive shells do. `doomed`: its first
    thread is exiting or has a pending SIGKILL, so it runs no further instruction of its program.
    """

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start: int
    threads: int = 1
    hangs_up: bool = False
    doomed: bool = False

    @property
    def alive(self) -> bool:
        # A process whose first thread is a zombie is alive while other threads run.
        return self.state not in "ZX" or self.threads > 1


def read(pid: int, thread: int | None = None) -> Proc | None:
    """The process (zombies included) or one of its threads; None if it does not exist."""
    try:
        with open(f"/proc/{pid}/{'' if thread is None else f'task/{thread}/'}stat", "rb", buffering=0) as file:
            fields = file.read(1024).rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # PermissionError: /proc hides processes of other users.
        return None
    if len(fields) < 32:
        return None
    hangs_up = fields[4] != b"0" and bool(int(fields[30]) & _TERM and int(fields[31]) & _HUP)
    doomed = bool(int(fields[6]) & _EXITING or int(fields[28]) & _KILL)
    ppid, pgid, sid, threads, start = (int(fields[at]) for at in (1, 2, 3, 17, 19))
    return Proc(pid, fields[0].decode(), ppid, pgid, sid, start, threads, hangs_up, doomed)


def child(pid: int, parent: int) -> Proc:
    """The process; raises ValueError unless it is a child of `parent` now."""
    found = read(pid)
    if found is None or found.ppid != parent:
        raise ValueError("not a child of that process")
    return found


def ticks() -> int:
    """Now, in ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def alive(pid: int, start: int) -> bool:
    found = read(pid)
    return found is not None and found.alive and found.start == start


def survives(pid: int) -> bool:
    """Whether it is alive and at least one of its threads is not `doomed`."""
    found = read(pid)
    if found is None or not found.alive:
        return False
    if found.threads == 1 or not found.doomed:
        return not found.doomed
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        threads = (read(pid, int(name)) for name in os.listdir(f"/proc/{pid}/task"))
        return any(one is not None and not one.doomed for one in threads)
    return False


_home = ""


def mark_for(home: str) -> None:
    """From now on, add this state directory to markers, and ignore markers with another one."""
    global _home  # noqa: PLW0603 - one state directory per process, set once at its start
    found = os.stat(home)
    _home = f"@{found.st_dev:x}.{found.st_ino:x}"


def mark(session_id: str) -> str:
    """The marker of a session's processes."""
    return session_id + _home


def marker(pid: int) -> str | None:
    """The session whose marker is in the environment that the process got at its exec; None if it is not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            data = b"\0" + file.readall()
    except OSError:
        return None
    found = data.rfind(_MARK)
    if found < 0:
        return None
    begin = found + len(_MARK)
    session_id, at, home = data[begin : data.index(b"\0", begin)].decode("ascii", "replace").partition("@")
    return session_id if at + home == _home else None


def first_of_namespace(pid: int) -> bool:
    """Whether it is the first process of a PID namespace below ours; a process cannot fake that."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            numbers = file.read(8192).partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    except OSError:
        return False
    return len(numbers) > 1 and numbers[-1] == b"1"


def snapshot(since: int = 0) -> list[Proc]:
    """Every process that started at tick `since` or later."""
    found: list[Proc] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            proc = read(int(name))
            if proc is not None and proc.start >= since:
                found.append(proc)
    return found


def children(pid: int) -> list[int]:
    """Pids of the children of a process's first thread; of all threads if the kernel has no list of children."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(child) for child in file.readall().split()]
    except OSError:
        return [] if read(pid) is None else [proc.pid for proc in snapshot() if proc.ppid == pid]


def with_descendants(roots: Iterable[int], procs: Iterable[Proc]) -> set[int]:
    """`roots` and all their descendants."""
    below: dict[int, list[int]] = {}
    for proc in procs:
        below.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(below.get(pid, ()))
    return found


def open_pidfd(pid: int, start: int) -> int | None:
    """A pidfd of exactly this process, or None if it has gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with kept(fd):
        found = read(pid)
    if found is not None and found.start == start:
        return fd
    os.close(fd)
    return None


def signal_exactly(pid: int, start: int, number: int) -> None:
    """Signal exactly this process; does nothing if it has gone."""
    if (fd := open_pidfd(pid, start)) is not None:
        with closing(fd):
            send(fd, number)


def send(pidfd: int, number: int) -> None:
    """Signal through a pidfd; does nothing if the process has gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
