"""Pseudo terminals with a size and an owner from the start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from typing import Final, NamedTuple

END_OF_FILE: Final = b"\x04"


class Terminal(NamedTuple):
    """Both ends of a pseudo terminal; the caller closes both."""

    master: int
    slave: int


def open_pty(rows: int, cols: int, owner: tuple[int, int] | None = None) -> Terminal:
    """Open a terminal of `rows` by `cols` for `owner` (uid, gid).

    The master does not block, and neither end is inherited.
    """
    # `pty.openpty` hides the errno.
    master, slave = os.openpty()
    try:
        os.set_inheritable(master, False)
        os.set_inheritable(slave, False)
        os.set_blocking(master, False)
        resize(master, rows, cols)
        if owner is not None:
            # Mode first: the supervisor of a container may not change the mode of another user's terminal.
            os.fchmod(slave, 0o620)
            os.fchown(slave, *owner)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    return Terminal(master, slave)


def resize(fd: int, rows: int, cols: int) -> None:
    """Set the size; the terminal's foreground processes get SIGWINCH if it changed."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def end_of_file(master: int) -> bytes:
    """The terminal's current VEOF character: writing it ends the input."""
    with contextlib.suppress(termios.error):
        value = termios.tcgetattr(master)[6][termios.VEOF]
        if isinstance(value, bytes):
            return value
    return END_OF_FILE


def become_session_on(slave: int) -> None:
    """In a forked child: lead a new session whose controlling terminal and standard streams are `slave`."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
