"""What a session does at this moment: its terminal, and which process waits for input.

A separate thread inspects processes. A process that makes the kernel wait blocks only that thread; until it returns,
looks answer without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import stat
import struct
import termios
import threading
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from shellback.exec.supervisor.loop import Loop, Timer, now
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.process.job import Job
from shellback.exec.supervisor.process.streams import Screen
from shellback.exec.wire import linux
from shellback.exec.wire.fields import Message

_PATIENCE_S: Final = 0.5
_PEER: Final = 0x5441
"""TIOCGPTPEER: opens the other end of a terminal in whatever namespace it is."""

Told = Callable[[Message], None]


class Looks:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._todo: queue.SimpleQueue[tuple[Callable[[], Reader], Callable[[Reader], None]]] = queue.SimpleQueue()
        self._late = 0
        threading.Thread(target=self._run, name="readers", daemon=True).start()

    def look(self, job: Job, told: Told) -> None:
        """Pass what a running job does to `told`, once, now or within half a second."""
        look: Message = {
            "pid": job.pid,
            "quiet_s": max(0.0, now() - max((log.grown_at for log in job.logs), default=now())),
            "terminal": None,
        }
        group, source = 0, Source()
        screen = job.streams[0] if job.streams else None
        if isinstance(screen, Screen):
            look["terminal"] = terminal = _terminal(screen.fd) if screen.open else None
            if terminal is not None and terminal["foreground"] > 0:
                group, source = terminal["foreground"], Source(terminal=_device(screen))
        elif job.input is not None:
            source = Source(pipe=job.input.awaited())
        if source == Source():
            told(_with(look, Reader()))
            return
        if self._late:
            told(_with(look, Reader(how="unknown")))
            return
        roots = [job.pid] if job.init is None else [job.pid, job.init[0]]

        def found(reader: Reader) -> None:
            # A program switches echo off before it reads a password, so read the modes after the scan.
            if isinstance(screen, Screen) and screen.open and (terminal := _terminal(screen.fd)) is not None:
                look["terminal"] = terminal
            told(_with(look, reader))

        self._ask(lambda: reader(roots, source, group), found)

    def _ask(self, work: Callable[[], Reader], told: Callable[[Reader], None]) -> None:
        timer: list[Timer] = []

        def done(reader: Reader) -> None:
            if timer:
                timer.pop().cancel()
                told(reader)
            else:
                self._late -= 1

        def late() -> None:
            timer.clear()
            self._late += 1
            told(Reader(how="unknown"))

        timer.append(self._loop.after(_PATIENCE_S, late))
        self._todo.put((work, done))

    def _run(self) -> None:
        while True:
            work, done = self._todo.get()
            try:
                found = work()
            except OSError:
                # No descriptor now: a start lowers our limit for a moment.
                found = Reader(how="unknown")
            self._loop.post(lambda done=done, found=found: done(found))


def _with(look: Message, reader: Reader) -> Message:
    return {**look, "reader": reader.pid, "name": reader.name, "how": reader.how}


def _terminal(master: int) -> Message | None:
    try:
        rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))
        modes = termios.tcgetattr(master)[3]
        (group,) = struct.unpack("i", fcntl.ioctl(master, termios.TIOCGPGRP, bytes(4)))
    except (OSError, termios.error):
        return None
    return {
        "rows": rows,
        "cols": cols,
        "echo": bool(modes & termios.ECHO),
        "canonical": bool(modes & termios.ICANON),
        "foreground": max(0, group),
    }


def _device(screen: Screen) -> tuple[int, int] | None:
    """Device and number of the command's end of a terminal."""
    if screen.device is None:
        try:
            fd = fcntl.ioctl(screen.fd, _PEER, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        os.close(fd)
        screen.device = found.st_dev, found.st_rdev
    return screen.device


How = Literal["read", "poll", "none", "unknown"]

PROCESSES: Final = 256
THREADS: Final = 64
_DESCRIPTORS: Final = 1024
_CONTROLLING: Final = os.makedev(5, 0)
_POLLFD: Final = struct.Struct("<ihh")
_KINDS = _READS, _POLLS, _SELECTS, _EPOLLS = "read", "poll", "select", "epoll"
_CALLS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "x86_64": ((0, 19, 275), (7, 271), (23, 270), (232, 281, 441)),
    "aarch64": ((63, 65, 76), (73,), (72,), (22, 441)),
}
"""read, readv and splice; poll and ppoll; select and pselect6; the waits of epoll."""
_WORDS: Final = {"n_tty_read"}
"""Kernel functions in which a process waits only to read from a terminal."""


class Source(NamedTuple):
    """The source of input: a terminal by device and number, or a pipe by device and inode."""

    terminal: tuple[int, int] | None = None
    pipe: tuple[int, int] | None = None


class Reader(NamedTuple):
    """Which process waits for input, and how; pid 0 means none."""

    pid: int = 0
    name: str = ""
    how: How = "none"


