"""Ends process trees: SIGTERM, a grace period, SIGKILL, until two scans of /proc in a row find no process.

An interactive shell ignores SIGTERM, so it also gets the SIGHUP that the end of its terminal would send. A process is
signalled only if /proc says now that it belongs to the tree, and through a pidfd whose start time was compared.
A thread does the scans; one scan serves all trees.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from shellback.exec.supervisor.loop import IN, Loop, Timer, now
from shellback.exec.supervisor.process import procfs

_LAST_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.25
_NO_LOOK_S: Final = 0.02

Done = Callable[[list[int]], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The main process of a tree, and the marker of its members.

    `known` is the last tick at which the pid belonged to the main process. `init` is pid and start of the first process
    of its PID namespace, if it has one: no process leaves the namespace, and all end with its first process.
    """

    session_id: str
    pid: int
    start: int
    known: int
    init: tuple[int, int] | None = None

    @property
    def since(self) -> int:
        """No process of the tree is older, in ticks since boot."""
        return self.start if self.init is None else min(self.start or self.init[1], self.init[1])


def members(target: Target, procs: list[procfs.Proc], markers: dict[int, str | None], spare: set[int]) -> list[int]:
    """Pids of the living processes of a tree.

    These are the POSIX session that the main process led (if the number still means that one), every process with the
    marker, and the descendants of both.
    """
    if target.init is not None:
        return _inside(target, target.init, procs, spare)
    held = holds_number(target, procs)
    roots: set[int] = set()
    for proc in procs:
        if proc.start < target.start or proc.pid in spare:
            continue
        if markers.get(proc.pid) == target.session_id or (held and proc.sid == target.pid):
            roots.add(proc.pid)
    tree = procfs.with_descendants(roots, procs) - spare
    return [proc.pid for proc in procs if proc.pid in tree and proc.pid > 1 and proc.alive]


def _inside(target: Target, init: tuple[int, int], procs: list[procfs.Proc], spare: set[int]) -> list[int]:
    # Orphans in the namespace are children of its first process. That process only waits, and is no member.
    roots = {proc.pid for proc in procs if (proc.pid, proc.start) in {init, (target.pid, target.start)}}
    tree = procfs.with_descendants(roots, procs) - spare - {init[0]}
    return [proc.pid for proc in procs if proc.pid in tree and proc.alive]


def holds_number(target: Target, procs: list[procfs.Proc]) -> bool:
    """Whether the POSIX session with this number is the target's: a member started while the target had the number.

    Without such a member, the number may belong to another session by now, whose leader may have ended too.
    """
    return target.pid > 1 and any(
        proc.sid == target.pid and target.start <= proc.start <= target.known for proc in procs
    )


@dataclass(slots=True)
class _Ladder:
    target: Target
    until: float
    number: int
    done: list[Done]
    first: Callable[[], None]
    signalled: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])
    waiting: dict[int, int] = field(default_factory=dict[int, int])
    empty: int = 0
    timer: Timer | None = None


class _Order(NamedTuple):
    """One signal for a whole tree."""

    target: Target
    number: int
    done: Callable[[], None]


@dataclass(slots=True)
class _Wanted:
    """The purposes of one scan: trees to end, signals to send, and callers that ask which sessions exist."""

    names: set[str] = field(default_factory=set[str])
    orders: list[_Order] = field(default_factory=list[_Order])
    censuses: list[Callable[[set[str]], None]] = field(default_factory=list[Callable[[set[str]], None]])


