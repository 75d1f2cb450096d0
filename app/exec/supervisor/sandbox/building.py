"""Builds the sandbox of one command around a process of ours that waits to become the command.

A helper enters the instance, makes the namespaces of the command, and leaves two processes there: the first process of
the PID namespace, and the one that becomes the command. So the only program that a start executes is the command. Most
of this is the same for all commands of an instance: after a command has left, the next pair is made in advance. It
holds only a socket of ours, and ends when that closes.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import marshal
import os
import re
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NoReturn

from shellback.exec.supervisor.loop import IN, Loop, Timer
from shellback.exec.supervisor.process import procfs, pty, spawn
from shellback.exec.supervisor.sandbox import covers, namespaces, pins
from shellback.exec.supervisor.sandbox.bwrap import FAILED, READY, errno_in, give_up
from shellback.exec.wire import linux
from shellback.exec.wire import sandbox as places
from shellback.exec.wire.descriptors import closing, kept
from shellback.exec.wire.sandbox import Sandbox

MOST: Final = 4
IDLE_S: Final = 10.0
_MESSAGE: Final = 8192
_FDS: Final = 16
_BUILT: Final = re.compile(r"^built (\d+) (\d+)$", re.MULTILINE)

Who = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a pair is made with; `pinned` and `elsewhere`, other instances to pin in, are for approved scripts.

    `early`: its order comes later, so the covers are laid before.
    """

    sandbox: Sandbox
    who: Who
    prepare: Callable[[], None]
    pinned: tuple[str, ...] = ()
    elsewhere: Sequence[Mapping[str, int]] = ()
    early: bool = False

    def fits(self, sandbox: Sandbox, who: Who) -> bool:
        return self.who == who and replace(self.sandbox, placeholders=sandbox.placeholders) == sandbox


class Standing(NamedTuple):
    """A process, the tick it began in, and a pidfd."""

    pid: int
    start: int
    pidfd: int


