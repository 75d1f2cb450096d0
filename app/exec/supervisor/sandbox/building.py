"""The steps of a command's child until it executes bubblewrap, and children that take these steps in advance.

Half of the time of a start is the same for all commands of an instance. So, after a command has left, one child enters
the instance, makes the first process of a PID namespace, and waits for its order. It holds only a socket of ours, and
ends when that closes.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NoReturn

from shellback.exec.supervisor.loop import IN, Loop, Timer
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import covers, namespaces, pins
from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing, kept
from shellback.exec.wire.sandbox import Sandbox

MOST: Final = 4
IDLE_S: Final = 10.0
_MESSAGE: Final = 64
_FDS: Final = 16

Who = tuple[int, int] | None


class Stands(NamedTuple):
    """The first process of a PID namespace, the pipe that makes it stay, and the pipe that tells of its /proc."""

    init: int
    life: int
    mounted: int


def enter(found: Mapping[str, int], sandbox: Sandbox, say: int, pinned: tuple[str, ...] = ()) -> Stands:
    """Enter the instance, with own mounts and the first process of a PID namespace; OSError names a path in the way."""
    namespaces.join(found)
    pins.lay(sandbox.workspace, sandbox.pinned, pinned)
    namespaces.be_apart()
    pins.apart(sandbox.workspace)
    alive, life = os.pipe()
    mounted, told = os.pipe()
    init = namespaces.in_child(lambda: namespaces.first_process(alive, told), say)
    os.close(told)
    os.close(alive)
    os.umask(0o022)
    return Stands(init, life, mounted)


def finish(stands: Stands) -> None:
    """Cover the files of the kernel in /proc, as soon as it is mounted."""
    if os.read(stands.mounted, 1) != b".":
        os._exit(1)
    os.close(stands.mounted)
    covers.over_processes()


def become(stands: Stands, words: Sequence[str], say: int, fds: Sequence[int]) -> NoReturn:
    """Execute bubblewrap; `words` are its program, the marker of the first process, and the command.

    `fds` are the filter, the options, the pipe of `go`, and the streams.
    """
    program, mark, *argv = words
    filters, options, wait, *streams = fds
    os.write(say, f"init {stands.init}\n".encode())
    os.write(stands.life, f"{mark}\n".encode())
    namespaces.become(
        [
            program, "--args", str(namespaces.ARGS_FD), "--seccomp", str(namespaces.SECCOMP_FD),
            "--info-fd", str(namespaces.INFO_FD), "--", "/bin/sh", "-c", namespaces.WAITER, "sh", *argv,
        ],
        {
            namespaces.LIFE_FD: stands.life,
            0: streams[0], 1: streams[-2 if len(streams) > 1 else 0], 2: say, namespaces.STDERR_FD: streams[-1],
            namespaces.SECCOMP_FD: filters, namespaces.ARGS_FD: options, namespaces.INFO_FD: say,
            namespaces.GO_FD: wait, namespaces.SAID_FD: say,
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Wanted:
    sandbox: Sandbox
    who: Who
    prepare: Callable[[], None]

    def fits(self, sandbox: Sandbox, who: Who) -> bool:
        ours = self.sandbox
        return (self.who, ours.bwrap, ours.bounds, ours.workspace) == (
            who, sandbox.bwrap, sandbox.bounds, sandbox.workspace,
        )  # fmt: skip


@dataclass(slots=True)
class _Ready:
    wanted: _Wanted
    pid: int
    pidfd: int
    link: socket.socket
    timer: Timer
    over: bool = False

    def usable(self) -> bool:
        """Whether it waits or is about to; if it has failed, it reports the reason when it gets its order."""
        if self.over or os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        try:
            said = self.link.recv(_MESSAGE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        first = procfs.read(int(said)) if said.isdigit() else None
        return first is not None and first.alive and first.ppid == self.pid


class Ahead:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._wanted: dict[str, _Wanted] = {}
        self._ready: dict[str, _Ready] = {}

    def want(self, sandbox: Sandbox, who: Who, prepare: Callable[[], None]) -> None:
        """Note what the next command of this instance will need; `pinned` and `held` are for one command only."""
        self._wanted[sandbox.key] = _Wanted(replace(sandbox, pinned=(), held=()), who, prepare)

    def make(self, key: str, found: Mapping[str, int]) -> None:
        """Make a waiting child unless there is one, or no room; it is only an optimisation."""
        wanted = self._wanted.get(key)
        if wanted is None or not found or key in self._ready or len(self._ready) >= MOST:
            return
        pid = 0
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return
        try:
            pid = namespaces.in_child(lambda: _stand_by(wanted, found, theirs), theirs.fileno())
            with kept(os.pidfd_open(pid)) as pidfd:
                self._loop.watch(pidfd, lambda _: self._ended(key), IN)
        except OSError:
            ours.close()
            if pid:
                os.waitpid(pid, 0)
            return
        finally:
            theirs.close()
        timer = self._loop.after(IDLE_S, lambda: self.discard(key))
        self._ready[key] = _Ready(wanted, pid, pidfd, ours, timer)

    def take(self, sandbox: Sandbox, who: Who) -> tuple[int, socket.socket] | None:
        """The pid of a waiting child, and the socket for its order; the caller owns both from now on."""
        ready = self._ready.get(sandbox.key)
        if ready is None:
            return None
        if not (ready.wanted.fits(sandbox, who) and ready.usable()):
            self.discard(sandbox.key)
            return None
        del self._ready[sandbox.key]
        self._forget(ready)
        return ready.pid, ready.link

    def drop(self, key: str) -> None:
        """End the child of an instance that ends."""
        self._wanted.pop(key, None)
        self.discard(key)

    def discard(self, key: str) -> None:
        """Kill the waiting child: the mounts of the instance have changed, and it has the old ones."""
        ready = self._ready.get(key)
        if ready is not None:
            ready.over = True
            procfs.send(ready.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End all waiting children, and wait for that."""
        for key in list(self._ready):
            self.discard(key)
            self._ended(key)

    def _ended(self, key: str) -> None:
        ready = self._ready.pop(key)
        self._forget(ready)
        ready.link.close()
        os.waitpid(ready.pid, 0)

    def _forget(self, ready: _Ready) -> None:
        ready.timer.cancel()
        self._loop.forget(ready.pidfd)
        os.close(ready.pidfd)


