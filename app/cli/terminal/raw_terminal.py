"""The terminal of an attached person: reads each key, and restores the modes at the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import struct
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any, Final, Literal, Self, TextIO

from shellback.cli.terminal.giving_back import GivingBack
from shellback.exec.core.model import WindowSize

LAST_S: Final = 1.0
_READ: Final = 64 * 1024
Mode = Literal["raw", "lines", "deaf"]
"""Read each key; read whole lines, edited and echoed by the terminal; or do not read."""


class RawTerminal:
    """The person's terminal, restored at the end of the `with` block; `leave_key` leaves in the mode `lines`.

    It uses its own file description, so that its O_NONBLOCK does not affect other processes.
    """

    def __init__(self, mode: Mode, leave_key: int) -> None:
        self._mode = mode
        self._leave_key = leave_key
        self._fd = -1
        self._before: list[Any] = []
        self._back: GivingBack

    def __enter__(self) -> Self:
        self._fd = _opened()
        self._before = termios.tcgetattr(self._fd)
        if self._mode == "raw":
            tty.setraw(self._fd, termios.TCSANOW)
        elif self._mode == "lines":
            modes = termios.tcgetattr(self._fd)
            modes[6][termios.VQUIT] = bytes([self._leave_key])
            termios.tcsetattr(self._fd, termios.TCSANOW, modes)
        self._back = GivingBack(self._fd, self._before)
        return self

    def __exit__(self, *_: object) -> None:
        # TCSANOW does not wait for output: a terminal that takes no output would block us.
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
        self._back.dismiss()
        os.close(self._fd)

    def size(self) -> WindowSize:
        """Its rows and columns now."""
        rows, cols, _, _ = struct.unpack("HHHH", fcntl.ioctl(self._fd, termios.TIOCGWINSZ, bytes(8)))
        return WindowSize(rows or 24, cols or 80)

    def gone(self) -> bool:
        """Whether the terminal has hung up."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(found & select.POLLHUP for _, found in poll.poll(0))

    def listen(self, heard: Callable[[bytes | None], None]) -> None:
        """Call `heard` from the event loop with typed bytes; b"" is the end-of-input key, None a closed terminal."""
        if self._mode != "deaf":
            asyncio.get_running_loop().add_reader(self._fd, self._readable, heard)

    def deafen(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._fd)

    def _readable(self, heard: Callable[[bytes | None], None]) -> None:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = None
        # A closed terminal reads like the end-of-input key, which must not be sent to the program.
        if data is None or (not data and (self._mode == "raw" or self.gone())):
            self.deafen()
            data = None
        heard(data)

    def if_killed(self, shown: bytes) -> None:
        """Also write `shown` when the terminal is restored because we were killed."""
        self._back.tell(shown)

    async def write(self, data: bytes) -> None:
        """Write bytes unchanged, as fast as the terminal takes them; cancelling drops the rest."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                await self._room()

    async def write_last(self, data: bytes) -> None:
        """Write `data`; output that the terminal has not taken within a second is dropped for it."""
        with contextlib.suppress(OSError, termios.error):
            try:
                await asyncio.wait_for(self.write(data), LAST_S)
            except TimeoutError:
                termios.tcflush(self._fd, termios.TCOFLUSH)
                os.write(self._fd, data)

    def ring(self) -> None:
        """Ring the bell, unless the write would block."""
        with contextlib.suppress(OSError):
            os.write(self._fd, b"\a")

    async def _room(self) -> None:
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._fd, lambda: room.done() or room.set_result(None))
        try:
            await room
        finally:
            loop.remove_writer(self._fd)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; the stream is None if our parent has closed it."""
    return stream is not None and stream.isatty()


def _opened() -> int:
    how = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    # After a change of user the name may not be opened; without a controlling terminal there is no /dev/tty.
    for name in ("/dev/tty", os.ttyname(sys.stdout.fileno())):
        with contextlib.suppress(OSError):
            return os.open(name, how)
    fd = os.dup(sys.stdout.fileno())
    os.set_blocking(fd, True)
    return fd
