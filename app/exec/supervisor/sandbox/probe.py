"""Whether a file system is suitable for the state directory: tries each file operation that we use.

Run as a separate process (`python -I -S -E`), because a file system that hangs blocks its caller.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Final

from shellback.exec.wire import linux
from shellback.exec.wire.descriptors import closing

SCRATCH: Final = ".probe."
_STALE_S: Final = 3600.0


class Wrong(Exception):
    """Raised when a call succeeds with a wrong effect."""


def _exclusive(folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open("mark", flags, 0o600, dir_fd=folder))
    try:
        os.close(os.open("mark", flags, 0o600, dir_fd=folder))
    except FileExistsError:
        return
    raise Wrong("a file was created twice")


def _file_locks(folder: int) -> None:
    with _opened(folder, "lock") as first, _opened(folder, "lock") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise Wrong("two held one lock")


def _record_locks(folder: int) -> None:
    # In two processes: a process is never blocked by its own record locks.
    with _opened(folder, "records") as ours:
        fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException), _opened(folder, "records") as theirs:
                try:
                    fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    os._exit(0)
            os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise Wrong("two held one lock")


def _rename(folder: int) -> None:
    for name in ("old", "new"):
        with _opened(folder, name) as fd:
            os.write(fd, name.encode())
    os.rename("new", "old", src_dir_fd=folder, dst_dir_fd=folder)
    with _opened(folder, "old") as fd:
        if os.read(fd, 8) != b"new" or "new" in os.listdir(folder):
            raise Wrong("a renamed file did not take the other's place")


def _link(folder: int) -> None:
    with _opened(folder, "draft"):
        os.link("draft", "name", src_dir_fd=folder, dst_dir_fd=folder)


def _sync(folder: int) -> None:
    with _opened(folder, "synced") as fd:
        os.write(fd, b"x")
        os.fsync(fd)
    os.fsync(folder)


def _socket(folder: int) -> None:
    path = f"/proc/self/fd/{folder}/sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen(1)
        client.settimeout(5.0)
        client.connect(path)


def _modes(folder: int) -> None:
    with _opened(folder, "private") as fd:
        found = [stat.S_IMODE(os.fstat(one).st_mode) for one in (fd, folder)]
    if found != [0o600, 0o700]:
        raise Wrong(f"0600 and 0700 became {found[0]:04o} and {found[1]:04o}")


def _holes(folder: int) -> None:
    with _opened(folder, "holes") as fd:
        os.write(fd, b"x" * 65536)
        linux.punch_hole(fd, 4096, 4096)
        if os.pread(fd, 4096, 4096).strip(b"\0") or os.fstat(fd).st_size != 65536:
            raise Wrong("what was given back still has its bytes")


def _splice(folder: int) -> None:
    reads, writes = os.pipe()
    with closing(reads), closing(writes):
        os.write(writes, b"spliced")
        with _opened(folder, "spliced") as fd:
            os.splice(reads, fd, 7, offset_dst=10)
            if os.pread(fd, 32, 0) != b"\0" * 10 + b"spliced":
                raise Wrong("bytes arrived elsewhere")


WHAT: Final[dict[str, Callable[[int], None]]] = {
    "exclusive creation (O_EXCL)": _exclusive,
    "locks (flock)": _file_locks,
    "locks (fcntl)": _record_locks,
    "atomic rename": _rename,
    "hard links": _link,
    "fsync": _sync,
    "unix sockets": _socket,
    "modes": _modes,
    "holes in files": _holes,
    "splice at an offset": _splice,
}
"""The tried operations by name."""
WORSE_WITHOUT: Final = {
    "holes in files": "a full log keeps its first half only, and emptied logs give their room back by truncation",
    "splice at an offset": "output is copied instead of moved, which is slower",
}
"""Operations that we can do without, and the consequence; all others are required."""


def probe(path: str) -> dict[str, str]:
    """The operations that fail in this directory, with reasons; raises OSError if no directory can be made there."""
    _remove_stale(path)
    # In containers pids repeat, so add the time.
    scratch = os.path.join(path, f"{SCRATCH}{os.getpid()}.{time.time_ns()}")
    os.mkdir(scratch, 0o700)
    try:
        with linux.opened(scratch, os.O_RDONLY | os.O_DIRECTORY) as folder:
            return {what: why for what, act in WHAT.items() if (why := _refusal(act, folder)) is not None}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _refusal(act: Callable[[int], None], folder: int) -> str | None:
    try:
        act(folder)
    except OSError as error:
        return error.strerror or errno.errorcode.get(error.errno or 0, "refused")
    except Wrong as wrong:
        return str(wrong)
    return None


def _remove_stale(path: str) -> None:
    """Remove the directory of a probe that hung."""
    for name in os.listdir(path):
        if name.startswith(SCRATCH):
            with contextlib.suppress(OSError):
                old = os.path.join(path, name)
                if os.stat(old).st_mtime < time.time() - _STALE_S:
                    shutil.rmtree(old, ignore_errors=True)


def _opened(folder: int, name: str) -> contextlib.AbstractContextManager[int]:
    return linux.opened(name, os.O_RDWR | os.O_CREAT, dir_fd=folder)


def main() -> None:
    """Probe the directory given as the only argument, made if missing, and print the outcome as JSON."""
    path = sys.argv[1]
    os.umask(0o077)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found: dict[str, object] = {"path": os.path.realpath(path), "missing": probe(path)}
    except OSError as error:
        found = {"path": os.path.realpath(path), "error": error.strerror or str(error)}
    sys.stdout.write(json.dumps(found))
