"""Input for a command: each write happens once, as far as the command reads it in time."""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import termios
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from shellback.exec.supervisor.loop import OUT, Loop, Timer
from shellback.exec.supervisor.process import pty
from shellback.exec.wire.protocol import Refused

WAIT_S: Final = 1.0
"""How long a write waits for a full pipe or terminal."""
KEYS: Final = 256
PENDING: Final = 64

Outcome = dict[str, Any]
Told = Callable[[Outcome], None]


@dataclass(slots=True)
class _Write:
    data: bytes
    eof: bool
    key: str
    told: list[Told]
    act: Callable[[Callable[[], None]], None] | None = None
    acts: bool = False
    timer: Timer | None = None
    done: int = 0
    extra: int = 0


class Input:
    """The write end of a command's stdin, or its terminal.

    An outcome is `{"accepted": bytes written, "total": bytes asked for, "eof": end of input was sent, "closed": no
    process reads any more}`. The outcomes of the last `KEYS` keys are kept, so a key never writes twice.
    """

    def __init__(self, loop: Loop, fd: int, *, terminal: bool, closed: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = fd
        self._terminal = terminal
        self._closed = closed
        self._open = True
        self._watched = False
        self._queue: deque[_Write] = deque()
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()

    def write(self, data: bytes, *, eof: bool, key: str, told: Told, again: bool = False) -> None:
        """Write, and pass the outcome to `told` within WAIT_S; `again` only asks for the outcome of an earlier write.

        Raises Refused if the input is closed, too many writes wait, or there was no earlier write.
        """
        known = self._outcomes.get(key) if key else None
        if known is not None:
            told(known)
            return
        for write in self._queue:
            if key and write.key == key:
                write.told.append(told)
                return
        if again:
            raise Refused("not_known", "no write with this key has been served")
        if not self._open:
            raise Refused("no_stdin", "the session's input is closed")
        if len(self._queue) >= PENDING:
            raise Refused("busy", f"{PENDING} writes are waiting")
        write = _Write(data, eof, key, [told])
        if eof and self._terminal:
            # After an unfinished line, the first VEOF only submits that line.
            end = pty.end_of_file(self._fd) * (1 if data[-1:] in {b"", b"\n"} else 2)
            write.data, write.extra = data + end, len(end)
        self._queue.append(write)
        if len(self._queue) == 1:
            self._pump()
        if write.told:
            write.timer = self._loop.after(WAIT_S, lambda: self._expire(write))

    def between(self, act: Callable[[Callable[[], None]], None]) -> None:
        """Run `act` between two writes; the next one waits until it calls back. Skipped if too many writes wait."""
        if self._open and len(self._queue) < PENDING:
            self._queue.append(_Write(b"", eof=False, key="", told=[], act=act))
            if len(self._queue) == 1:
                self._pump()

    def _acted(self, write: _Write) -> None:
        if self._queue and self._queue[0] is write:
            self._queue.popleft()
            self._pump()

    def _pump(self, _events: int = 0) -> None:
        while self._queue:
            write = self._queue[0]
            if write.act is not None:
                self._watch(wanted=False)
                if not write.acts:
                    write.acts = True
                    write.act(functools.partial(self._acted, write))
                return
            try:
                while write.done < len(write.data):
                    write.done += os.write(self._fd, write.data[write.done :])
            except BlockingIOError:
                self._watch(wanted=True)
                return
            except OSError:
                self._queue.popleft()
                self._tell(write, closed=True)
                self.close()
                return
            self._queue.popleft()
            self._tell(write, closed=False)
            if write.eof and not self._terminal:
                self.close()
                return
        self._watch(wanted=False)

    def _watch(self, *, wanted: bool) -> None:
        # The terminal's descriptor is watched for output already, so input uses a dup.
        if wanted and not self._watched:
            self._loop.watch(self._fd, self._pump, OUT)
        elif not wanted and self._watched:
            self._loop.forget(self._fd)
        self._watched = wanted

    def _expire(self, write: _Write) -> None:
        self._queue.remove(write)
        self._tell(write, closed=False)
        self._pump()

    def _tell(self, write: _Write, *, closed: bool) -> None:
        total = len(write.data) - write.extra
        whole = write.done == len(write.data)
        outcome: Outcome = {
            "accepted": min(write.done, total),
            "total": total,
            "eof": write.eof and whole and not closed,
            "closed": closed,
        }
        if write.timer is not None:
            write.timer.cancel()
        if write.key:
            self._outcomes[write.key] = outcome
            if len(self._outcomes) > KEYS:
                self._outcomes.popitem(last=False)
        told, write.told = write.told, []
        for tell in told:
            tell(outcome)

    def awaited(self) -> tuple[int, int] | None:
        """Device and inode of the pipe if a reader may wait for it; None if it has data or is closed."""
        if not self._open or self._terminal:
            return None
        if struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]:
            return None
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Close our end and tell the outcome of waiting writes."""
        if self._open:
            self._open = False
            self._watch(wanted=False)
            os.close(self._fd)
            self._closed()
            while self._queue:
                self._tell(self._queue.popleft(), closed=True)
