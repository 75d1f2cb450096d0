"""The lock of an executor id in a state directory. It ends with its process, whatever ends that."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import uuid
from pathlib import Path
from typing import Final

from shellback.storage.errors import ExecutorTaken
from shellback.storage.host import boot_id

_LOOKS_S: Final = (0.0, 0.001, 0.01, 0.1)


class ExecutorLock:
    """The executor id, held until `release`, which may be repeated, or the end of this process.

    `token` names this holding. `before` is the token of the last one, whose process has ended: its lock was free, on
    this boot and in this very file. It is empty if that cannot be known, as in a copy of a state directory.

    Raises:
        ExecutorTaken: Another process holds it; the message names its pid.
    """

    def __init__(self, name: str, home: Path) -> None:
        path = _path(home, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        pid, last = _holder(self._descriptor)
        if not _locked(self._descriptor):
            self.release()
            raise ExecutorTaken(name, "this host", int(pid) if pid.isdecimal() else None)
        here = _here(self._descriptor)
        self.before = last if last.startswith(here) else ""
        self.token = f"{here}{uuid.uuid4().hex}"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()} {self.token}\n".encode(), 0)

    def release(self) -> None:
        """Let others hold it."""
        # The file stays: after an unlink two processes could lock two files of one name.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def has_ended(home: Path, name: str, token: str) -> bool:
    """Whether the process that held `name` as `token` has ended, in whatever PID namespace of this machine it ran.

    False if that cannot be known: of another boot, of a copy of the state directory, or if its file was replaced.
    """
    try:
        descriptor = os.open(_path(home, name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that those who look do not keep each other from it; refused while its process lives.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _holder(descriptor)[1] == token and token.startswith(_here(descriptor))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _path(home: Path, name: str) -> Path:
    # Hashed, because an id may contain characters that a file name cannot.
    return home / "executors" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"


def _holder(descriptor: int) -> tuple[str, str]:
    """The pid and token of who holds it, or held it last."""
    pid, _, token = os.pread(descriptor, 200, 0).decode("ascii", "replace").strip().partition(" ")
    return pid, token


def _here(descriptor: int) -> str:
    """What tokens of this boot and this very file begin with."""
    found = os.fstat(descriptor)
    return f"{boot_id()}.{found.st_dev:x}.{found.st_ino:x}."


def _locked(descriptor: int) -> bool:
    # `has_ended` holds it for microseconds, and must not keep a worker from its name.
    for wait_s in _LOOKS_S:
        time.sleep(wait_s)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False
