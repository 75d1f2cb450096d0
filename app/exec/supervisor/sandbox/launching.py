"""Starts one command in a sandbox, asynchronously, so that its wait status comes from the kernel.

Bubblewrap reports death by a signal as 128 + n. So it only builds the sandbox: its waiting child becomes an orphan of
ours, the subreaper, before it executes the command. If the supervisor dies before that, the command has not run.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, NoReturn

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs, spawn
from shellback.exec.supervisor.sandbox import building, covers, namespaces, pins
from shellback.exec.supervisor.sandbox.bwrap import Said, child_of, give_up
from shellback.exec.supervisor.sandbox.instances import Instances
from shellback.exec.wire import crashpoints, layout, linux
from shellback.exec.wire.descriptors import kept
from shellback.exec.wire.protocol import StartRequest
from shellback.exec.wire.sandbox import Sandbox

LAUNCH_S: Final = 20.0
_INIT: Final = re.compile(r"^init (\d+)$", re.MULTILINE)

Failed = Callable[[int, str], None]
"""Gets the errno and the messages of bubblewrap."""


class Orphans:
    """Orphans that are commands: the loop's thread reaps them, after it has recorded their wait status.

    The first thread, which reaps all other orphans, shares this with the loop's thread.
    """

    def __init__(self) -> None:
        self._expected: set[int] = set()
        self._changed = threading.Condition()

    def expect(self, pid: int) -> None:
        """Reserve this process for the loop, before it becomes an orphan."""
        with self._changed:
            self._expected.add(pid)

    def reaped(self, pid: int) -> None:
        """Note that the loop has reaped it, or never will."""
        with self._changed:
            self._expected.discard(pid)
            self._changed.notify_all()

    def leave(self, pid: int) -> None:
        """Wait until the loop has reaped this process, if it is reserved."""
        with self._changed:
            self._changed.wait_for(lambda: pid not in self._expected)


class Launched(NamedTuple):
    """A command's process, now our child, and pid and start of the first process of its PID namespace."""

    pid: int
    start: int
    pidfd: int
    init: tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Launch:
    """The start of one command; ends in `started` or `failed`. The caller keeps the streams.

    `standing` gets the process before it may go; if it raises OSError, the start fails.
    """

    loop: Loop
    request: StartRequest
    sandbox: Sandbox
    streams: list[int]
    orphans: Orphans
    instances: Instances
    started: Callable[[Launched], None]
    failed: Failed
    standing: Callable[[int], None]
    pinned: tuple[str, ...] = ()
    _elsewhere: Sequence[dict[str, int]] = ()
    _go: int = -1
    _init: tuple[int, int, int] | None = None
    _main: Launched | None = None

    def begin(self) -> None:
        """Start once the instance is made; the caller has entered it. Raises what `Instances.make` does."""
        if self.sandbox.pinned:
            self._elsewhere = self.instances.beside(self.sandbox.key)
        self.instances.make(self.sandbox, spawn.owner(self.request), self._fork)

    def _fork(self, found: dict[str, int] | None, number: int, text: str) -> None:
        if found is None:
            self.failed(number, text)
            return
        try:
            self._forked(found)
        except OSError as error:
            self.failed(error.errno or errno.EIO, "")

    def _forked(self, found: dict[str, int]) -> None:
        request, sandbox = self.request, self.sandbox
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
            (filters,) = kept(linux.text_in_memory("seccomp", sandbox.seccomp))
            fds = (filters, options, wait, *self.streams)
            alone = self.pinned or sandbox.pinned or sandbox.held
            ready = None if alone else self.instances.ahead.take(sandbox, spawn.owner(request))
            if ready is not None:
                pid, order = ready
                with order:
                    building.send_order(order, sandbox, self._words(), request.umask, say, fds)
            else:
                work = partial(self._become, self._prepare(), found, say, fds, (go, said))
                pid = namespaces.in_child(work, say)
            crashpoints.reach("supervisor.sandboxed")
            talk = Said(self.loop, said, pid, LAUNCH_S)
        except BaseException:
            give_up(pid, go, said)
            raise
        finally:
            linux.close_all(opened)
        self._go = go
        talk.then = partial(self._stands, talk)

    def _prepare(self) -> Callable[[], None]:
        sandbox, who, groups = self.sandbox, spawn.owner(self.request), self.instances.groups
        join = groups.join(sandbox.key, sandbox.bounds)
        prepare = partial(namespaces.prepare, who, groups.for_each(sandbox.bounds, who), join)
        self.instances.ahead.want(sandbox, who, prepare)
        return prepare

    def _words(self) -> list[str]:
        request = self.request
        terminal = ["setsid", "--ctty"] if request.pty is not None else []
        return [self.sandbox.bwrap, procfs.mark(layout.FIRST + request.session_id), *terminal, *request.argv]

    def _become(
        self,
        prepare: Callable[[], None],
        found: dict[str, int],
        say: int,
        fds: tuple[int, ...],
        others: tuple[int, ...],
    ) -> NoReturn:
        request, sandbox = self.request, self.sandbox
        linux.close_all(others)
        prepare()
        pins.lay_elsewhere(self._elsewhere, sandbox.workspace, sandbox.pinned)
        stands = building.enter(found, sandbox, say, self.pinned)
        covers.over_workspace(sandbox)
        os.write(say, covers.over_scripts(sandbox))
        os.umask(request.umask)
        building.finish(stands)
        building.become(stands, self._words(), say, fds)

    def _stands(self, talk: Said) -> None:
        """The sandbox stands or has failed: open both processes while bubblewrap, their parent, still exists."""
        number = talk.errno
        try:
            found = _INIT.search(talk.text)
            if found is not None:
                self._init = _held(int(found[1]), talk.pid)
            if not talk.ready or self._init is None:
                raise ValueError("the sandbox does not stand")  # noqa: TRY301 - handled as a process that is gone
            pid, start, pidfd = _held(child_of(talk.text), talk.pid)
            self._main = Launched(pid, start, pidfd, self._init[:2])
            self.orphans.expect(pid)
        except (OSError, ValueError) as error:
            number = number or getattr(error, "errno", 0) or errno.EIO
        talk.gone = partial(self._orphaned, number, talk.text)
        talk.end()

    def _orphaned(self, number: int, text: str) -> None:
        """Bubblewrap has ended, and its children are ours: let the command go, or end all of them."""
        crashpoints.reach("supervisor.orphaned")
        request, main = self.request, self._main
        if main is not None and not number:
            try:
                # From here on its directory cannot change.
                covers.check_held(main.pid, request, text)
                self.standing(main.pid)
                os.write(self._go, f"{layout.MARKER}={procfs.mark(request.session_id)}\n".encode())
            except OSError as error:
                number = error.errno or errno.EIO
                text += namespaces.where(error)
        os.close(self._go)
        if self._init is not None:
            if number:
                procfs.send(self._init[2], signal.SIGKILL)
            os.close(self._init[2])
        if main is not None and not number:
            crashpoints.reach("supervisor.forked")
            self.started(main)
            return
        if main is not None:
            self.orphans.reaped(main.pid)
            os.close(main.pidfd)
        self.failed(number or errno.EIO, text)


def _held(pid: int, parent: int) -> tuple[int, int, int]:
    with kept(os.pidfd_open(pid)) as fd:
        return pid, procfs.child(pid, parent).start, fd


def _options(request: StartRequest, sandbox: Sandbox) -> list[str]:
    # With a terminal, setsid(1) makes the session and takes the terminal.
    words = [*sandbox.wrap, "--clearenv", *(["--new-session"] if request.pty is None else [])]
    for name, value in request.env.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", request.cwd]
