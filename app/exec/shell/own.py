"""An engine of a shell's own: on a loop in a thread, over memory, with a state directory that goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shellback.exec.backends.private_homes import PrivateHomes
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import ExecError, SupervisorUnreachable
from shellback.exec.core.last_acts import at_the_end
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import EndedBy
from shellback.exec.core.ports import SupervisorPort
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.sessions import Sessions
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import remove_session

if TYPE_CHECKING:
    from shellback.exec.backends.containers import Containers

LOG_BYTES: Final = 16 * 1024 * 1024
KEPT: Final = 32
"""So many commands that have ended can still be asked for."""
_IDLE_S: Final = 5.0
"""How long a supervisor is there after whoever forgot to close the shell."""
_CLOSE_S: Final = 30.0
_GONE_S: Final = 10.0
_LAST_S: Final = 2.0
_LOOK_S: Final = 0.2


class Made(NamedTuple):
    """Where commands run, and what holds them."""

    backend: Backend
    supervisor: SupervisorPort
    containers: Containers | None = None


class Own:
    """Makes it all and ends it all. Where `close` is forgotten, the state goes with the object or the interpreter."""

    def __init__(self, make: Callable[[Path, SupervisorClient], Made]) -> None:
        self._state = Path(tempfile.mkdtemp(prefix="shellback-")).resolve()
        try:
            made = make(self._state, SupervisorClient(self._state, idle_s=_IDLE_S))
        except BaseException:
            self._state.rmdir()
            raise
        self._containers = made.containers
        self._store = MemorySessionStore()
        self.engine = Engine(
            self._store,
            made.supervisor,
            made.backend,
            home=self._state,
            limits=Limits(log_bytes=LOG_BYTES),
            links=Unlinked,
        )
        self._closing = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_serve, args=(self.loop,), name="shell", daemon=True)
        self._thread.start()
        self._rest = at_the_end(self, _forgotten, self.loop, self._state)
        self._pid = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is the process that made it, and not one that was forked from that."""
        return os.getpid() == self._pid

    def tidy(self) -> None:
        """Forget the oldest of what has ended."""
        for session in self._store.ended()[:-KEPT]:
            if remove_session(self.engine.links, session.id):
                self._store.forget(session.id)

    def close(self, calls: Callable[[], Sequence[Future[Any]]]) -> None:
        """End what runs, let `calls` return, wait until supervisor and thread have gone, remove the state.

        Repeating it changes nothing, and nor does a process that was forked from the one that made it.
        """
        if not self.here:
            return
        with self._closing:
            if not self._rest.alive:
                return
            try:
                until = time.monotonic() + _GONE_S
                while True:
                    asyncio.run_coroutine_threadsafe(self._end_sessions(), self.loop).result(_CLOSE_S)
                    # One that was about to start its command has started it by now.
                    if not wait(calls(), _LOOK_S).not_done or time.monotonic() > until:
                        break
                asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(_CLOSE_S)
            finally:
                self._rest()
                self._thread.join(_GONE_S)

    async def _end_sessions(self) -> None:
        sessions = Sessions(self.engine, None)
        for session in await self._store.list(live=True):
            with contextlib.suppress(ExecError):
                await sessions.end(session, by=EndedBy.SHUTDOWN)

    async def _end(self) -> None:
        if not self.engine.started:
            return
        if self._containers is not None:
            for home in self._containers.homes():
                with contextlib.suppress(ExecError):
                    await self._containers.remove(home.name)
        # First of all: who is still there when the supervisor goes starts another one.
        await self.engine.stop()
        await stop_host(self._state)


class Unlinked(LogLinks):
    """Nobody looks for logs in the workspace of such a shell, so it leaves nothing there."""

    def add(self, session_id: str, *, separate_stderr: bool) -> None:
        """Add none."""

    def remove(self, session_id: str) -> None:
        """There is none."""


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _forgotten(loop: asyncio.AbstractEventLoop, state: Path) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)
    until = time.monotonic() + _LAST_S
    PrivateHomes(state, uid=os.geteuid()).close()
    shutil.rmtree(state, ignore_errors=True)
    # Where nobody closed it, a supervisor may write there once more before it sees that its directory has gone.
    while state.exists() and time.monotonic() < until:
        time.sleep(0.02)
        shutil.rmtree(state, ignore_errors=True)


async def stop_host(state: Path) -> None:
    """Have the supervisor of this machine end, if there is one, and wait for that: it writes where we remove."""
    client = SupervisorClient(state, spawn=False)
    try:
        info = await client.connect()
        await client.stop()
    except SupervisorUnreachable:
        return
    finally:
        await client.close()
    for pid in (info["pid"], info["keeper_pid"]):
        if pid:
            await asyncio.to_thread(gone, pid)


def gone(pid: int) -> None:
    """Wait until a process of ours has ended, 10 s at most. Blocks."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(_GONE_S * 1000)
        finally:
            os.close(fd)
