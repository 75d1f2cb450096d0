"""Starts keeper and supervisor from a worker, once even if several try at the same time. Blocks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

from shellback.exec.core.errors import SupervisorUnreachable
from shellback.exec.wire import descriptors, layout, linux

START_S: Final = 15.0
_START_LOCK: Final = "start.lock"
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_CODE: Final = (
    "import sys; sys.path.append({root!r}); from shellback.exec.supervisor.service.keeper import main; main()"
)


def folder(home: Path) -> int:
    """A descriptor of the supervisor's directory, made 0700 if missing.

    Raises SupervisorUnreachable if the state directory cannot be used, or is open to other users.
    """
    path = home / layout.SUPERVISOR
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _trusted(home, os.stat(home), 0o022)
        if layout.foreign(home):
            raise SupervisorUnreachable(layout.FOREIGN.format(home=home))
        path.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SupervisorUnreachable(f"the state directory {home} cannot be used: {error.strerror}") from error
    with descriptors.kept(fd):
        _trusted(path, os.fstat(fd), 0o077)
    return fd


def _trusted(path: Path, found: os.stat_result, others: int) -> None:
    if found.st_uid != os.geteuid():
        raise SupervisorUnreachable(
            f"{path} belongs to uid {found.st_uid}, not to {os.geteuid()}: run as its owner or set SHELLBACK_HOME"
        )
    if found.st_mode & others:
        raise SupervisorUnreachable(f"{path} is open to other users: run `chmod 700 {path}`, then repeat")


def connect(folder_fd: int) -> socket.socket:
    """Connect to the supervisor, whatever the length of the path; OSError if no process listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(5.0)
        connection.connect(f"/proc/self/fd/{folder_fd}/{layout.SOCKET}")
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def ensure(home: Path, folder_fd: int, crash_dir: str | None, idle_s: float) -> None:
    """Start a keeper unless there is one; returns when its supervisor listens, or may listen soon.

    Raises SupervisorUnreachable if they do not start.
    """
    with linux.opened(_START_LOCK, os.O_RDWR | os.O_CREAT, dir_fd=folder_fd) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            connect(folder_fd).close()
            return
        if kept(folder_fd):
            # The supervisor is being replaced, or both are about to end.
            time.sleep(0.01)
            return
        _spawn(home, crash_dir, idle_s)


def kept(folder_fd: int) -> bool:
    """Whether a keeper holds its lock; one in a container holds it on the same file."""
    try:
        with linux.opened(layout.KEEPER_LOCK, os.O_RDONLY, dir_fd=folder_fd) as fd:
            # Shared, so that two testers do not take each other for a keeper.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def become_service(home: Path, crash_dir: str | None) -> NoReturn:
    """Replace this process by the keeper of `home`, which runs until it is told to end. Raises what `folder` does."""
    os.close(folder(home))
    argv = service_argv(home, crash_dir)
    os.execve(argv[0], argv, {})  # noqa: S606 - no shell is wanted


def service_argv(home: Path, crash_dir: str | None = None, root: str = _ROOT) -> list[str]:
    """The argv that `become_service` executes; `root` is the directory of the package."""
    return [*_argv(home, crash_dir, 0.0, root), "--service"]


def _argv(home: Path, crash_dir: str | None, idle_s: float, root: str = _ROOT) -> list[str]:
    python = [sys.executable, "-I", "-S", "-E", "-c", _CODE.format(root=root)]
    words = [*python, str(home.resolve()), "--idle", str(idle_s)]
    return words if crash_dir is None else [*words, "--crash-dir", crash_dir]


def _spawn(home: Path, crash_dir: str | None, idle_s: float) -> None:
    with subprocess.Popen(
        _argv(home, crash_dir, idle_s),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={},
    ) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        first.wait()
        poller = select.poll()
        poller.register(first.stdout, select.POLLIN)
        said = os.read(first.stdout.fileno(), 100) if poller.poll(START_S * 1000) else b""
        if said.startswith((b"ready", b"busy")):
            return
        os.set_blocking(first.stderr.fileno(), False)
        why = (first.stderr.read() or b"")[-500:].decode("utf-8", "replace").strip()
    log = home / layout.SUPERVISOR / layout.DIARY
    raise SupervisorUnreachable(f"the supervisor did not start; {log} may say why. {why}".strip())
