"""Pseudo terminals: a typed cover of the standard library's, with a size from the start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
from typing import Final, NamedTuple

END_OF_FILE: Final = b"\x04"


class Terminal(NamedTuple):
    """Both ends of a pseudo terminal; whoever opened it closes both."""

    master: int
    slave: int


def open_pty(rows: int, cols: int, owner: tuple[int, int] | None = None) -> Terminal:
    """Open a terminal of `rows` by `cols` characters, given to `owner` (uid, gid) if there is one.

    The master does not block, and neither end is inherited.

    Raises:
        OSError: No terminal is left, or the owner cannot be set.
    """
    # That of the module pty tells no errno.
    master, slave = os.openpty()
    try:
        os.set_inheritable(master, False)
        os.set_inheritable(slave, False)
        os.set_blocking(master, False)
        resize(master, rows, cols)
        if owner is not None:
            # In this order: once it is another user's, the supervisor of a container may not change its mode.
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
    """What to write for end of input: the terminal's own VEOF character, as it is set now."""
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