def send_order(
    link: socket.socket, sandbox: Sandbox, words: Sequence[str], umask: int, said: int, fds: Sequence[int]
) -> None:
    """Order a waiting child to execute bubblewrap, reporting on `said`; `fds` as in `become`."""
    own = (sandbox.fixed, sandbox.readonly, sandbox.masked, sandbox.stubs)
    with closing(linux.text_in_memory("order", marshal.dumps((tuple(words), umask, *map(tuple, own))))) as order:
        socket.send_fds(link, [b"go"], [order, said, *fds])


def _stand_by(wanted: _Wanted, found: Mapping[str, int], link: socket.socket) -> NoReturn:
    # Neither collect the supervisor's garbage nor handle its signals.
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    wanted.prepare()
    _close_but([link.fileno(), *found.values()])
    stands: Stands | OSError
    try:
        stands = enter(found, wanted.sandbox, link.fileno())
        finish(stands)
        told = str(stands.init)
    except OSError as error:
        stands, told = error, "!"
    with contextlib.suppress(OSError):
        # A sender of an order does not read any more.
        link.send(told.encode(), socket.MSG_NOSIGNAL)
    linux.close_all(found.values())
    try:
        data, fds, _, _ = socket.recv_fds(link, _MESSAGE, _FDS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other side closed it with our message unread; its own last message can still be read.
        data, fds, _, _ = socket.recv_fds(link, _MESSAGE, _FDS, socket.MSG_CMSG_CLOEXEC)
    if not data:
        os._exit(0)
    link.close()
    order, say, *rest = fds
    namespaces.reporting(lambda: _obey(wanted.sandbox, stands, order, say, rest), say)


def _obey(sandbox: Sandbox, stands: Stands | OSError, order: int, say: int, fds: Sequence[int]) -> NoReturn:
    if isinstance(stands, OSError):
        raise stands
    with open(order, "rb") as file:
        words, umask, fixed, readonly, masked, stubs = marshal.load(file)  # noqa: S302 - our own supervisor's
    covers.over_workspace(replace(sandbox, fixed=fixed, readonly=readonly, masked=masked, stubs=stubs))
    os.umask(umask)
    become(stands, words, say, fds)


def _close_but(fds: Iterable[int]) -> None:
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)
