"""A forked bubblewrap: its reports until its sandbox stands, and its end."""

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
from shellback.exec.wire import linux

READY: Final = "ready\n"
_MOST: Final = 8192
_INFO: Final = re.compile(r"\{[^{}]*\}")
_OURS: Final = re.compile(r"^(init \d+|held \d+:\d+|ready|!\d+)\n", re.MULTILINE)
_FAILED: Final = re.compile(r"^!(\d+)$", re.MULTILINE)
_KNOWN: Final = (
    errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.ENFILE,
    errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ELOOP, errno.EINVAL, errno.ENAMETOOLONG,
)  # fmt: skip


def child_of(text: str) -> int:
    """The pid, in our namespace, of the process in the sandbox; ValueError if it was not reported."""
    found = _INFO.search(text)
    child: object = json.loads(found[0]).get("child-pid") if found else None
    if not isinstance(child, int) or child < 2:
        raise ValueError("bubblewrap did not tell its child")
    return child


def errno_in(text: str) -> int:
    """The errno of an error that bubblewrap reported in words; EIO if the words are unknown."""
    known = next((number for number in _KNOWN if os.strerror(number) in text), errno.EIO)
    return int(found[1]) or errno.EIO if (found := _FAILED.search(text)) else known


def words_in(text: str) -> str:
    """The lines for people, without numbers of processes and namespaces and without reports to us."""
    return _OURS.sub("", _INFO.sub("", text)).lstrip()


def give_up(pid: int, *fds: int) -> None:
    """Close `fds`, and end the forked child, if any, because resources for it lack."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
    if pid:
        os.kill(pid, signal.SIGKILL)  # noqa: TID251 - our child, not reaped, and no descriptor to be had
        os.waitpid(pid, 0)


class Said:
    """Collects its reports from `fd`, and calls `then` once: when it is ready, has ended, or was silent for too long.

    `errno` is 0 when it is ready. `end` kills and reaps it, and then calls `gone`. If the kernel has no resources to
    follow it (OSError), `fd` and `pid` still belong to the caller.
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
        with linux.kept(os.pidfd_open(pid)) as self._pidfd:
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