def reader(roots: Iterable[int], source: Source, group: int) -> Reader:
    """Which process of the trees below `roots` waits for the source; with a `group`, only processes of that group.

    A process that only reads is preferred to one that polls several sources. This may block: a hostile process can make
    the kernel wait when its memory or files are read.
    """
    numbers = _CALLS.get(os.uname().machine, ())
    calls = {number: kind for kind, some in zip(_KINDS, numbers, strict=False) for number in some}
    waits, unseen = Reader(), not calls
    for proc in _tree(roots, group):
        if group not in {0, proc.pgid}:
            continue
        try:
            how = _as_its_user(proc.pid, source, calls)
        except PermissionError:
            how, unseen = _by_place(proc.pid), True
        except (OSError, OverflowError, ValueError, struct.error):
            continue
        if how == "read":
            return Reader(proc.pid, _name(proc.pid), how)
        if how == "poll" and not waits.pid:
            waits = Reader(proc.pid, _name(proc.pid), how)
    return Reader(how="unknown") if unseen and not waits.pid else waits


def _tree(roots: Iterable[int], group: int) -> Iterable[procfs.Proc]:
    """Processes that are neither stopped nor ended; first the group leader, which may be an orphan."""
    todo, seen = [*reversed(list(roots)), *([group] if group else [])], set[int]()
    while todo and len(seen) < PROCESSES:
        pid = todo.pop()
        if pid in seen:
            continue
        seen.add(pid)
        with contextlib.suppress(OSError):
            proc = procfs.read(pid)
            if proc is None:
                continue
            todo.extend(_children(pid, proc.threads))
            if proc.state in "SDR":
                yield proc


def _children(pid: int, threads: int) -> list[int]:
    found: list[int] = []
    for thread in _threads(pid, threads):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
            found += [int(child) for child in file.readall().split()]
    return found


def _threads(pid: int, count: int = 2) -> list[int]:
    if count == 1:
        return [pid]
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")[:THREADS]]


def _as_its_user(pid: int, source: Source, calls: dict[int, str]) -> How:
    """As `_how`, with the file identity of the process's user if root may not override permissions (in a container)."""
    try:
        return _how(pid, source, calls)
    except PermissionError:
        if os.geteuid():
            raise
        # Changes this thread only. Tracing needs both ids to match.
        user = os.stat(f"/proc/{pid}")
        group, before = linux.libc.setfsgid(user.st_gid), linux.libc.setfsuid(user.st_uid)
        try:
            return _how(pid, source, calls)
        finally:
            linux.libc.setfsuid(before)
            linux.libc.setfsgid(group)


def _how(pid: int, source: Source, calls: dict[int, str]) -> How:
    ours: dict[int, bool] = {}
    polls = False
    for thread in _threads(pid):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/syscall", "rb", buffering=0) as file,
        ):
            words = file.read(512).split()
            call = calls.get(int(words[0])) if len(words) > 2 else None
            if call is None:
                continue
            first, second = int(words[1], 16), int(words[2], 16)
            for fd in _waited(pid, call, first, second):
                if fd not in ours:
                    ours[fd] = _is(pid, fd, source)
                if ours[fd]:
                    if call == _READS:
                        return "read"
                    polls = True
    return "poll" if polls else "none"


def _waited(pid: int, call: str, first: int, second: int) -> list[int]:
    """The descriptors from which a thread waits to read."""
    if call == _READS:
        return [first]
    if call == _SELECTS:
        bits = _memory(pid, second, (min(first, _DESCRIPTORS) + 7) // 8) if second else b""
        return [8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
    if call == _POLLS:
        rows = _memory(pid, first, _POLLFD.size * min(second, _DESCRIPTORS))
        rows = rows[: len(rows) // _POLLFD.size * _POLLFD.size]
        return [fd for fd, events, _ in _POLLFD.iter_unpack(rows) if events & select.POLLIN and fd >= 0]
    return _of_epoll(pid, first)


def _of_epoll(pid: int, epoll: int) -> list[int]:
    with open(f"/proc/{pid}/fdinfo/{epoll}", "rb", buffering=0) as file:
        lines = file.read(1 << 16).split(b"\n")
    rows = [line.split() for line in lines if line.startswith(b"tfd:")]
    return [int(row[1]) for row in rows if len(row) > 3 and int(row[3], 16) & select.EPOLLIN]


def _memory(pid: int, address: int, count: int) -> bytes:
    if count <= 0:
        return b""
    with linux.opened(f"/proc/{pid}/mem", os.O_RDONLY) as fd:
        return os.pread(fd, count, address)


def _is(pid: int, fd: int, source: Source) -> bool:
    """Whether a descriptor of a process is the source; /dev/tty means the terminal too."""
    try:
        found = os.stat(f"/proc/{pid}/fd/{fd}")
    except FileNotFoundError:
        return False
    if source.terminal is not None and stat.S_ISCHR(found.st_mode):
        return found.st_rdev == _CONTROLLING or (found.st_dev, found.st_rdev) == source.terminal
    return source.pipe is not None and stat.S_ISFIFO(found.st_mode) and (found.st_dev, found.st_ino) == source.pipe


def _by_place(pid: int) -> How:
    """How a process waits, by the kernel function it is in, if we may not read its system call."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", "rb", buffering=0) as file:
        return "read" if file.read(128).decode("ascii", "replace") in _WORDS else "unknown"
    return "unknown"


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
        return file.read(64).decode("utf-8", "replace").rstrip("\n")
    return ""
