"""What a session does at this moment: its terminal, and who waits for input.

Processes are looked at in a thread of its own. One that makes the kernel wait holds up that thread and no more:
until it has come back, looks tell what can be told without it.
"""

from __future__ import annotations

import fcntl
import os
import queue
import struct
import termios
import threading
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import Loop, Timer, now
from shellback.exec.supervisor.process import readers
from shellback.exec.supervisor.process.job import Job
from shellback.exec.supervisor.process.readers import Reader, Source
from shellback.exec.supervisor.process.streams import Screen
from shellback.exec.wire.fields import Message

_PATIENCE_S: Final = 0.5
_PEER: Final = 0x5441
"""TIOCGPTPEER of Linux: the other end of a terminal, in whatever namespace it is; the module has no name for it."""

Told = Callable[[Message], None]


class Looks:
    """All of its methods but `_run` run on the loop's thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._todo: queue.SimpleQueue[tuple[Callable[[], Reader], Callable[[Reader], None]]] = queue.SimpleQueue()
        self._late = 0
        threading.Thread(target=self._run, name="readers", daemon=True).start()

    def look(self, job: Job, told: Told) -> None:
        """Tell what a running job does, within half a second; once, and later than this call or in it."""
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
            # A program that asks for a password switches echo off before it reads: what it waits with comes after.
            if isinstance(screen, Screen) and screen.open and (terminal := _terminal(screen.fd)) is not None:
                look["terminal"] = terminal
            told(_with(look, reader))

        self._ask(lambda: readers.reader(roots, source, group), found)

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
                # No descriptor just now: a start lowers our limit for a moment.
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
    """The device of the commands' end of a terminal."""
    if screen.device is None:
        try:
            fd = fcntl.ioctl(screen.fd, _PEER, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        os.close(fd)
        screen.device = found.st_dev, found.st_rdev
    return screen.device
