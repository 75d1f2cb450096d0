"""A supervisor of a test's own: started on demand, its exits collected, gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import select
import shutil
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import ExitRecord, Message, StartRequest

T = TypeVar("T")
BOOT = linux.boot_id()
UID = 65534 if os.geteuid() == 0 else None
WHO: dict[str, Any] = {} if UID is None else {"user": UID, "group": UID, "extra_groups": []}
"""How `subprocess` runs a program as the user who runs commands."""
SOON = 60.0
CALLS = re.compile(r"\breach\((.*)\)")


@functools.cache
def crash_points() -> list[str]:
    """Every crash point that the code reaches, in alphabetical order."""
    app = Path(__file__).resolve().parents[1] / "app"
    calls = [call for path in app.rglob("*.py") for call in CALLS.findall(path.read_text(encoding="utf-8"))]
    return sorted({point for call in calls for point in re.findall(r'"([a-z_]+\.[a-z_]+)"', call)})


def arm(folder: Path, point: str, orders: str) -> None:
    """Have whoever reaches a crash point first carry out these orders. One that nobody reaches would test nothing."""
    assert point in crash_points() or point.startswith("podman."), "nobody reaches it"
    (folder / point).write_text(orders)


class Rig:
    """A client and what it was told."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.home = home
        self.crash = home / "crash"
        self.crash.mkdir(parents=True)
        self.told: list[ExitRecord] = []
        self._waiting: dict[str, asyncio.Future[ExitRecord]] = {}
        self._pairs: dict[int, int] = {}
        self.options: dict[str, Any] = {"crash_dir": str(self.crash), "idle_s": 3.0, **options}
        self.client = self.another()

    def another(self) -> SupervisorClient:
        """A client as after the restart of a worker."""
        return SupervisorClient(self.home, on_exit=self._exited, **self.options)

    def _exited(self, record: ExitRecord) -> None:
        self.told.append(record)
        name = record["session_id"]
        future = self._waiting.setdefault(name, asyncio.get_running_loop().create_future())
        if not future.done():
            future.set_result(record)

    async def start(self, name: str, *argv: str, **more: Any) -> Message:
        """Start argv, or with one word a script for sh."""
        words = ("/bin/sh", "-c", argv[0]) if len(argv) == 1 else argv
        fields: dict[str, Any] = {
            "session_id": name, "argv": words, "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "boot_id": BOOT,
            "uid": UID, **more,
        }  # fmt: skip
        return await self.client.start(StartRequest(**fields))

    async def exit(self, name: str, within: float = SOON) -> ExitRecord:
        """The exit record of a session, once it is told."""
        future = self._waiting.setdefault(name, asyncio.get_running_loop().create_future())
        return await asyncio.wait_for(asyncio.shield(future), within)

    def forget(self) -> None:
        """Forget what was told, to hear what a later supervisor tells."""
        self.told.clear()
        self._waiting.clear()

    async def exit_after_connect(self, name: str) -> ExitRecord:
        await self.client.connect()
        return await self.exit(name)

    async def run(self, name: str, *argv: str, **more: Any) -> ExitRecord:
        await self.start(name, *argv, **more)
        return await self.exit(name)

    def log(self, name: str, file: str = layout.LOG) -> bytes:
        return (self.folder(name) / file).read_bytes()

    def folder(self, name: str) -> Path:
        return self.home / layout.SESSIONS / name

    async def until_log(self, name: str, text: bytes) -> None:
        """Wait until the log has `text`: the command says when it is ready."""
        await until(lambda: text in self.log(name))

    async def live(self) -> list[str]:
        return [row["session_id"] for row in (await self.client.list())[0]]

    async def pids(self) -> tuple[int, int]:
        """Supervisor and keeper."""
        info = await self.client.info()
        return info["pid"], info["keeper_pid"]

    async def kill_supervisor(self, number: int = signal.SIGKILL) -> int:
        """End the supervisor and wait until it has gone; returns its pid."""
        pid, _ = await self.pids()
        await end(pid, number)
        return pid

    def arm(self, point: str, orders: str = "kill self") -> None:
        arm(self.crash, point, orders)

    async def finish(self) -> None:
        """Kill what still runs, and see both processes end."""
        with contextlib.suppress(Exception):
            info = await self.client.info()
            await asyncio.gather(
                *(self.client.kill(name, grace_s=0, ended_by="shutdown") for name in await self.live())
            )
            fds = [os.pidfd_open(pid) for pid in (info["pid"], info["keeper_pid"]) if pid]
            await self.client.stop()
            await self.client.close()
            for fd in fds:
                if not await asyncio.to_thread(_gone, fd, 5.0):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)
        await self.client.close()


def failure(answer: Message) -> int | None:
    """The errno of a start that failed."""
    assert answer["outcome"] == "start_failed"
    assert (answer["record"]["pid"], answer["record"]["exit_code"]) == (None, None)
    return answer["record"]["errno"]


def assert_kept(data: bytes, whole: bytes, rows: list[dict[str, int]]) -> None:
    """Outside of the holes every byte is right; the newlines of each hole are as many as there were."""
    assert len(data) == len(whole)
    at = 0
    for row in rows:
        assert data[at : row["start"]] == whole[at : row["start"]]
        assert whole[row["start"] : row["end"]].count(b"\n") == row["newlines"]
        at = row["end"]
    assert data[at:] == whole[at:]


def score(pid: int) -> int:
    """How soon the kernel ends a process where memory is short."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


async def until(true: Callable[[], object]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(SOON):
        while not true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.005)


async def answered(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], object] = bool) -> T:
    """Ask until the answer is as wanted; returns it."""
    async with asyncio.timeout(SOON):
        while not wanted(answer := await ask()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return answer


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process of ours."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)


async def end(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process of ours and wait until it has gone."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, number)
        assert await asyncio.to_thread(_gone, fd, SOON)
    finally:
        os.close(fd)


async def stop(pid: int) -> None:
    """Stop a process of ours, and wait until it does nothing more."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: state_of(pid) == "T")


def state_of(pid: int) -> str:
    """What a process does, in the kernel's letter; '' when there is none."""
    found = procfs.read(pid)
    return found.state if found else ""


def removed(home: Path) -> bool:
    """Remove a state directory; False where its supervisor put something there at the same time."""
    shutil.rmtree(home, ignore_errors=True)
    return not home.exists()


async def gone(pid: int) -> bool:
    """Whether a process ends soon; one that is not there has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return await asyncio.to_thread(_gone, fd, SOON)
    finally:
        os.close(fd)


def _gone(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@contextlib.asynccontextmanager
async def rig(tmp_path: Path, **options: Any) -> AsyncGenerator[Rig]:
    """A rig that is connected, and leaves no process behind."""
    made = Rig(tmp_path / "home", **options)
    try:
        await made.client.connect()
        yield made
    finally:
        await made.finish()


@pytest.fixture
async def sup(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with rig(tmp_path) as made:
        yield made