class Killer:
    """Ends any number of trees at a time; each ends in `done(survivors)`."""

    def __init__(self, loop: Loop, spare: Callable[[], set[int]]) -> None:
        self._loop = loop
        self._spare = spare
        self._ladders: dict[str, _Ladder] = {}
        self._looking = False
        self._wanted = _Wanted()
        self._markers: dict[tuple[int, int], str | None] = {}
        self._todo: queue.SimpleQueue[tuple[_Wanted, int]] = queue.SimpleQueue()
        # Started now: later there may be no room for a thread, which may be why a tree has to be ended.
        threading.Thread(target=self._run, name="look", daemon=True).start()

    def kill(self, target: Target, grace_s: float, done: Done, first: Callable[[], None] = lambda: None) -> None:
        """End a tree; `first()` is called before the first signal, if one is sent.

        A second call for the same tree joins the first, and can only shorten its grace period.
        """
        ladder = self._ladders.get(target.session_id)
        until = now() + grace_s
        if ladder is None:
            ladder = _Ladder(target, until, signal.SIGTERM, [done], first)
            self._ladders[target.session_id] = ladder
        else:
            ladder.done.append(done)
            if ladder.number == signal.SIGKILL or until >= ladder.until:
                return
            ladder.until = until
        if grace_s <= 0:
            self._harder(ladder)
        else:
            self._set_timer(ladder, until, lambda: self._harder(ladder))
            self._look(ladder)

    def signal(self, target: Target, number: int, done: Callable[[], None]) -> None:
        """Signal every process of a tree that one scan finds, then call `done()`."""
        self._wanted.orders.append(_Order(target, number, done))
        self._ask()

    def bearers(self, done: Callable[[set[str]], None]) -> None:
        """Pass the sessions whose marker some process has to `done`."""
        self._wanted.censuses.append(done)
        self._ask()

    def _set_timer(self, ladder: _Ladder, when: float, call: Callable[[], None]) -> None:
        if ladder.timer is not None:
            ladder.timer.cancel()
        ladder.timer = self._loop.at(when, call)

    def _harder(self, ladder: _Ladder) -> None:
        if ladder.number != signal.SIGKILL:
            ladder.number = signal.SIGKILL
            ladder.until = now() + _LAST_S
        self._set_timer(ladder, now() + _LOOK_AGAIN_S, lambda: self._harder(ladder))
        self._look(ladder)

    def _look(self, ladder: _Ladder) -> None:
        self._wanted.names.add(ladder.target.session_id)
        self._ask()

    def _ask(self) -> None:
        wanted = self._wanted
        wanted.names &= self._ladders.keys()
        if self._looking or wanted == _Wanted():
            return
        self._looking, self._wanted = True, _Wanted()
        targets = [self._ladders[name].target for name in wanted.names] + [order.target for order in wanted.orders]
        self._todo.put((wanted, 0 if wanted.censuses else min(target.since for target in targets)))

    def _run(self) -> None:
        while True:
            wanted, since = self._todo.get()
            try:
                self._scan(wanted, since)
            except OSError:
                # No descriptor now: a start lowers our limit for a moment.
                time.sleep(_NO_LOOK_S)
                self._todo.put((wanted, since))

    def _scan(self, wanted: _Wanted, since: int) -> None:
        began = procfs.ticks()
        procs = procfs.snapshot(since)
        known: dict[tuple[int, int], str | None] = {}
        markers: dict[int, str | None] = {}
        for proc in procs:
            key = proc.pid, proc.start
            # A later exec may remove the marker: the one seen before counts.
            known[key] = markers[proc.pid] = procfs.marker(proc.pid) or self._markers.get(key)
        self._loop.post(lambda: self._looked(wanted, began, procs, markers, known))

    def _looked(
        self,
        wanted: _Wanted,
        began: int,
        procs: list[procfs.Proc],
        markers: dict[int, str | None],
        known: dict[tuple[int, int], str | None],
    ) -> None:
        self._looking = False
        self._markers = known
        spare = self._spare()
        found = {proc.pid: proc for proc in procs}
        for order in wanted.orders:
            for pid in members(order.target, procs, markers, spare):
                with contextlib.suppress(OSError):
                    procfs.signal_exactly(pid, found[pid].start, order.number)
            order.done()
        for census in wanted.censuses:
            census({mark for mark in markers.values() if mark})
        for name in wanted.names:
            ladder = self._ladders.get(name)
            if ladder is not None:
                tree = members(ladder.target, procs, markers, spare)
                if holds_number(ladder.target, procs):
                    ladder.target = replace(ladder.target, known=max(began, ladder.target.known))
                self._step(ladder, [found[pid] for pid in tree])
        if not self._ladders:
            self._markers = {}
        self._ask()

    def _step(self, ladder: _Ladder, found: list[procfs.Proc]) -> None:
        if not found:
            ladder.empty += 1
            if ladder.empty >= 2:
                self._finish(ladder, [])
            else:
                self._look(ladder)
            return
        ladder.empty = 0
        if ladder.number == signal.SIGKILL and now() > ladder.until:
            self._finish(ladder, [proc.pid for proc in found])
            return
        if not ladder.signalled:
            ladder.first()
        if ladder.number == signal.SIGKILL and ladder.target.init is not None:
            # The kernel ends the whole namespace with it, including processes that are being forked.
            self._signal(ladder, *ladder.target.init)
        for proc in found:
            self._signal(ladder, proc.pid, proc.start, hangs_up=proc.hangs_up)
        if not ladder.waiting:
            self._look(ladder)

    def _signal(self, ladder: _Ladder, pid: int, start: int, *, hangs_up: bool = False) -> None:
        if (pid, start, ladder.number) in ladder.signalled and pid in ladder.waiting:
            return
        fd = ladder.waiting.get(pid)
        if fd is None:
            try:
                fd = procfs.open_pidfd(pid, start)
            except OSError:
                # Too many descriptors; the next scan finds it again.
                return
            if fd is None:
                return
            ladder.waiting[pid] = fd
            self._loop.watch(fd, lambda _: self._gone(ladder, pid), IN)
        ladder.signalled.add((pid, start, ladder.number))
        try:
            procfs.send(fd, ladder.number)
            if ladder.number == signal.SIGTERM:
                if hangs_up:
                    procfs.send(fd, signal.SIGHUP)
                # A stopped process handles signals only after SIGCONT.
                procfs.send(fd, signal.SIGCONT)
        except PermissionError:
            return

    def _gone(self, ladder: _Ladder, pid: int) -> None:
        fd = ladder.waiting.pop(pid)
        self._loop.forget(fd)
        os.close(fd)
        if not ladder.waiting:
            self._look(ladder)

    def _finish(self, ladder: _Ladder, survivors: list[int]) -> None:
        del self._ladders[ladder.target.session_id]
        # It may have been requested during the last scan.
        self._wanted.names.discard(ladder.target.session_id)
        if ladder.timer is not None:
            ladder.timer.cancel()
        for fd in ladder.waiting.values():
            self._loop.forget(fd)
            os.close(fd)
        for done in ladder.done:
            done(survivors)
