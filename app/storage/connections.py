"""The connections of clients that live: each holds a file lock of this host, which ends with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOCK: Final = ".connection"


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of the clients of one state directory. A name is used once. Everything here blocks."""

    home: Path

    @property
    def _directory(self) -> Path:
        return self.home / "executors"

    def hold(self, name: str) -> int:
        """A descriptor; the connection `name` lives until it is given to `release`, or this process ends.

        Removes what connections left whose process was killed.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for path in self._directory.glob(f"*{_LOCK}"):
            with _free(path) as free:
                if free:
                    path.unlink(missing_ok=True)
        path = self._directory / f"{name}{_LOCK}"
        while True:
            held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)
            # Another one may have found the file free, and removed it, before it was locked.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(held)):
                    return held
            os.close(held)

    def release(self, name: str, held: int) -> None:
        """End the connection."""
        (self._directory / f"{name}{_LOCK}").unlink(missing_ok=True)
        os.close(held)

    def over(self, names: Iterable[str]) -> set[str]:
        """Those of the names whose connection is over, or never was one of this host."""
        found = set[str]()
        for name in names:
            with _free(self._directory / f"{name}{_LOCK}") as free:
                if free:
                    found.add(name)
        return found


@contextmanager
def _free(path: Path) -> Generator[bool]:
    """Whether nobody holds the lock of this file; it stays free until the end of the block."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
