"""Threads in which files are handled as the user whom commands run as, so that the kernel decides; and last acts."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from shellback.exec.core.errors import BackendUnavailable, CheckTimedOut
from shellback.exec.core.runner import Runner
from shellback.exec.core.sight.place import held
from shellback.exec.wire import linux

THREADS: Final = 4
CHECK_S: Final = 10.0
"""Whatever is looked at before a call was approved takes at most this long; then the call is refused."""
LEFT_MOST: Final = 32
"""Threads that were left to themselves and still hang; with so many nothing more is begun."""
_OVER_FILES: Final = 0x1F | 1 << 9 | 1 << 27 | 1 << 32
"""CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD and MAC_OVERRIDE."""

A = TypeVar("A")
T = TypeVar("T")


class _Broken(Exception):
    """Raised where a thread could not be prepared."""


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future[Any])
    left: bool = False


class Threads:
    """At most `most` threads, made as they are needed; `begin` prepares each.

    They keep no process alive. One that does not come back is left to itself when its job's time is over, and another
    takes its place, so that what hangs in the kernel takes nothing away from others.
    """

    def __init__(self, most: int, name: str, begin: Callable[[], object] | None = None) -> None:
        self._most = most
        self._name = name
        self._begin = begin
        self._lock = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._alive = self._idle = self._left = 0
        self._broken = self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done by one of them.

        Raises:
            RuntimeError: They are closed.
        """
        return self._submit(work).future

    async def run(
        self, work: Callable[[], T], stop: Callable[[], object] | None = None, *, seconds: float | None = None
    ) -> T:
        """What `work` returns or raises.

        Cancelled before a thread was free it is not begun; later `stop` is called, it is waited for, and its result is
        lost. Work that may take `seconds` only looks: it is left to itself after that.

        Raises:
            CheckTimedOut: It did not come to its end in `seconds`.
        """
        job = self._submit(work)
        if seconds is None:
            return await settled(job.future, stop)
        waiter = asyncio.wrap_future(job.future)
        try:
            if (await asyncio.wait((waiter,), timeout=seconds))[0]:
                return waiter.result()
        finally:
            if not waiter.done():
                waiter.cancel()
                self._leave(job)
                if stop is not None:
                    stop()
        raise CheckTimedOut(
            f"it took more than {seconds:g} s to look at what this call names: a file system that it lies on does not "
            "answer, or it is too much; name less, or have the operator look at the mounts"
        )

    async def close(self, seconds: float = CHECK_S) -> None:
        """Let what was begun come to its end, for at most `seconds`, and end the threads."""
        with self._lock:
            self._closed = True
            waiting, self._jobs = list(self._jobs), deque()
            self._lock.notify_all()
        for job in waiting:
            job.future.cancel()
        await asyncio.to_thread(self._ended, seconds)

    def _submit(self, work: Callable[[], Any]) -> _Job:
        job = _Job(work)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._broken:
                raise _Broken
            if self._left >= LEFT_MOST:
                raise CheckTimedOut(
                    f"{self._left} looks at files hang: a file system does not answer; the operator has to mend it"
                )
            self._jobs.append(job)
            self._lock.notify()
            self._grow()
        return job

    def _grow(self) -> None:
        if len(self._jobs) > self._idle and self._alive < self._most:
            self._alive += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _leave(self, job: _Job) -> None:
        with self._lock:
            if job.future.done() or job.future.cancel():
                return
            job.left = True
            self._left += 1
            self._alive -= 1
            self._grow()

    def _ended(self, seconds: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._alive == 0, seconds)

    def _work(self) -> None:
        try:
            if self._begin is not None:
                self._begin()
        except BaseException:  # noqa: BLE001 - whoever waits is told
            with self._lock:
                self._broken, self._alive = True, self._alive - 1
                waiting, self._jobs = list(self._jobs), deque()
            for job in waiting:
                job.future.set_exception(_Broken())
            return
        while (job := self._next()) is not None:
            if job.future.set_running_or_notify_cancel():
                try:
                    result = job.work()
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    job.future.set_exception(error)
                else:
                    job.future.set_result(result)
            with self._lock:
                if job.left:
                    self._left -= 1
                    return
            del job

    def _next(self) -> _Job | None:
        with self._lock:
            self._idle += 1
            while not self._jobs and not self._closed:
                self._lock.wait()
            self._idle -= 1
            if self._jobs:
                return self._jobs.popleft()
            self._alive -= 1
            self._lock.notify_all()
            return None


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
        self._pool = Threads(THREADS, "files", self._become)
        self.outside = Threads(1, "workspace")
        """One that stays what we are."""

    async def run(
        self, work: Callable[[], T], stop: Callable[[], object] | None = None, *, seconds: float | None = None
    ) -> T:
        """As `Threads.run`.

        Raises:
            BackendUnavailable: We are root, and may not become somebody else for files.
        """
        try:
            # A thread has the rights of the one that made it, so it is not one for files that makes this one.
            self.outside.submit(int)
            return await self._pool.run(work, stop, seconds=seconds)
        except _Broken:
            raise self._unable() from None

    def held(self, directory: str) -> int:
        """A directory, opened by a thread that may do all that we may; called in one of the others.

        Raises:
            OSError: It is gone, a symlink, or no directory.
        """
        return self.asked_outside(held, directory)

    def asked_outside(self, work: Callable[[A], T], about: A) -> T:
        """What `work` returns in a thread that stays what we are; called in one of the others."""
        return self.outside.submit(lambda: work(about)).result(CHECK_S)

    async def close(self) -> None:
        """Let what was begun come to its end, and end the threads."""
        await self._pool.close()
        await self.outside.close()

    def _become(self) -> None:
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


@functools.lru_cache(maxsize=8)
def checking(uid: int | None) -> FileThreads:
    """The threads of this process in which calls are looked at before anybody approved them, as user `uid`."""
    return FileThreads(uid, None, 0o077)


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


def at_the_end(owner: object, act: Callable[..., object], *args: object) -> weakref.finalize[[], Any]:
    """Have `act(*args)` called when `owner` has gone or the interpreter ends; not by a process that is forked from it.

    What a forked process has is a copy: what it names is still in use. Any thread may collect what has gone, one that
    handles files as another user too: `act` handles them as the process does.
    """
    pid = os.getpid()

    def acted() -> None:
        if os.getpid() == pid:
            with linux.own_file_identity():
                act(*args)

    return weakref.finalize(owner, acted)
