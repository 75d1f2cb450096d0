"""Threads that access files as the user of commands, so the kernel checks permissions; finalizers; the end of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
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
"""Seconds for the inspection before an approval; after that the call is refused."""
LEFT_MOST: Final = 32
"""The most abandoned threads that still hang; with so many, no new work begins."""
_OVER_FILES: Final = 0x1F | 1 << 9 | 1 << 27 | 1 << 32
"""CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD and MAC_OVERRIDE."""

A = TypeVar("A")
T = TypeVar("T")


class _Broken(Exception):
    """Raised when a thread could not be prepared."""


@dataclass(slots=True, eq=False)
class _Job:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future[Any])
    left: bool = False


class Threads:
    """At most `most` threads, made on demand; `begin` prepares each.

    They keep no process alive. A thread whose job is over its time is abandoned and replaced, so that a hanging system
    call delays no other job.
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
        """Run `work` in one of the threads; RuntimeError if they are closed."""
        return self._submit(work).future

    async def run(
        self, work: Callable[[], T], stop: Callable[[], object] | None = None, *, seconds: float | None = None
    ) -> T:
        """Run `work` and return its result or raise its exception.

        If cancelled before a thread is free, the work does not begin; later, `stop` is called, the work is waited for,
        and its result is lost. Work with `seconds` must only read: it is abandoned after that time.

        Raises:
            CheckTimedOut: It took longer than `seconds`.
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
        """Wait at most `seconds` for running jobs, and end the threads."""
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
        except BaseException:  # noqa: BLE001 - the waiting caller gets it
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
                except BaseException as error:  # noqa: BLE001 - raised in the waiting caller
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
    """At most `THREADS` threads, made on demand; `uid` and `gid` None is the default user of commands.

    If we are not root, the threads keep our user, and `identity` is None.
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
        """A thread that keeps our user."""

    async def run(
        self, work: Callable[[], T], stop: Callable[[], object] | None = None, *, seconds: float | None = None
    ) -> T:
        """`Threads.run`; BackendUnavailable if we are root and cannot change the user of a thread."""
        try:
            # A thread inherits the rights of its maker, so a thread for files must not make this one.
            self.outside.submit(int)
            return await self._pool.run(work, stop, seconds=seconds)
        except _Broken:
            raise self._unable() from None

    def held(self, directory: str) -> int:
        """A directory, opened by a thread with our own rights; call it in one of the other threads.

        Raises:
            OSError: The directory is gone, a symlink, or no directory.
        """
        return self.asked_outside(held, directory)

    def asked_outside(self, work: Callable[[A], T], about: A) -> T:
        """The result of `work` in a thread with our own rights; call it in one of the other threads."""
        return self.outside.submit(lambda: work(about)).result(CHECK_S)

    async def close(self) -> None:
        """Wait for running jobs, and end the threads."""
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
    """The threads of this process that inspect the files of unapproved calls, as user `uid`."""
    return FileThreads(uid, None, 0o077)


async def settled(job: Future[T], stop: Callable[[], object] | None = None) -> T:
    """The result of `job`; if cancelled, the job is withdrawn, or stopped and waited for."""
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
    """Call `act(*args)` when `owner` is collected or the interpreter ends, but not in a forked process.

    A forked process has a copy, and the original is still in use. Any thread may collect the owner, also a thread with
    another user for files; `act` runs with the rights of the process.
    """
    pid = os.getpid()

    def acted() -> None:
        if os.getpid() == pid:
            with linux.own_file_identity():
                act(*args)

    return weakref.finalize(owner, acted)


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end, whatever it is."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
