"""The small JSON files of sessions, and their directory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from typing import Any, Final, cast

from shellback.exec.wire import layout, linux, protocol
from shellback.exec.wire.descriptors import closing
from shellback.exec.wire.protocol import ExitRecord, Message

MAX_BYTES: Final = 1 << 20
ABANDONED: Final = b"abandoned\n"
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})
"""Errors of the kernel if a symlink, a pipe or a directory has the name of one of our files."""


class Unreadable(ValueError):
    """Raised for a file that exists and was not written by us in this form."""


class Records:
    """The `sessions` directory, accessed through its descriptor."""

    def __init__(self, home: str) -> None:
        path = os.path.join(home, layout.SESSIONS)
        os.makedirs(path, mode=0o700, exist_ok=True)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def gone(self) -> bool:
        """Whether the directory was removed; then no file can be made in it."""
        return os.fstat(self.fd).st_nlink == 0

    def claim(self, session_id: str, content: bytes) -> int | None:
        """Create the session's `started` file; its descriptor, or None if it exists already."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(session_id, 0o700, dir_fd=self.fd)
        try:
            fd = os.open(
                f"{session_id}/{layout.STARTED}",
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                0o600,
                dir_fd=self.fd,
            )
        except FileExistsError:
            return None
        try:
            linux.write_all(fd, content)
        except BaseException:
            # No process was started, so the start may be requested again.
            os.close(fd)
            self.remove(session_id, layout.STARTED)
            raise
        return fd

    def running(self, session_id: str) -> Message | None:
        """The record of the session's process, as it changed last; None if there is none or all are damaged."""
        with contextlib.suppress(Unreadable):
            changed = protocol.running(self.read(session_id, layout.RUNNING))
            if changed is not None:
                return changed
        with contextlib.suppress(Unreadable):
            _, _, line = (self.claimed_by(session_id) or b"").partition(b"\n")
            return protocol.running(_object(line, layout.STARTED))
        return None

    def ended(self, session_id: str, name: str) -> ExitRecord | None:
        """The exit record in a file, or None; raises Unreadable if it is damaged or another session's."""
        value = self.read(session_id, name)
        record = protocol.exit_record(value, session_id)
        if value is not None and record is None:
            raise Unreadable(name)
        return record

    def claimed_by(self, session_id: str) -> bytes | None:
        """Content of the `started` file, or None; raises Unreadable if it is not a file."""
        return self._read(f"{session_id}/{layout.STARTED}")

    def standing(self, session_id: str, *names: str) -> Message | None:
        """The status by the exit records in the files `names`, else by the claim; None if it is claimed without an end.

        Raises:
            Unreadable: A record or the claim is damaged.
        """
        for name in names:
            record = self.ended(session_id, name)
            if record is not None:
                return {"state": record["state"], "record": record, "acknowledged": name == layout.ACKED}
        claim = self.claimed_by(session_id)
        return {"state": "unknown"} if claim is None else {"state": "abandoned"} if claim == ABANDONED else None

    def made_at(self, session_id: str) -> float:
        """Modification time of the `started` file."""
        return os.stat(f"{session_id}/{layout.STARTED}", dir_fd=self.fd).st_mtime

    def write(self, session_id: str, name: str, value: Message | list[Any]) -> None:
        """Replace a file atomically."""
        self.write_aside(session_id, name, value)
        self.rename(session_id, name + ".new", name)

    def write_aside(self, session_id: str, name: str, value: Message | list[Any]) -> None:
        try:
            fd = self._create(f"{session_id}/{name}.new")
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            self.keep_aside(session_id, f"{name}.new")
            fd = self._create(f"{session_id}/{name}.new")
        with closing(fd):
            linux.write_all(fd, json.dumps(value, separators=(",", ":")).encode())

    def _create(self, path: str) -> int:
        # Without O_NONBLOCK, a pipe without a reader would block us forever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags, 0o600, dir_fd=self.fd)

    def read(self, session_id: str, name: str) -> Message | None:
        """The object in a file, or None; raises Unreadable if it is damaged."""
        data = self._read(f"{session_id}/{name}")
        return None if data is None else _object(data, name)

    def read_list(self, session_id: str, name: str) -> list[Message]:
        """The objects in a file that holds a list; [] if it is missing or damaged."""
        try:
            data = self._read(f"{session_id}/{name}")
            value: object = json.loads(data) if data else []
        except (ValueError, RecursionError):
            return []
        rows = cast("list[object]", value) if isinstance(value, list) else []
        return [cast("Message", row) for row in rows if isinstance(row, dict)]

    def _read(self, path: str) -> bytes | None:
        try:
            with linux.opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd) as fd:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
                    raise Unreadable(path)
                return os.read(fd, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_FILE:
                raise Unreadable(path) from error
            raise

    def keep_aside(self, session_id: str, name: str) -> None:
        """Rename what stands in a file's place to `<name>.bad`, for inspection."""
        try:
            self.rename(session_id, name, f"{name}.bad")
        except OSError as error:
            if error.errno not in {*_NO_FILE, errno.ENOTEMPTY, errno.EEXIST}:
                raise
            self.rename(session_id, name, f"{name}.{time.time_ns()}.bad")

    def rename(self, session_id: str, old: str, new: str) -> None:
        os.rename(f"{session_id}/{old}", f"{session_id}/{new}", src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, session_id: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{session_id}/{name}", dir_fd=self.fd)

    def names(self, session_id: str) -> set[str]:
        """Names of a session's files; empty without a directory."""
        try:
            with linux.opened(session_id, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.fd) as fd:
                return set(os.listdir(fd))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def sessions(self) -> list[str]:
        # A symlink leads to a session of another supervisor.
        with os.scandir(self.fd) as found:
            return [one.name for one in found if not one.is_symlink()]

    def sync(self, session_id: str, name: str) -> None:
        """Sync a record and its directory; blocks. A missing record has been acknowledged."""
        for path, flags in ((f"{session_id}/{name}", 0), (session_id, os.O_DIRECTORY)):
            try:
                with linux.opened(path, os.O_RDONLY | flags, dir_fd=self.fd) as fd:
                    os.fsync(fd)
            except FileNotFoundError:
                return


def _object(data: bytes, name: str) -> Message:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(name) from error
    if not isinstance(value, dict):
        raise Unreadable(name)
    return cast("Message", value)
