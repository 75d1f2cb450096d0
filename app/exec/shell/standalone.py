"""Stand-alone shells: each has its own engine, supervisor and private state directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.docker import Docker, DockerBackend
from shellback.exec.backends.host import HostBackend
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.private_homes import PrivateHomes
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import ExecError, SupervisorUnreachable
from shellback.exec.core.limits import FOREGROUND_TIMEOUT_S, Limits
from shellback.exec.core.model import EndedBy
from shellback.exec.core.ports import SupervisorPort, WorkspaceStore
from shellback.exec.core.threads import at_the_end
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.sessions import Sessions
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import remove_session
from shellback.exec.shell.async_shell import OUTPUT_BYTES, AsyncShell
from shellback.exec.shell.facade import SyncShell
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.words import DEFAULT_BLOCKED, CommandValidator
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.hosts import Hosts


class Made(NamedTuple):
    """A backend, its supervisor and its containers."""

    backend: Backend
    supervisor: SupervisorPort
    containers: Containers | None = None


class Standalone(SyncShell):
    """Base of the stand-alone shells. Its maker acts as the operator: everything runs except the default denials.

    Nothing starts before the first command. Any number of threads may use it. Processes that a command leaves behind
    live until `close`. `allowed_commands` are the only programs that may be named, `blocked_commands` is forbidden
    text; `env_names` may be set although their names are refused otherwise; `allowed_paths` are further directories
    in which a command of `HostShell` may begin; `place` has options of the backend.
    """

    _make: Callable[..., Made]
    """Called with root, state directory, host supervisor and `place`."""
    _elsewhere = False
    """Whether commands may begin outside of `root`."""

    def __init__(
        self,
        root: str | Path,
        allowed_commands: Collection[str] | None = None,
        blocked_commands: Collection[str] = DEFAULT_BLOCKED,
        *,
        allowed_paths: Sequence[str | Path] = (),
        env_names: Collection[str] = (),
        default_timeout: float = FOREGROUND_TIMEOUT_S,
        max_output_bytes: int = OUTPUT_BYTES,
        **place: Any,
    ) -> None:
        if allowed_paths and not self._elsewhere:
            raise TypeError(f"{type(self).__name__} takes no allowed_paths: its commands reach `root` only")
        self._own = own = Own(lambda state, host: self._make(root, state, host, **place))
        super().__init__(
            AsyncShell(
                own.engine,
                ByOperator(own.engine),
                default_timeout=default_timeout,
                max_output_bytes=max_output_bytes,
                validator=CommandValidator(blocked_patterns=blocked_commands, allowed_commands=allowed_commands),
                env_names=env_names,
                allowed_paths=allowed_paths,
                tidy=own.tidy,
            ),
            own.loop,
        )

    def close(self) -> None:
        """Kill everything, wait for the end of the supervisor, remove the state. Idempotent.

        Waiting calls of other threads return; no new call begins. In a forked process it does nothing.
        """
        if self._own.here:
            self.leave()
        self._own.close(lambda: [*self._calls])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _on_host(root: str | Path, state: Path, host: SupervisorClient) -> Made:
    return Made(HostBackend(root, state=state), host)


def _in_bubblewrap(
    root: str | Path, state: Path, host: SupervisorClient, *, network: bool | Sequence[str] = False
) -> Made:
    allowed = network if isinstance(network, bool) else Hosts(network)
    return Made(BubblewrapBackend(root, network=allowed, hidden=[state]), host)


def in_container(
    kind: type[ContainerBackend],
    engine: Callable[[], ContainerEngine],
    root: str | Path,
    state: Path,
    host: SupervisorClient,
    *,
    log: WorkspaceStore | None = None,
    **options: Any,
) -> Made:
    """A container backend whose containers are removed with its state; `options` of the backend, as the image."""
    containers = Containers(state / "containers", engine(), log=log)
    backend = kind(root, containers, hidden=[state], **options)
    return Made(backend, Supervisors(host, state, containers=containers, host_needed=False), containers)


class HostShell(Standalone):
    """Commands as plain processes of this machine, without a sandbox: for trusted input only.

    If we are root, they run as an unprivileged user, who must be able to write `root`.
    """

    _make = staticmethod(_on_host)
    _elsewhere = True


class BubblewrapShell(Standalone):
    """Commands in bubblewrap: they write `root`, and see only the parts of the host that programs need.

    `network=True` gives them the host's network; a list, as in `["example.org", "*.example.net:443"]`, these hosts
    only. /tmp is private, and a command may begin there.
    """

    _make = staticmethod(_in_bubblewrap)


class PodmanShell(Standalone):
    """Commands in a podman container, where `root` is /workspace; without network unless `network=True`.

    `image` must be present; nothing is downloaded. `close` removes the container.
    """

    _make = staticmethod(partial(in_container, PodmanBackend, Podman))


class DockerShell(Standalone):
    """The same in a docker container, by docker's default socket; root only."""

    _make = staticmethod(partial(in_container, DockerBackend, Docker))


