"""Starting one command in a sandbox: asynchronous, and so that its wait status is the kernel's own.

bubblewrap tells a death by a signal as 128 + n. So it only builds: its child, which waits, is orphaned to us, the
subreaper, before it becomes the command. Nothing of a command has happened when its supervisor dies before that.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, NoReturn

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs, spawn
from shellback.exec.supervisor.sandbox import building, covers, namespaces, pins
from shellback.exec.supervisor.sandbox.bwrap import Said, child_of, give_up
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.wire import crashpoints, layout
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import Sandbox

LAUNCH_S: Final = 20.0
_INIT: Final = re.compile(r"^init (\d+)$", re.MULTILINE)

Failed = Callable[[int, str], None]
"""Gets the errno and what bubblewrap said."""


class Orphans:
    """Orphans that are commands of ours: their wait status is the loop's to take, after it has recorded it.

    Shared by the first thread, which gets and reaps all orphans, and the loop's, which expects some of them.
    """

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._changed = threading.Condition()

    def expect(self, pid: int) -> None:
        """Leave this one to the loop, from before it is an orphan."""
        with self._changed:
            self._expected.add(pid)

    def reaped(self, pid: int) -> None:
        """Say that the loop has reaped it, or never will have it."""
        with self._changed:
            self._expected.discard(pid)
            self._changed.notify_all()

    def leave(self, pid: int) -> None:
        """Wait until the loop has taken the status of this one, if it is its to take."""
        with self._changed:
            self._changed.wait_for(lambda: pid not in self._expected)


class Launched(NamedTuple):
    """A command's process, our child by now, and pid and start of the first process of its PID namespace."""

    pid: int
    start: int
    pidfd: int
    init: tuple[int, int]


class Launch:
    """One command on its way; ends in `started` or `failed`. The streams stay the caller's."""

    def __init__(
        self, loop: Loop, request: StartRequest, streams: list[int], orphans: Orphans, pinned: tuple[str, ...] = ()
    ) -> None:
        assert request.sandbox is not None
        self._pinned = pinned
        self.started: Callable[[Launched], None] = lambda _launched: None
        self.failed: Failed = lambda _errno, _text: None
        self.standing: Callable[[int], None] = lambda _pid: None
        """Gets the process before it is told to go; may raise OSError, and then it is not."""
        self._instances: Instances | None = None
        self._elsewhere: list[dict[str, int]] = []
        self._loop = loop
        self._request = request
        self._sandbox: Sandbox = request.sandbox
        self._streams = streams
        self._orphans = orphans

    def begin(self, instances: Instances) -> None:
        """Start once the instance is there; its user has entered it.

        Raises:
            Refused: There is no room for another instance.
            OSError: The kernel has no room.
        """
        self._instances = instances
        self._elsewhere = instances.beside(self._sandbox.key) if self._sandbox.pinned else []
        instances.make(self._sandbox, spawn.owner(self._request), self._fork)

    def _fork(self, found: dict[str, int] | None, number: int, text: str) -> None:
        if found is None:
            self.failed(number, text)
            return
        try:
            self._forked(found)
        except OSError as error:
            self.failed(error.errno or errno.EIO, "")

    def _forked(self, found: dict[str, int]) -> None:
        request, sandbox = self._request, self._sandbox
        assert self._instances is not None
        opened: list[int] = []

        def kept(*fds: int) -> tuple[int, ...]:
            opened.extend(fds)
            return fds

        pid, go, said = 0, -1, -1
        try:
            said, say = os.pipe()
            kept(say)
            wait, go = os.pipe()
            kept(wait)
            (options,) = kept(namespaces.options_in_memory("wrap", _options(request, sandbox)))
            (filters,) = kept(namespaces.text_in_memory("seccomp", sandbox.seccomp))
            fds = (filters, options, wait, *self._streams)
            ready = None if self._pinned or sandbox.pinned or sandbox.held else self._ahead()
            if ready is not None:
                pid, order = ready
                with order:
                    building.send_order(order, sandbox, self._words(), request.umask, say, fds)
            else:
                work = partial(self._become, self._prepare(), found, say, fds, (go, said))
                pid = namespaces.in_child(work, say)
            crashpoints.reach("supervisor.sandboxed")
            talk = Said(self._loop, said, pid, LAUNCH_S)
        except BaseException:
            give_up(pid, go, said)
            raise
        finally:
            for fd in opened:
                os.close(fd)
        talk.then = partial(self._stands, talk, go)

    def _prepare(self) -> Callable[[], None]:
        sandbox, who = self._sandbox, spawn.owner(self._request)
        assert self._instances is not None
        groups = self._instances.groups
        join = groups.join(sandbox.key, sandbox.bounds)
        prepare = partial(namespaces.prepare, who, groups.for_each(sandbox.bounds, who), join)
        self._instances.ahead.want(sandbox, who, prepare)
        return prepare

    def _ahead(self) -> tuple[int, socket.socket] | None:
        assert self._instances is not None
        return self._instances.ahead.take(self._sandbox, spawn.owner(self._request))

    def _words(self) -> list[str]:
        request = self._request
        terminal = ["setsid", "--ctty"] if request.pty is not None else []
        return [self._sandbox.bwrap, _init_mark(request), *terminal, *request.argv]

    def _become(
        self,
        prepare: Callable[[], None],
        found: dict[str, int],
        say: int,
        fds: tuple[int, ...],
        others: tuple[int, ...],
    ) -> NoReturn:
        request, sandbox = self._request, self._sandbox
        for fd in others:
            os.close(fd)
        prepare()
        pins.lay_elsewhere(self._elsewhere, sandbox.workspace, sandbox.pinned)
        stands = building.enter(found, sandbox, say, self._pinned)
        covers.over_workspace(sandbox)
        os.write(say, covers.over_scripts(sandbox))
        os.umask(request.umask)
        building.finish(stands)
        building.become(stands, self._words(), say, fds)

    def _stands(self, talk: Said, go: int) -> None:
        """The sandbox stands, or never will."""
        ends = _Ends(go)
        number = talk.errno
        try:
            ends.hold(talk, self._orphans)
        except (OSError, ValueError) as error:
            number = number or getattr(error, "errno", 0) or errno.EIO
        talk.gone = partial(self._orphaned, ends, number, talk.text)
        talk.end()

    def _orphaned(self, ends: _Ends, number: int, text: str) -> None:
        """Bubblewrap has gone, and what it forked is ours: say go, or let all of it end."""
        crashpoints.reach("supervisor.orphaned")
        request = self._request
        if not number:
            try:
                ends.check(request, text)
                self.standing(ends.pid)
                os.write(ends.go, f"{layout.MARKER}={procfs.mark(request.session_id)}\n".encode())
            except OSError as error:
                number = error.errno or errno.EIO
                text += namespaces.where(error)
        launched = ends.close(self._orphans, go=not number)
        if launched is not None:
            crashpoints.reach("supervisor.forked")
            self.started(launched)
        else:
            self.failed(number or errno.EIO, text)


