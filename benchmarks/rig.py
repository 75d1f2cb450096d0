"""An engine with a supervisor of its own, in a temporary directory, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellback.exec.backends.host import HostBackend
from shellback.exec.core.base import Backend
from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.core.limits import LOG_BYTES, Limits
from shellback.exec.core.model import CallOrigin, Session
from shellback.exec.core.ports import SessionStore, SupervisorPort
from shellback.exec.core.runner import EXEC_UID
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.engine.waiting import Outcome
from shellback.exec.link.client import SupervisorClient
from shellback.exec.policy.commands import command_spec, proposal_for
from shellback.exec.policy.policy import Grant, grant_by_operator

UNLIMITED: Final = 1_000_000
SOON_S: Final = 30.0
CONVERSATION: Final = "bench"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Ground:
    """Directories of one benchmark; commands may write the workspace."""

    root: Path
    home: Path
    workspace: Path


def ground(directory: Path) -> Ground:
    """Make the directories; whoever gave `directory` removes them, all benchmarks being done.

    File systems are slow to reuse what was removed a moment ago, and the next benchmark would pay.
    """
    root = Path(tempfile.mkdtemp(dir=directory))
    made = Ground(root, root / "home", root / "workspace")
    made.home.mkdir(mode=0o700)
    made.workspace.mkdir()
    if os.geteuid() == 0:
        # Commands run as somebody else then, who has to get there.
        root.chmod(0o755)
        os.chown(made.workspace, EXEC_UID, EXEC_UID)
    return made


class Rig:
    """Runs commands through the engine, and the same argv without it."""

    def __init__(self, where: Ground, engine: Engine, client: SupervisorClient) -> None:
        self.where = where
        self.engine = engine
        self.client = client

    def _call(self, command: str, *, conversation: str = CONVERSATION, **more: Any) -> tuple[Grant, CallOrigin]:
        spec = command_spec(command=command, workspace=self.engine.workspace, limits=self.engine.limits, **more)
        number = next(_numbers)
        origin = CallOrigin(
            conversation_id=conversation,
            response_run_id=f"run-{number}-{os.getpid()}",
            response_timestamp="2026-01-02T03:04:05.000000+00:00",
            call_index=0,
            tool_call_id=f"call_{number}",
        )
        return grant_by_operator(proposal_for(spec, self.engine.backend), "benchmark"), origin

    async def run(self, command: str, **more: Any) -> Outcome:
        """A foreground command, to its end; a `conversation` has sandboxes of its own."""
        return await self.engine.run(*self._call(command, **more))

    async def launch(self, command: str, **more: Any) -> Session:
        """A background command."""
        return await self.engine.launch(*self._call(command, background=True, **more))

    async def alike(self, command: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        """What the engine executes for a command, and how, for `subprocess` and asyncio.

        The latter is directory, environment, user, own session.
        """
        grant, _ = self._call(command)
        plan = await self.engine.backend.plan(grant.spec, CONVERSATION)
        who: dict[str, Any] = {} if plan.uid is None else {"user": plan.uid, "group": plan.gid, "extra_groups": []}
        alike = {"cwd": plan.cwd, "env": plan.env, "start_new_session": True, "stdin": subprocess.DEVNULL, **who}
        return plan.argv, alike

    async def processes(self) -> tuple[int, int]:
        """Pids of supervisor and keeper."""
        info = await self.client.info()
        return info["pid"], info["keeper_pid"]


@contextlib.asynccontextmanager
async def rig(
    where: Ground,
    store: SessionStore | None = None,
    *,
    backend: Backend | None = None,
    port: SupervisorPort | None = None,
    log_bytes: int | None = None,
    host_id: str = "local",
) -> AsyncGenerator[Rig]:
    """A started engine; its commands, supervisor and keeper are gone at the end.

    `backend` is for the workspace of `where`, the host's without one; `port` reaches its supervisors, where that is not
    the host's alone; `log_bytes` 0 is no cap.
    """
    client = SupervisorClient(where.home, idle_s=600)
    engine = Engine(
        MemorySessionStore() if store is None else store,
        port or client,
        backend or HostBackend(where.workspace),
        home=where.home,
        host_id=host_id,
        limits=Limits(sessions=UNLIMITED, log_bytes=LOG_BYTES if log_bytes is None else log_bytes),
    )
    await engine.start()
    made = Rig(where, engine, client)
    try:
        yield made
    finally:
        await engine.stop()
        await leave(where.home)


async def leave(home: Path) -> None:
    """Have all commands, supervisor and keeper of a state directory end, and wait until they have."""
    client = SupervisorClient(home, spawn=False)
    watched: list[int] = []
    try:
        info = await client.connect()
        watched = [os.pidfd_open(pid) for pid in (info["pid"], info["keeper_pid"]) if pid]
        await _end_sessions(client)
        await client.stop()
    except SupervisorUnreachable:
        return
    finally:
        await client.close()
        for pidfd in watched:
            if not await asyncio.to_thread(_gone, pidfd, 10.0):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


async def _end_sessions(client: SupervisorClient) -> None:
    """End all that a supervisor runs, also what was being started just now."""
    until = time.monotonic() + SOON_S
    while running := (await client.list())[0]:
        if time.monotonic() > until:
            raise TimeoutError(f"{len(running)} processes do not end")
        for one in running:
            terminate(one["pid"], one["session_id"])
        await asyncio.sleep(0.05)


def _gone(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def terminate(pid: int | None, session_id: str) -> None:
    """SIGTERM to the process of a session, past the engine; checked to be the session's own."""
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if session_id.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        finally:
            os.close(pidfd)


class Gate:
    """A FIFO that a command waits at: whoever opens it lets the command end at a moment of his choice."""

    COMMAND: Final = "read -r _ < {name}"

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name
        self.command = self.COMMAND.format(name=name)
        os.mkfifo(self._path)
        self._path.chmod(0o644)
        self._fd = -1

    async def reached(self) -> None:
        """Wait until the command is at the gate."""
        until = time.monotonic() + SOON_S
        while self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads yet
                if time.monotonic() > until:
                    raise TimeoutError(f"no command has come to {self._path.name}") from None
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)

    def open(self) -> None:
        """Let it go."""
        os.write(self._fd, b"\n")

    def remove(self) -> None:
        """Clean up."""
        if self._fd >= 0:
            os.close(self._fd)
        self._path.unlink()
