"""The descriptors between supervisor and command: made before the fork, and named for the keeper."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from typing import Final

from shellback.exec.supervisor.process import pty, spawn
from shellback.exec.wire import linux
from shellback.exec.wire.protocol import Refused, StartRequest

OUT: Final = "out"
ERR: Final = "err"
STDIN: Final = "in"
MASTER: Final = "master"
INNER: Final = "inner"
INNER_IN: Final = "inner_in"
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
NAMES: Final = (OUT, ERR, STDIN, MASTER, INNER, INNER_IN)


@dataclass(slots=True)
class Channels:
    """`ours` are our ends by name; `child` are the command's 0, 1 and 2, or its one terminal."""

    ours: dict[str, int] = field(default_factory=dict[str, int])
    child: list[int] = field(default_factory=list[int])

    def close_child(self) -> None:
        linux.close_all(set(self.child))
        self.child.clear()

    def close(self) -> None:
        self.close_child()
        linux.close_all(self.ours.values())
        self.ours.clear()


def make(request: StartRequest, limit: int) -> Channels:
    """Open the descriptors of a command; raises Refused if 90 % of our descriptor limit is in use."""
    channels = Channels()
    try:
        if request.pty is not None:
            _terminal(channels, request)
        else:
            _pipes(channels, request)
        # The kernel assigns the lowest free number, so the highest number tells how many are in use.
        full = max([*channels.ours.values(), *channels.child]) >= limit * 9 // 10
    except BaseException:
        channels.close()
        raise
    if full:
        channels.close()
        raise Refused("descriptors", f"more than 90 % of {limit} descriptors are in use (EMFILE)")
    return channels


def _terminal(channels: Channels, request: StartRequest) -> None:
    rows, cols = request.pty or (0, 0)
    try:
        master, slave = pty.open_pty(rows, cols, spawn.owner(request))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # ENOSPC would be reported as a full disk.
        raise Refused("os_error", "this machine has no terminal left: raise the sysctl kernel.pty.max") from error
    channels.ours[MASTER], channels.child = master, [slave]
    channels.ours[INNER], channels.ours[INNER_IN] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    channels.ours[STDIN] = os.dup(master)


def _pipes(channels: Channels, request: StartRequest) -> None:
    owner = spawn.owner(request)
    _stdin(channels, request, owner)
    names = (OUT, ERR) if request.separate_stderr else (OUT,)
    for name in names:
        read, write = os.pipe()
        channels.ours[name] = read
        channels.child.append(write)
        os.set_blocking(read, False)
        _give(write, owner)
    if not request.separate_stderr:
        channels.child.append(channels.child[-1])


def _stdin(channels: Channels, request: StartRequest, owner: tuple[int, int] | None) -> None:
    if request.stdin is None and not request.keep_stdin_open:
        channels.child.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return
    text = request.stdin or b""
    read, write = os.pipe()
    channels.child.append(read)
    channels.ours[STDIN] = write
    os.set_blocking(write, False)
    _give(write, owner)
    with contextlib.suppress(BlockingIOError):
        text = text[os.write(write, text) if text else 0 :]
    if text:
        # A user with very many pipes gets small pipes.
        if request.keep_stdin_open:
            raise Refused("stdin", f"{len(text)} bytes of stdin do not fit in a pipe here")
        os.close(channels.child.pop())
        channels.child.append(linux.text_in_memory("stdin", request.stdin or b""))
    if not request.keep_stdin_open:
        os.close(channels.ours.pop(STDIN))


def _give(fd: int, owner: tuple[int, int] | None) -> None:
    # To open /dev/stderr again, a process must own the pipe behind it.
    if owner is not None:
        try:
            os.fchown(fd, *owner)
        except PermissionError as error:
            raise OSError(errno.EPERM, "cannot give a pipe to another user") from error
