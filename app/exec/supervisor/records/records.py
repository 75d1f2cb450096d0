"""Small JSON files of a session, and the directory they are in."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from typing import Any, Final, cast

from shellback.exec.wire import layout, linux, protocol
from shellback.exec.wire.protocol import ExitRecord, Message

MAX_BYTES: Final = 1 << 20
ABANDONED: Final = b"abandoned\n"
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})
"""What the kernel says where a link, a pipe or a directory has the name of a file of ours."""


class Unreadable(ValueError):
    """Raised for a file that is there and is not what we write."""


class Records:
    """The `sessions` directory, addressed through its descriptor."""

    def __init__(self, home: str) -> None:
        path = os.path.join(home, layout.SESSIONS)
        os.makedirs(path, mode=0o700, exist_ok=True)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def gone(self) -> bool:
        """Whether the directory was removed: nothing can be put into it any more."""
        return os.fstat(self.fd).st_nlink == 0

    def claim(self, session_id: str, content: bytes) -> int | None:
        """Create the session's `started` file and return its descriptor; None when somebody did before."""
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
            # Nothing has been begun, and whoever is refused may ask again.
            os.close(fd)
            self.remove(session_id, layout.STARTED)
            raise
        return fd

    def running(self, session_id: str) -> Message | None:
        """What is on record about the session's process: of what changed since its start, or of that.

        None without a record, and where every one of them is damaged.
        """
        with contextlib.suppress(Unreadable):
            changed = protocol.running(self.read(session_id, layout.RUNNING))
            if changed is not None:
                return changed
        with contextlib.suppress(Unreadable):
            _, _, line = (self.claimed_by(session_id) or b"").partition(b"\n")
            return protocol.running(_object(line, layout.STARTED))
        return None

    def ended(self, session_id: str, name: str) -> ExitRecord | None:
        """The exit record in a file, or None without one.

        Raises:
            Unreadable: It is damaged, or another session's.
        """
        value = self.read(session_id, name)
        record = protocol.exit_record(value, session_id)
        if value is not None and record is None:
            raise Unreadable(name)
        return record

    def claimed_by(self, session_id: str) -> bytes | None:
        """Content of the `started` file, or None without one.

        Raises:
            Unreadable: It is no file.
        """
        return self._read(f"{session_id}/{layout.STARTED}")

    def made_at(self, session_id: str) -> float:
        """When the `started` file was written last, by the clock of that time."""
        return os.stat(f"{session_id}/{layout.STARTED}", dir_fd=self.fd).st_mtime

    def write(self, session_id: str, name: str, value: Message | list[Any]) -> None:
        """Replace a file as a whole: whoever reads it finds the old or the new one."""
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
        try:
            linux.write_all(fd, json.dumps(value, separators=(",", ":")).encode())
        finally:
            os.close(fd)

    def _create(self, path: str) -> int:
        # Without O_NONBLOCK a pipe that nobody reads would hold us up for ever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags, 0o600, dir_fd=self.fd)

    def read(self, session_id: str, name: str) -> Message | None:
        """The object in a file, or None without one.

        Raises:
            Unreadable: It is damaged.
        """
        data = self._read(f"{session_id}/{name}")
        if data is None:
            return None
        return _object(data, name)

    def read_list(self, session_id: str, name: str) -> list[Message]:
        """The objects in a file that holds a list; [] where there is none or it is damaged."""
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
        """Rename what has a file's name and is not that file to `<name>.bad`, for whoever wants to look."""
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
        """Files of a session; empty when it has no directory."""
        try:
            with linux.opened(session_id, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.fd) as fd:
                return set(os.listdir(fd))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def sessions(self) -> list[str]:
        # A symlink leads to a session of another supervisor's.
        with os.scandir(self.fd) as found:
            return [one.name for one in found if not one.is_symlink()]

    def sync(self, session_id: str, name: str) -> None:
        """Make a record and its name durable; blocks. One that is gone has been acknowledged."""
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
