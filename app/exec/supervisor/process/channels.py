"""The descriptors between us and one command: made before the fork, named for the keeper."""

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
    """`ours` by name; `child` is what the command gets as 0, 1 and 2, all the same on a terminal."""

    ours: dict[str, int] = field(default_factory=dict[str, int])
    child: list[int] = field(default_factory=list[int])

    def close_child(self) -> None:
        for fd in set(self.child):
            os.close(fd)
        self.child.clear()

    def close(self) -> None:
        self.close_child()
        for fd in self.ours.values():
            os.close(fd)
        self.ours.clear()


def make(request: StartRequest, limit: int) -> Channels:
    """Open everything a command needs.

    Raises:
        Refused: Nine tenths of the descriptors we may have are in use.
        OSError: The kernel refuses.
    """
    channels = Channels()
    try:
        if request.pty is not None:
            _terminal(channels, request)
        else:
            _pipes(channels, request)
        # The kernel gives the lowest number that is free: the highest tells how many are in use.
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
        terminal = pty.open_pty(rows, cols, spawn.owner(request))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Else it would be told of a disk.
        raise Refused("os_error", "this machine has no terminal left: raise the sysctl kernel.pty.max") from error
    channels.ours[MASTER] = terminal.master
    channels.child = [terminal.slave]
    channels.ours[INNER], channels.ours[INNER_IN] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    channels.ours[STDIN] = os.dup(terminal.master)


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
        # A user with very many pipes gets small ones.
        if request.keep_stdin_open:
            raise Refused("stdin", f"{len(text)} bytes of stdin do not fit in a pipe here")
        os.close(channels.child.pop())
        channels.child.append(linux.text_in_memory("stdin", request.stdin or b""))
    if not request.keep_stdin_open:
        os.close(channels.ours.pop(STDIN))


def _give(fd: int, owner: tuple[int, int] | None) -> None:
    # Who opens /dev/stderr anew needs to own the pipe behind it.
    if owner is not None:
        try:
            os.fchown(fd, *owner)
        except PermissionError as error:
            raise OSError(errno.EPERM, "cannot give a pipe to another user") from error