class _Ends:
    """What we hold of a command that waits: a pipe, and from the moment they are known, both its processes."""

    def __init__(self, go: int) -> None:
        self.go = go
        self._main: Launched | None = None
        self._init: tuple[int, int, int] | None = None

    @property
    def pid(self) -> int:
        """The process that waits to be the command."""
        assert self._main is not None
        return self._main.pid

    def hold(self, talk: Said, orphans: Orphans) -> None:
        """Take hold of both processes while bubblewrap, their parent, has not been reaped.

        Raises:
            ValueError: There is none.
            OSError: The kernel has no room for a descriptor.
        """
        found = _INIT.search(talk.text)
        if found is not None:
            self._init = _held(int(found[1]), talk.pid)
        if not talk.ready or self._init is None:
            raise ValueError("the sandbox does not stand")
        pid, start, pidfd = _held(child_of(talk.text), talk.pid)
        self._main = Launched(pid, start, pidfd, self._init[:2])
        orphans.expect(pid)

    def check(self, request: StartRequest, text: str) -> None:
        """Look whether the command would find what was approved; its directory cannot change for it any more.

        Raises:
            OSError: It would not, or there is no telling.
        """
        assert self._main is not None
        covers.check_held(self._main.pid, request, text)

    def close(self, orphans: Orphans, *, go: bool) -> Launched | None:
        """Let go of what waits; the command's process, or None after seeing to it that nothing of it is left."""
        os.close(self.go)
        if self._init is not None:
            if not go:
                procfs.send(self._init[2], signal.SIGKILL)
            os.close(self._init[2])
        if go or self._main is None:
            return self._main
        orphans.reaped(self._main.pid)
        os.close(self._main.pidfd)
        return None


def _held(pid: int, parent: int) -> tuple[int, int, int]:
    fd = os.pidfd_open(pid)
    try:
        return pid, procfs.child(pid, parent).start, fd
    except BaseException:
        os.close(fd)
        raise


def _init_mark(request: StartRequest) -> str:
    return procfs.mark(layout.FIRST + request.session_id)


def _options(request: StartRequest, sandbox: Sandbox) -> list[str]:
    # On a terminal it is setsid(1) that does it, and takes the terminal.
    words = [*sandbox.wrap, "--clearenv", *(["--new-session"] if request.pty is None else [])]
    for name, value in request.env.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", request.cwd]
