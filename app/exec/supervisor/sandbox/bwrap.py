"""A forked bubblewrap: its messages until the sandbox stands, and its end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
from collections.abc import Callable
from typing import Final

from shellback.exec.supervisor.loop import IN, Loop
from shellback.exec.wire.descriptors import kept

READY: Final = "ready\n"
_MOST: Final = 8192
_INFO: Final = re.compile(r"\{[^{}]*\}")
_OURS: Final = re.compile(r"^(built \d+ \d+|held \d+:\d+|ready|!\d+)\n", re.MULTILINE)
FAILED: Final = re.compile(r"^!(\d+)$", re.MULTILINE)
_KNOWN: Final = (
    errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ENFILE,
    errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ELOOP, errno.EINVAL, errno.ENAMETOOLONG,
)  # fmt: skip


def child_of(text: str) -> int:
    """The pid, as seen from here, of the process in the sandbox; raises ValueError if bubblewrap did not tell it."""
    found = _INFO.search(text)
    child: object = json.loads(found[0]).get("child-pid") if found else None
    if not isinstance(child, int) or child < 2:
        raise ValueError("bubblewrap did not tell its child")
    return child


def errno_in(text: str) -> int:
    """The errno of the error that bubblewrap reported in words; EIO if we do not know the words."""
    known = next((number for number in _KNOWN if os.strerror(number) in text), errno.EIO)
    return int(found[1]) or errno.EIO if (found := FAILED.search(text)) else known


def words_in(text: str) -> str:
    """The part of the messages that is meant for people."""
    return _OURS.sub("", _INFO.sub("", text)).lstrip()


def give_up(pid: int, *fds: int) -> None:
    """Close those of `fds` that are open, and kill and reap `pid` unless it is 0."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
    if pid:
        os.kill(pid, signal.SIGKILL)  # noqa: TID251 - our child, not reaped, and no descriptor to be had
        os.waitpid(pid, 0)


class Said:
    """Reads the messages of bubblewrap from `fd`; calls `then` once it is ready, has ended, or was silent too long.

    `errno` is 0 if it is ready. `end` kills and reaps it, then calls `gone`. After an OSError of the constructor, `fd`
    and the process are still the caller's.
    """

    def __init__(self, loop: Loop, fd: int, pid: int, patience_s: float) -> None:
        self.then: Callable[[], None] = lambda: None
        self.gone: Callable[[], None] = lambda: None
        self.text = ""
        self.ready = False
        self.errno = 0
        self.pid = pid
        self._loop = loop
        self._fd = fd
        with kept(os.pidfd_open(pid)) as self._pidfd:
            os.set_blocking(fd, False)
            loop.watch(fd, self._read, IN)
        self._timer = loop.after(patience_s, lambda: self._over(errno.ETIMEDOUT))

    def _read(self, _events: int) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        self.text = (self.text + data.decode("utf-8", "replace"))[-_MOST:]
        self.ready = READY in self.text
        if self.ready:
            self._over(0)
        elif not data:
            self._over(errno_in(self.text))

    def _over(self, number: int) -> None:
        self._timer.cancel()
        self._loop.forget(self._fd)
        os.close(self._fd)
        self.errno = number
        self.then()

    def end(self) -> None:
        """Kill it; its children become our orphans."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._loop.watch(self._pidfd, self._ended, IN)

    def _ended(self, _events: int) -> None:
        self._loop.forget(self._pidfd)
        os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self.gone()