class Built:
    """The sandbox of one command, until the command goes.

    `main` becomes the command; it is our child from its first moment. `init` is the first process of its PID namespace.
    `then` is called once: with 0 when the process stands after its order, with an errno if anything failed before.
    `text` has the messages. The constructor raises OSError if nothing can be forked.
    """

    def __init__(self, loop: Loop, wanted: Wanted, found: Mapping[str, int]) -> None:
        self.then: Callable[[int], None] = lambda _number: None
        self.text = ""
        self.init: Standing | None = None
        self.main: Standing | None = None
        self._loop = loop
        self._timer: Timer | None = None
        self._ending = self._over = False
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = 0
        try:
            with theirs:
                self._pid = namespaces.in_child(lambda: _build(wanted, found, theirs), theirs.fileno(), move=False)
            with kept(os.pidfd_open(self._pid)) as self._helper:
                self._link.setblocking(False)
                loop.watch(self._link.fileno(), self._told, IN)
        except BaseException:
            give_up(self._pid)
            self._link.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether it stands or is about to; False also after `end`."""
        if self._ending or self.main is None or self.init is None:
            return not self._ending
        gone = os.waitid(os.P_PIDFD, self.main.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return gone is None and procfs.alive(self.init.pid, self.init.start)

    def order(self, order: bytes, streams: Sequence[int], patience_s: float) -> None:
        """Have the process become a command up to the moment before its exec; see `ordered`."""
        with closing(linux.text_in_memory("order", order)) as file:
            socket.send_fds(self._link, [b"order"], [file, *streams])
        self._timer = self._loop.after(patience_s, lambda: self._fail(errno.ETIMEDOUT))

    def go(self) -> Standing:
        """Let the command go; the caller owns its process from now on. Raises OSError if it has gone."""
        self._link.send(namespaces.GO)
        assert self.main is not None
        main, self.main = self.main, None
        self._close()
        return main

    def end(self, *, wait: bool = False) -> None:
        """Kill all of it; repeating it changes nothing. `wait` blocks until its processes are gone."""
        if self._over:
            return
        self._ending = True
        if self.main is None and not wait:
            # Its number, without which it could not be reaped, is on the way; it ends without an order.
            self._link.shutdown(socket.SHUT_WR)
            return
        self._link.setblocking(True)
        with contextlib.suppress(OSError, ValueError):
            while self.main is None and self._receive():
                pass
        self._kill(wait=wait)

    def _kill(self, *, wait: bool = False) -> None:
        ours = [fd for fd in (self._helper, self.main.pidfd if self.main is not None else -1) if fd >= 0]
        for fd in (*ours, *([self.init.pidfd] if self.init is not None else ())):
            procfs.send(fd, signal.SIGKILL)
        self.main, self._helper = None, -1
        self._close()
        for fd in ours:
            self._reap(fd) if wait else self._reap_later(fd)

    def _close(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.forget(self._link.fileno())
        self._link.close()
        if self.init is not None:
            os.close(self.init.pidfd)

    def _told(self, _events: int) -> None:
        try:
            more = self._receive()
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            ending, self._ending = self._ending, True
            self._kill()
            if not ending:
                self.then(getattr(error, "errno", 0) or errno.EIO)
            return
        if self._ending:
            if self.main is not None or not more:
                self._kill()
        # A failure of `main` may arrive before its number.
        elif not more or (self.main is not None and FAILED.search(self.text)):
            self._fail(errno_in(self.text))
        elif self.main is not None and READY in self.text:
            # No message is due any more; the end of the process is seen when it was told to go.
            self._loop.forget(self._link.fileno())
            self.then(0)

    def _receive(self) -> bool:
        """Take one message; False if none can come any more. Raises OSError and ValueError as `_hold` does."""
        try:
            data = self._link.recv(_MESSAGE)
        except ConnectionResetError:
            return False
        self.text += data.decode("utf-8", "replace")
        if self.main is None and (found := _BUILT.search(self.text)) is not None:
            self._hold(int(found[1]), int(found[2]))
        return bool(data)

    def _hold(self, init: int, main: int) -> None:
        """Open both processes while the helper, which does not reap, keeps the number of the first one."""
        try:
            start = procfs.child(main, os.getpid()).start
            self.main = Standing(main, start, os.pidfd_open(main))
        except (OSError, ValueError):
            give_up(main)
            raise
        with kept(os.pidfd_open(init)) as fd:
            self.init = Standing(init, procfs.child(init, self._pid).start, fd)
        helper, self._helper = self._helper, -1
        procfs.send(helper, signal.SIGKILL)
        self._reap_later(helper)

    def _fail(self, number: int) -> None:
        self.end()
        self.then(number)

    def _reap_later(self, fd: int) -> None:
        self._loop.watch(fd, lambda _events: self._reap(fd), IN)

    def _reap(self, fd: int) -> None:
        self._loop.forget(fd)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        os.close(fd)


class Ahead:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._wanted: dict[str, Wanted] = {}
        self._ready: dict[str, tuple[Wanted, Built, Timer]] = {}

    def want(self, wanted: Wanted) -> None:
        """Note what the next command of this instance will need; pins and held files are for one command only."""
        sandbox = replace(wanted.sandbox, pinned=(), held=())
        self._wanted[sandbox.key] = replace(wanted, sandbox=sandbox, pinned=(), elsewhere=(), early=True)

    def make(self, key: str, found: Mapping[str, int]) -> None:
        """Make a waiting pair unless there is one, or no room; it is only an optimisation."""
        wanted = self._wanted.get(key)
        if wanted is None or not found or key in self._ready or len(self._ready) >= MOST:
            return
        with contextlib.suppress(OSError):
            built = Built(self._loop, wanted, found)
            built.then = lambda _number: self.discard(key)
            self._ready[key] = wanted, built, self._loop.after(IDLE_S, lambda: self.discard(key))

    def take(self, sandbox: Sandbox, who: Who) -> Built | None:
        """A waiting pair, which the caller owns from now on; None if there is no usable one."""
        if sandbox.key not in self._ready:
            return None
        wanted, built, _ = self._ready[sandbox.key]
        if not (wanted.fits(sandbox, who) and built.usable):
            self.discard(sandbox.key)
            return None
        self._forget(sandbox.key)
        return built

    def drop(self, key: str) -> None:
        """End the pair of an instance that ends."""
        self._wanted.pop(key, None)
        self.discard(key)

    def discard(self, key: str) -> None:
        """Kill the waiting pair: the mounts of the instance have changed, and it has the old ones."""
        if key in self._ready:
            self._forget(key).end()

    def close(self) -> None:
        """End all waiting pairs, and wait for that."""
        for key in list(self._ready):
            self._forget(key).end(wait=True)

    def _forget(self, key: str) -> Built:
        _, built, timer = self._ready.pop(key)
        timer.cancel()
        return built


def ordered(command: spawn.Command, first: str, *, terminal: bool) -> bytes:
    """The order for a pair: the command, and the marker of the first process."""
    words = (command.argv, command.executables, command.env, command.cwd, command.umask)
    return marshal.dumps((*words, first, terminal))


def _build(wanted: Wanted, found: Mapping[str, int], link: socket.socket) -> NoReturn:
    """Be the helper: enter the instance, fork both processes, and tell their numbers."""
    # Neither collect the supervisor's garbage nor handle its signals.
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    wanted.prepare()
    sandbox = wanted.sandbox
    # While the descriptors of other instances are open.
    pins.lay_elsewhere(wanted.elsewhere, sandbox.workspace, sandbox.pinned)
    namespaces.close_but(link.fileno(), *found.values())
    namespaces.join(found)
    pins.lay(sandbox.workspace, sandbox.pinned, wanted.pinned)
    namespaces.be_apart()
    pins.apart(sandbox.workspace)
    alive, life = os.pipe()
    mounted, told = os.pipe()
    init = namespaces.in_child(lambda: namespaces.first_process(alive, told), link.fileno(), move=False)
    os.close(told)
    os.close(alive)
    if os.read(mounted, 1) != b".":
        os._exit(1)
    covers.over_processes()
    namespaces.own_processes()
    os.close(mounted)
    main = namespaces.sibling()
    if main == 0:
        inner = found[namespaces.INNER]
        namespaces.reporting(lambda: _stand_by(wanted, inner, link, life), link.fileno(), move=False)
    link.send(f"built {init} {main}\n".encode())
    # It is killed, or sees the end of the supervisor. Messages are for the other process.
    ended = select.poll()
    ended.register(link, 0)
    ended.poll()
    os._exit(0)


def _stand_by(wanted: Wanted, inner: int, link: socket.socket, life: int) -> NoReturn:
    """Wait for the order, finish the sandbox, wait for GO, tell the first process to stay, and be the command."""
    sandbox = wanted.sandbox
    namespaces.close_but(link.fileno(), life, inner)
    os.umask(0o022)
    if wanted.early:
        covers.over_workspace(sandbox, early=True)
    data, fds, _, _ = socket.recv_fds(link, _MESSAGE, _FDS)
    if not data:
        os._exit(0)
    order, *streams = fds
    with open(order, "rb") as file:
        argv, executables, env, cwd, umask, first, terminal = marshal.load(file)  # noqa: S302 - our own supervisor's
    covers.over_workspace(sandbox, again=wanted.early)
    said = covers.over_scripts(sandbox)
    namespaces.mount_fresh(places.RUN, places.RUN_BYTES)
    namespaces.drop_all(inner, sandbox.seccomp, seen=wanted.who is None)
    os.umask(umask)
    os.chdir(cwd)
    link.send(said + READY.encode())
    if link.recv(len(namespaces.GO)) != namespaces.GO:
        os._exit(0)
    # It leads a POSIX session only now: without, recovery does not take it for a command.
    os.write(life, f"{first}\n".encode())
    if terminal:
        pty.become_session_on(streams[0])
    else:
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
    namespaces.close_but()
    spawn.lower_descriptor_limit()
    number = spawn.execute(argv, executables, env)
    os.write(2, argv[0] + f": {os.strerror(number)}\n".encode())
    # As shells do.
    os._exit(127 if number == errno.ENOENT else 126)
