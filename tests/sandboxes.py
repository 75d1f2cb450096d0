"""Sandboxes of a test's own, through a supervisor of its own: what runs in them, and what they leave."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.base import Plan
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import WORK
from shellback.exec.core.runner import found, make_workspace
from shellback.exec.link import launch
from shellback.exec.policy.commands import command_spec
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire.protocol import Message
from shellback.exec.wire.sandbox import Sandbox
from tests.databases import unless
from tests.supervisors import WHO, Rig, answered, end, until, words_of

FAKE = "fake-bwrap"
LINGER_S = 0.1
ADJUSTED = "import shellback.exec.supervisor.{module} as adjusted; {change}; "


@functools.cache
def refusal() -> str | None:
    """Why no sandbox can be made on this machine, None where they can."""
    bwrap = found("bwrap")
    if bwrap is None:
        return "bubblewrap is not installed"
    command = [bwrap, "--unshare-user", "--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, **WHO)
    return None if done.returncode == 0 else f"bubblewrap does not work here: {done.stderr.strip()}"


def program_needed(name: str) -> None:
    """Skip, or fail where nothing may be skipped, without a program that commands in a sandbox see."""
    unless(None if found(name) else f"{name} is not installed")


def needed() -> None:
    """Skip, or fail where nothing may be skipped, without bubblewrap."""
    unless(refusal())


def adjust(patch: pytest.MonkeyPatch, module: str, change: str) -> None:
    """Have supervisors that are started from now on make this `change` to a module of theirs, called `adjusted`."""
    begin, _, rest = launch._CODE.partition("from ")  # pyright: ignore[reportPrivateUsage]
    patch.setattr(launch, "_CODE", f"{begin}{ADJUSTED.format(module=module, change=change)}from {rest}")


def a_workspace() -> Path:
    """A directory that the user who runs commands may write, in one of its own; it is gone when this process ends."""
    # Not below tmp_path: pytest shuts its directories to others, again with every run that begins.
    base = Path(tempfile.mkdtemp(prefix="shellback-test-")).resolve()
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    base.chmod(0o755)
    writable(base / "ws")
    return base / "ws"


def writable(workspace: Path) -> None:
    """Make a directory that the user who runs commands may write."""
    make_workspace(workspace)
    if os.geteuid():
        workspace.chmod(0o2775)  # commands in a rootless container have the group alone


class Boxes(Rig):
    """A rig whose commands run in sandboxes."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.workspace = a_workspace()
        self.backend = BubblewrapBackend(self.workspace)
        self.backend.check()

    async def plan(self, scope: str = "talk", profile: str = WORK) -> Plan:
        made = command_spec(command=":", workspace=self.workspace, limits=Limits())
        return await self.backend.plan(replace(made, profile=profile), scope)

    async def planned(self, scope: str = "talk", **changes: Any) -> Sandbox:
        """The sandbox of a conversation, with changes."""
        plan = await self.plan(scope)
        assert plan.sandbox is not None
        return replace(plan.sandbox, **changes)

    async def start(self, name: str, *argv: str, scope: str = "talk", profile: str = WORK, **more: Any) -> Message:
        """As `Rig.start`, in the sandbox of this conversation and profile; `change` is laid over what was planned."""
        plan = await self.plan(scope, profile)
        assert plan.sandbox is not None
        fields: dict[str, Any] = {"cwd": plan.cwd, "uid": plan.uid, "gid": plan.gid, "sandbox": plan.sandbox, **more}
        return await super().start(name, *argv, **fields)

    def script(self, text: str) -> str:
        """A program that stands in for bubblewrap; `exec "$BWRAP"` in it goes on as the real one."""
        # In the workspace: it has to be seen in an instance.
        path = self.workspace / FAKE
        path.write_text(f"#!/bin/sh\nBWRAP={shutil.which('bwrap', path='/usr/bin:/bin')}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def marked(self) -> list[int]:
        """Processes that bear a marker of this state directory, first processes of namespaces among them."""
        place = os.stat(self.home)
        end = f"@{place.st_dev:x}.{place.st_ino:x}\0".encode()
        return [proc.pid for proc in procfs.snapshot() if proc.alive and end in _environ(proc.pid)]

    def proxies(self) -> list[int]:
        """The processes of this supervisor's proxies."""
        found = [(one.pid, words_of(one.pid)) for one in procfs.snapshot() if one.alive]
        return [
            pid
            for pid, words in found
            if any("exec.proxy.program" in word for word in words) and str(self.home) in words[-1]
        ]

    def first(self, name: str) -> int:
        """The first process of a command's PID namespace; blocks until it bears its mark."""
        for _ in range(2000):
            for pid in self.marked():
                if f"=init.{name}@".encode() in _environ(pid):
                    return pid
            time.sleep(0.01)
        raise AssertionError(f"{name} has no first process")

    def inside(self, first: int) -> list[int]:
        """Who lives in the PID namespace of a first process, that one apart."""
        place = namespace(first)
        living = [proc.pid for proc in procfs.snapshot() if proc.alive and proc.pid != first]
        return [pid for pid in living if namespace(pid) == place != ""]

    async def nothing_left(self) -> None:
        """Wait until neither process nor stub of any command is there."""
        await until(lambda: not self.marked() and {path.name for path in self.workspace.iterdir()} <= {FAKE})
        await answered(self._alone)

    async def _alone(self) -> bool:
        # Asked anew each time: a supervisor without a keeper makes room for a new pair.
        supervisor, keeper = await self.pids()
        return not _children(supervisor) and _children(keeper) == [supervisor]


def namespace(pid: int) -> str:
    """The PID namespace of a process, '' where there is no telling."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _environ(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    return b""


def _children(pid: int) -> list[int]:
    # A supervisor has its children under two threads.
    return [proc.pid for proc in procfs.snapshot() if proc.ppid == pid]


@contextlib.asynccontextmanager
async def boxes(tmp_path: Path, *, ahead_s: float = LINGER_S, **options: Any) -> AsyncGenerator[Boxes]:
    """Sandboxes that leave no process behind, and what they put into a workspace but for a moment."""
    needed()
    made = Boxes(tmp_path / "home", **options)
    with pytest.MonkeyPatch.context() as patch:
        adjust(patch, "sandbox.stubs", f"adjusted.LINGER_S = {LINGER_S}")
        adjust(patch, "sandbox.building", f"adjusted.IDLE_S = {ahead_s}")
        try:
            await made.client.connect()
            yield made
        finally:
            await made.finish()
            # Where a supervisor fails at what is tested, nobody else ends these.
            for pid in made.marked():
                with contextlib.suppress(ProcessLookupError):
                    await end(pid)


def adjusted(module: str, change: str) -> pytest.MarkDecorator:
    """For a test of `box`: have its supervisors make this change, as `adjust` says."""
    return pytest.mark.parametrize("box", [(module, change)], indirect=True, ids=["adjusted"])


@pytest.fixture
async def box(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Boxes]:
    if hasattr(request, "param"):
        adjust(monkeypatch, *request.param)
    async with boxes(tmp_path) as made:
        yield made
