"""What stands in the workspace, while commands run, where nothing may come into being: gone soon after the last one.

Empty directories, which the sandboxes make by themselves; small files with harmless content, and sockets that nobody
listens at, which are made here. git lists neither such a directory nor such a socket.
Removing never takes what anybody else has put there: rmdir(2) spares what has content, a file must be as it was made.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, cast

from shellback.exec.wire import linux

LINGER_S: Final = 2.0
"""Making and removing them costs a quarter of what a command costs to start."""

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


SOCKET: Final = b"# nothing\n"
"""In place of a content: a socket, or an empty file where the file system has none."""
_NAME: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Later = Callable[[float, Callable[[], None]], object]


class Stubs:
    """Counts who needs which; `files` are paths with their content.

    They stay for a moment after the last one, as the next command will want the same. What is there is listed in
    `kept`, so that whoever comes after us removes it.
    """

    def __init__(self, kept: str, later: Later) -> None:
        self._needed: Counter[str] = Counter()
        self._kept = kept
        self._later = later
        self._waiting = False
        self._made: dict[str, str | None] = _listed(kept)

    def ours(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Those of `paths` that are not there but for us: what somebody else has there is not ours to remove."""
        return tuple(path for path in paths if path in self._made or not os.path.lexists(path))

    def need(self, folders: Iterable[str], files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
        """Keep these until as many have let go of them; make the files that are missing."""
        wanted = {**dict.fromkeys(folders), **files}
        self._needed.update(wanted.keys())
        new = wanted.keys() - self._made.keys()
        self._made.update({path: wanted[path] for path in new})
        if new:
            self._list()
        for path, text in files.items():
            with contextlib.suppress(OSError):
                make(path, text.encode(), owner)

    def let_go(self, paths: Iterable[str]) -> None:
        """Remove those that nobody needs any more, in a moment."""
        self._needed.subtract(paths)
        self._needed = +self._needed
        self.tidy_later()

    def tidy_later(self) -> None:
        """Remove what nobody needs once it has not been needed for a moment."""
        if not self._waiting and self._made.keys() - self._needed.keys():
            self._waiting = True
            self._later(LINGER_S, self.tidy)

    def tidy(self) -> None:
        """Remove what nobody needs."""
        self._waiting = False
        unneeded = self._made.keys() - self._needed.keys()
        for path in unneeded:
            text = self._made.pop(path)
            with contextlib.suppress(OSError):
                remove(path, None if text is None else text.encode())
        if unneeded:
            self._list()

    def _list(self) -> None:
        # Without room for it some of them may stay for ever, empty.
        with contextlib.suppress(OSError):
            with open(f"{self._kept}.new", "w", encoding="utf-8") as file:
                json.dump(self._made, file)
            os.rename(f"{self._kept}.new", self._kept)


def _listed(kept: str) -> dict[str, str | None]:
    try:
        with open(kept, encoding="utf-8") as file:
            found: object = json.load(file)
    except (OSError, ValueError):
        return {}
    listed = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    return {
        path: text
        for path, text in listed.items()
        if isinstance(path, str) and path.startswith("/") and (text is None or isinstance(text, str))
    }


def make(path: str, text: bytes | None, owner: tuple[int, int] | None) -> None:
    """Make a file with this text, an empty directory (None) or a `SOCKET`, as the `owner`'s.

    Raises:
        OSError: FileExistsError where something is there.
    """
    with _parent(path) as (folder, name):
        flags = _NEW
        if text is None:
            os.mkdir(name, 0o755, dir_fd=folder)
            flags = _STEP
        elif text == SOCKET:
            try:
                os.mknod(name, stat.S_IFSOCK | 0o444, dir_fd=folder)
                flags = _NAME
            except FileExistsError:
                raise
            except OSError:
                text = b""
        with linux.opened(name, flags, 0o644, dir_fd=folder) as fd:
            if flags == _NEW:
                linux.write_all(fd, text or b"")
            if owner is not None:
                os.chown(f"/proc/self/fd/{fd}", *owner)


def remove(path: str, text: bytes | None) -> None:
    """Remove what was made, where it is as it was made.

    Raises:
        OSError: It is not there, or is a directory with something in it.
    """
    with _parent(path) as (folder, name):
        if text is None:
            os.rmdir(name, dir_fd=folder)
            return
        if text == SOCKET:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode) and not mode & 0o222:  # as no program makes one to listen at
                os.unlink(name, dir_fd=folder)
                return
            text = b""
        with linux.opened(name, _OLD, dir_fd=folder) as fd:
            same = stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, len(text) + 1) == text
        if same:
            os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _parent(path: str) -> Generator[tuple[int, str]]:
    """The directory of `path` and its name there: a command may have put a symlink in the way, and we may be root."""
    *folders, name = [part for part in path.split("/") if part]
    fd = os.open("/", _STEP)
    try:
        for folder in folders:
            inner = os.open(folder, _STEP, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, name
    finally:
        os.close(fd)
