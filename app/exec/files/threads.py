"""Threads in which files are handled as the user whom commands run as, so that the kernel decides what is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from pathlib import Path
from typing import Final, TypeVar

from app.exec.backends.runner import Runner
from app.exec.errors import BackendUnavailable
from app.exec.supervisor import linux

THREADS: Final = 4
_OVER_FILES: Final = 0x1F | 1 << 9 | 1 << 27 | 1 << 32
"""CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD and MAC_OVERRIDE."""

T = TypeVar("T")


class FileThreads:
    """At most `THREADS` of them, made as they are needed; `uid` and `gid` None is whom commands run as by default.

    Where we are not root there is nobody else to become, and `identity` is None.
    """

    def __init__(self, uid: int | None, gid: int | None, umask: int) -> None:
        runner = Runner() if uid is None else Runner(exec_uid=uid)
        if runner.drops and runner.uid == 0:
            raise ValueError("files would be handled as root; give the user id that commands run as")
        self.uid = runner.uid
        self.gid = runner.gid if gid is None else gid
        self.identity = (self.uid, self.gid) if runner.drops else None
        self._umask = umask
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="files", initializer=self._begin)

    async def run(self, work: Callable[[], T], stop: Callable[[], object] | None = None) -> T:
        """What `work` returns or raises.

        Cancelled before a thread was free it is not begun; later `stop` is called, it is waited for, and its result is
        lost.

        Raises:
            BackendUnavailable: We are root, and may not become somebody else for files.
        """
        try:
            return await settled(self._pool.submit(work), stop)
        except BrokenThreadPool:
            raise self._unable() from None

    async def close(self) -> None:
        """Let what was begun come to its end, and end the threads."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)

    def _begin(self) -> None:
        linux.own_umask(self._umask)
        if self.identity is None:
            return
        linux.file_identity(self.uid, self.gid)
        if _capabilities() & _OVER_FILES:
            raise PermissionError("capabilities over files are left")

    def _unable(self) -> BackendUnavailable:
        return BackendUnavailable(
            f"files cannot be handled as user id {self.uid}, which runs commands: this process is root without the "
            "capabilities SETUID and SETGID; give it both, or run it as an unprivileged user"
        )


async def settled(job: Future[T], stop: Callable[[], object] | None = None) -> T:
    """The result of `job`; cancelled, it is withdrawn, or else stopped and waited for."""
    waiter = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        if not job.cancel() and stop is not None:
            stop()
        while not waiter.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waiter])
        raise


def _capabilities() -> int:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    raise OSError("the kernel does not say what this thread may do")
