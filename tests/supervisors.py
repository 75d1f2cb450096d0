"""A supervisor of a test's own: started on demand, in its own namespace too, its exits collected, gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import pytest

from shellback.exec.link import launch
from shellback.exec.link.client import SupervisorClient
from shellback.exec.supervisor.process import procfs
from shellback.exec.wire import layout, linux
from shellback.exec.wire.protocol import ExitRecord, Message, StartRequest
from tests.databases import unavailable

T = TypeVar("T")
BOOT = linux.boot_id()
UID = 65534 if os.geteuid() == 0 else None
WHO: dict[str, Any] = {} if UID is None else {"user": UID, "group": UID, "extra_groups": []}
"""How `subprocess` runs a program as the user who runs commands."""
SOON = 60.0
UNSHARE: Final = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-Urm")
_MOUNTED: Final = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
_python: Final = ctypes.PyDLL(None, use_errno=True)
CALLS = re.compile(r"\breach\((.*)\)")


@functools.cache
def crash_points() -> list[str]:
    """Every crash point that the code reaches, in alphabetical order."""
    app = Path(__file__).resolve().parents[1] / "app"
    calls = [call for path in app.rglob("*.py") for call in CALLS.findall(path.read_text(encoding="utf-8"))]
    return sorted({point for call in calls for point in re.findall(r'"([a-z_]+\.[a-z_]+)"', call)})


def arm(folder: Path, point: str, orders: str) -> None:
    """Have whoever reaches a crash point first carry out these orders. One that nobody reaches would test nothing."""
    assert point in crash_points() or point.startswith(("podman.", "client.", "connections.")), "nobody reaches it"
    aside = folder / f".{point}"
    aside.write_text(orders)
    aside.rename(folder / point)  # whoever reaches it meanwhile reads these orders or the ones before


class Rig:
    """A client and what it was told."""

    def __init__(self, home: Path, *, lent: bool = False, **options: Any) -> None:
        """With `lent` the state directory is somebody else's, and nothing is put there."""
        self.home = home
        self.boot_id = BOOT
        self.crash = home / "crash"
        if not lent:
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

    async def start(self, name: str, *argv: str, shows: bytes = b"", **more: Any) -> Message:
        """Start argv, or with one word a script for sh, and wait until its log `shows` this."""
        words = ("/bin/sh", "-c", argv[0]) if len(argv) == 1 else argv
        fields: dict[str, Any] = {
            "session_id": name, "argv": words, "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/",
            "boot_id": self.boot_id, "uid": UID, **more,
        }  # fmt: skip
        answer = await self.client.start(StartRequest(**fields))
        if shows:
            await self.until_log(name, shows)
        return answer

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


def run_to_end(
    *argv: str | Path, timeout: float = SOON, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program; its exit code and what it printed, as text."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=check, **more)


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and see it end by that."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that fails, in place of one of the code, whatever it is called with."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise error

    return fails


def returning(value: object) -> Callable[..., Any]:
    """A function that does nothing and returns this, in place of one of the code, whatever it is called with."""

    def returns(*_: object, **__: object) -> object:
        return value

    return returns


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


def fork() -> int:
    """As `os.fork`, without what libraries hook into that: an exporter of traces begins a thread in each child."""
    pid: int = _python.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "fork")
    return pid


def words_of(pid: int) -> list[str]:
    """The command line of a process, none of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    return []


def sleepers(seconds: str) -> list[int]:
    """Pids of the processes that were told to sleep so long."""
    told = [(proc.pid, words_of(proc.pid)) for proc in procfs.snapshot()]
    return [pid for pid, words in told if words and words[0].endswith("sleep") and seconds in words]


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


class SmallRig(Rig):
    """A rig whose supervisor sees a small file system where we see an empty directory."""

    def __init__(self, keeper: int, home: Path, mount: Path) -> None:
        self.keeper = keeper
        self.mount = Path(f"/proc/{keeper}/root{mount}")
        self._inside = mount
        super().__init__(Path(f"/proc/{keeper}/root{home}"), spawn=False, wait_s=10.0)

    def fill(self) -> None:
        """Take all the room there is."""
        filler = os.open(self.mount / "filler", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        os.write(filler, b"x" * size)
                except OSError:
                    continue
        finally:
            os.close(filler)

    def take_inodes(self) -> None:
        """Make files until there can be no more."""
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.mount / f"inode{number}").touch()

    def make_room(self) -> None:
        (self.mount / "filler").unlink()

    def remount(self, how: str) -> None:
        """Mount it anew as `ro` or `rw`."""
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        within = ["nsenter", "-t", str(self.keeper), "-m", *user]
        subprocess.run([*within, "mount", "-o", f"remount,{how}", self._inside], check=True, capture_output=True)


@contextlib.asynccontextmanager
async def small_rig(tmp_path: Path, *, size: str = "2m", below: str = "") -> AsyncGenerator[SmallRig]:
    """A supervisor whose home, or what is `below` it, is a file system of `size` that only its processes see."""
    require_namespaces()
    home = tmp_path / "home"
    mount = home / below
    mount.mkdir(parents=True, mode=0o700)
    argv = [*UNSHARE, "sh", "-c", _MOUNTED, "sh", f"size={size},mode=700", str(mount), *launch.service_argv(home)]
    with tempfile.TemporaryFile() as said:
        keeper = subprocess.Popen(argv, stderr=said, env={"PATH": os.defpath})  # noqa: ASYNC220 - returns at once
        try:
            await until(lambda: b"ready" in os.pread(said.fileno(), 1000, 0) or keeper.poll() is not None)
            assert keeper.poll() is None, os.pread(said.fileno(), 1000, 0)
            rig = SmallRig(keeper.pid, home, mount)
            try:
                await rig.client.connect()
                yield rig
            finally:
                await rig.client.close()
        finally:
            keeper.terminate()
            if not await gone(keeper.pid):
                keeper.kill()
            keeper.wait()


def require_namespaces() -> None:
    """Skip where nobody may mount anything for itself alone."""
    with tempfile.TemporaryDirectory() as empty:
        tried = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", empty], capture_output=True, check=False)
    if tried.returncode:
        unavailable(f"no namespace of its own for a supervisor: {tried.stderr.decode(errors='replace').strip()}")
