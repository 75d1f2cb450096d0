"""The lock of an executor id in a state directory. It ends with its process, whatever ends that."""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from pathlib import Path

from shellback.storage.errors import ExecutorTaken
from shellback.storage.host import boot_id


class ExecutorLock:
    """The executor id, held until `release`, which may be repeated, or the end of this process.

    `token` names this holding. `before` is the token of the last one, whose process has ended: its lock was free, on
    this boot and in this very file. It is empty if that cannot be known, as in a copy of a state directory.

    Raises:
        ExecutorTaken: Another process holds it; the message names its pid.
    """

    def __init__(self, name: str, home: Path) -> None:
        directory = home / "executors"
        directory.mkdir(mode=0o700, exist_ok=True)
        # Hashed, because an id may contain characters that a file name cannot.
        path = directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
        self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        pid, _, last = os.pread(self._descriptor, 200, 0).decode("ascii", "replace").strip().partition(" ")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ExecutorTaken(name, "this host", int(pid) if pid.isdecimal() else None) from None
        found = os.fstat(self._descriptor)
        here = f"{boot_id()}.{found.st_dev:x}.{found.st_ino:x}."
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