LOG_BYTES: Final = 16 * 1024 * 1024
KEPT: Final = 32
"""Ended commands that are kept."""
_IDLE_S: Final = 5.0
"""Seconds after which a supervisor without clients ends, if `close` was forgotten."""
_CLOSE_S: Final = 30.0
_GONE_S: Final = 10.0
_LAST_S: Final = 2.0
_LOOK_S: Final = 0.2


class Own:
    """Engine, loop and state of one shell. Without `close` the state is removed with the object or the interpreter."""

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
        """False in a forked process."""
        return os.getpid() == self._pid

    def tidy(self) -> None:
        """Forget the oldest ended sessions."""
        for session in self._store.ended()[:-KEPT]:
            if remove_session(self.engine.links, session.id):
                self._store.forget(session.id)

    def close(self, calls: Callable[[], Sequence[Future[Any]]]) -> None:
        """Kill what runs, let `calls` return, wait for supervisor and thread, remove the state."""
        if not self.here:
            return
        with self._closing:
            if not self._rest.alive:
                return
            try:
                until = time.monotonic() + _GONE_S
                while True:
                    asyncio.run_coroutine_threadsafe(end_sessions(self.engine), self.loop).result(_CLOSE_S)
                    # A call that was about to start its command has started it by now.
                    if not wait(calls(), _LOOK_S).not_done or time.monotonic() > until:
                        break
                asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(_CLOSE_S)
            finally:
                self._rest()
                self._thread.join(_GONE_S)

    async def _end(self) -> None:
        if not self.engine.started:
            return
        if self._containers is not None:
            for home in self._containers.homes():
                with contextlib.suppress(ExecError):
                    await self._containers.remove(home.name)
        await stop_with_host(self.engine, self._state)


class Unlinked(LogLinks):
    """No links to logs: a stand-alone shell leaves nothing in its workspace."""

    def add(self, session_id: str, *, separate_stderr: bool) -> None:
        """Do nothing."""

    def remove(self, session_id: str) -> None:
        """Do nothing."""


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
    # Without `close` a supervisor may write once more before it notices that its directory is gone.
    while state.exists() and time.monotonic() < until:
        time.sleep(0.02)
        shutil.rmtree(state, ignore_errors=True)


async def end_sessions(engine: Engine) -> None:
    """Kill all live sessions."""
    sessions = Sessions(engine, None)
    for session in await engine.store.list(live=True):
        with contextlib.suppress(ExecError):
            await sessions.end(session, by=EndedBy.SHUTDOWN)


async def stop_with_host(engine: Engine, state: Path) -> None:
    """Stop an engine, then its host supervisor, and wait for its end, because it writes into `state`.

    The engine stops first, because it would restart the supervisor.
    """
    await engine.stop()
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
    """Wait for the end of a process, at most 10 s. Blocks."""
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(pid)) as fd:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(_GONE_S * 1000)
