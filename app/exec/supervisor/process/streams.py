"""Moves output from commands to logs: from pipes, and from terminals through a pipe of our own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import sys
import termios
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import IN, Loop, now
from shellback.exec.supervisor.process import pty
from shellback.exec.supervisor.records.logfile import WOULD_BLOCK, LogFile
from shellback.exec.wire import crashpoints

TURN: Final = 1 << 20
"""Bytes that one stream moves before the others get their turn."""
_PIPE: Final = 1 << 20
_HEAVY: Final = 1 << 15
_PAUSE_S: Final = 0.1


class Pipe:
    """The read end of a command's output pipe."""

    def __init__(self, fd: int, log: LogFile) -> None:
        self.fd = fd
        self.log = log
        self.open = True
        self._grows = fd
        """The pipe that may be enlarged."""
        self._held = [fd]
        self.grew: Callable[[], None] = lambda: None
        self._grown = False
        self._loop: Loop | None = None
        self._ended: Callable[[], None] | None = None

    def watch(self, loop: Loop, ended: Callable[[], None]) -> None:
        """Drain whenever there is output; call `ended()` once the last writer has gone."""
        self._loop, self._ended = loop, ended
        loop.watch(self.fd, self._readable, IN)

    def _readable(self, _events: int) -> None:
        crashpoints.reach("supervisor.output")
        self.drain(TURN)
        if not self.open and self._ended is not None:
            self._ended()

    def drain(self, limit: int) -> int:
        """Move the present output, about `limit` bytes at most; close at the end of the stream."""
        moved, before = 0, self.log.size
        while moved < limit:
            count = self.move(limit - moved)
            if count == WOULD_BLOCK:
                break
            if count == 0:
                self.close()
                break
            moved += count
            if count >= _HEAVY and not self._grown:
                self._grown = True
                # The kernel refuses this to a user with too much pipe memory.
                with contextlib.suppress(OSError):
                    fcntl.fcntl(self._grows, fcntl.F_SETPIPE_SZ, _PIPE)
        if self.log.size > before:
            self.log.times.arrived(before)
            self.log.grown_at = now()
            self.grew()
        return moved

    def move(self, limit: int) -> int:
        return self.log.take(self.fd, limit)

    def close(self) -> None:
        if self.open:
            self.open = False
            if self._loop is not None:
                self._loop.forget(self.fd)
            for fd in self._held:
                os.close(fd)


class Screen(Pipe):
    """The master of a command's terminal.

    Output goes into a pipe, whose ends the keeper holds too, and from there to the log: a kill between the two moves
    loses nothing. The stream ends when no process has the terminal open, unless `lasts()`: then the main process may
    open it again.
    """

    def __init__(self, master: int, inner: tuple[int, int], log: LogFile, lasts: Callable[[], bool]) -> None:
        super().__init__(master, log)
        self._inner, self._inner_in = inner
        self._grows = self._inner
        self._held += inner
        self._lasts = lasts
        self._inside = sys.maxsize
        """Upper bound of the bytes in the pipe; an earlier supervisor may have left some."""
        self._paused = False
        self._splices = True
        self.device: tuple[int, int] | None = None
        """Device and number of the command's end, once it was looked up."""
        self._note_size()

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal, and note it."""
        pty.resize(self.fd, rows, cols)
        self._note_size()

    def _note_size(self) -> None:
        self.log.times.resized(self.log.size, *termios.tcgetwinsize(self.fd))

    def move(self, limit: int) -> int:
        self._pass_on()
        try:
            count = self._read(min(limit, 1 << 15))
        except BlockingIOError:
            return WOULD_BLOCK
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return WOULD_BLOCK if self._pause() else 0
        self._inside += count
        self._pass_on()
        return count

    def _pass_on(self) -> None:
        while self._inside > 0:
            moved = self.log.take(self._inner, TURN)
            self._inside = self._inside - moved if moved > 0 else 0

    def _pause(self) -> bool:
        if self._loop is None or not self._lasts():
            return False
        if not self._paused:
            self._paused = True
            self._loop.forget(self.fd)
            self._loop.after(_PAUSE_S, self._resume)
        return True

    def _resume(self) -> None:
        self._paused = False
        if self._loop is not None and self.open:
            self._loop.watch(self.fd, self._readable, IN)

    def _read(self, limit: int) -> int:
        if self._splices:
            try:
                return os.splice(self.fd, self._inner_in, limit)
            except BlockingIOError:
                raise
            except OSError as error:
                # A read tells whether the stream has ended or only splice fails.
                self._splices = error.errno != errno.EINVAL
        # Not more than any empty pipe takes at once.
        data = os.read(self.fd, min(limit, select.PIPE_BUF))
        return os.write(self._inner_in, data) if data else 0
