"""Symlinks `<workspace>/.tmp/exec/<session_id>.log` to the logs, for people.

Commands can write the workspace, so no symlink in it is followed: each directory is opened through its parent's
descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.model import Session
from shellback.exec.wire import layout
from shellback.exec.wire.descriptors import closing

log = logging.getLogger(__name__)

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TMP: Final = ".tmp"
EXEC: Final = "exec"
LINK_S: Final = 0.02
_IGNORED: Final = ".gitignore"
_ALL: Final = b"*\n"


class LogLinks:
    """Links to the logs of one workspace; failures are logged only. Any thread may call it."""

    def __init__(self, workspace: Path, sessions: Path) -> None:
        self._workspace = workspace
        self.sessions = sessions
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None

    def forgotten(self, session_id: str) -> bool:
        """Whether a session has no files; if it has no row either, it was pruned."""
        return not (self.sessions / session_id).is_dir()

    def path(self, session_id: str) -> str:
        return f"{self._workspace}/{TMP}/{EXEC}/{session_id}.log"

    def add(self, session_id: str, *, separate_stderr: bool) -> None:
        """Make the links of a session; a repeat changes nothing."""
        names = [(f"{session_id}.log", layout.LOG)]
        if separate_stderr:
            names.append((f"{session_id}.err", layout.ERR))
        try:
            with self._lock:
                for name, target in names:
                    with contextlib.suppress(FileExistsError):
                        os.symlink(f"{self.sessions}/{session_id}/{target}", name, dir_fd=self._directory())
        except OSError as error:
            log.warning("no link to the log of session %s in the workspace: %s", session_id, error)

    def remove(self, session_id: str) -> None:
        with contextlib.suppress(OSError), self._lock:
            fd = self._directory()
            for name in (f"{session_id}.log", f"{session_id}.err"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)

    def close(self) -> None:
        """Close the directory; the next use opens it again."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _directory(self) -> int:
        if self._fd is not None and _identity(f"{self._workspace}/{TMP}/{EXEC}") != self._identity:
            # A command moved or removed the directory.
            self.close()
        if self._fd is None:
            with closing(os.open(self._workspace, _DIRECTORY)) as root, closing(_opened(root, TMP)) as tmp:
                _ignore_all(tmp)
                self._fd = _opened(tmp, EXEC)
                self._identity = _identity(self._fd)
        return self._fd


class KnownLinks(LogLinks):
    """Removes the links of a session from whichever of the workspaces has them; `workspaces` lists them anew."""

    def __init__(self, workspaces: Callable[[], Iterable[Path]], sessions: Path) -> None:
        super().__init__(sessions, sessions)
        self._workspaces = workspaces

    def remove(self, session_id: str) -> None:
        for workspace in self._workspaces():
            if os.path.lexists(f"{workspace}/{TMP}/{EXEC}/{session_id}.log"):
                links = LogLinks(workspace, self.sessions)
                links.remove(session_id)
                links.close()


class SoonLinked:
    """Makes links a moment later, in batches: one link takes 0.4 ms, longer than the rest of a short call."""

    def __init__(self, links: LogLinks, do_later: Callable[[Coroutine[Any, Any, Any]], None]) -> None:
        self._links = links
        self._do_later = do_later
        self._batch: list[Session] = []

    def add(self, session: Session) -> None:
        self._batch.append(session)
        if len(self._batch) == 1:
            asyncio.get_running_loop().call_later(LINK_S, self._link)

    def close(self) -> None:
        """Make the waiting links now, and close the directory."""
        self._add(self._taken())
        self._links.close()

    def _link(self) -> None:
        if batch := self._taken():
            self._do_later(asyncio.to_thread(self._add, batch))

    def _taken(self) -> list[Session]:
        batch, self._batch = self._batch, []
        return batch

    def _add(self, batch: list[Session]) -> None:
        for session in batch:
            self._links.add(session.id, separate_stderr=session.separate_stderr)


def _identity(directory: str | int) -> tuple[int, int] | None:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _opened(parent: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)


def _ignore_all(directory: int) -> None:
    """Have git ignore the directory. A command may ask git at any moment, so the file comes with its content."""
    with contextlib.suppress(FileExistsError):
        try:
            with closing(os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=directory)) as fd:
                os.write(fd, _ALL)
                os.link(f"/proc/self/fd/{fd}", _IGNORED, dst_dir_fd=directory)  # open(2), O_TMPFILE
        except FileExistsError:
            raise
        except OSError:  # a file system without it
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(_IGNORED, flags, 0o644, dir_fd=directory)) as fd:
                os.write(fd, _ALL)
