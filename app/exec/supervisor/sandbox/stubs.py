"""Stubs: placeholders in the workspace at paths that commands must not create; removed soon after the last command.

They are empty directories, made by the sandboxes, and small harmless files and sockets without a listener, made here.
git lists neither these directories nor these sockets. Removing never deletes other content: rmdir(2) fails on a
directory with content, and a file must be as it was made.
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
"""Making and removing them takes a quarter of the time of a start."""

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


SOCKET: Final = b"# nothing\n"
"""Instead of content: a socket, or an empty file if the file system has no sockets."""
_NAME: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

Later = Callable[[float, Callable[[], None]], object]


class Stubs:
    """Counts the commands that need each stub; `files` are paths with their content.

    Stubs stay for a moment after the last command, because the next one mostly needs the same. `kept` is a file with
    the existing ones, so that the next supervisor can remove them.
    """

    def __init__(self, kept: str, later: Later) -> None:
        self._needed: Counter[str] = Counter()
        self._kept = kept
        self._later = later
        self._waiting = False
        self._made: dict[str, str | None] = _listed(kept)

    def ours(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Those of `paths` that do not exist, or exist only because we made them."""
        return tuple(path for path in paths if path in self._made or not os.path.lexists(path))

    def need(self, folders: Iterable[str], files: Mapping[str, str], owner: tuple[int, int] | None) -> None:
        """Keep these stubs until `let_go` was called as often; make missing files."""
        wanted = {**dict.fromkeys(folders), **files}
        self._needed.update(wanted.keys())
        new = wanted.keys() - self._made.keys()
        self._made.update({path: wanted[path] for path in new})
        if new:
            self._list()
        for path, text in files.items():
            if os.path.lexists(path):
                continue
            with contextlib.suppress(OSError):
                make(path, text.encode(), owner)

    def let_go(self, paths: Iterable[str]) -> None:
        """Stop needing these stubs; unneeded ones are removed in a moment."""
        self._needed.subtract(paths)
        self._needed = +self._needed
        self.tidy_later()

    def tidy_later(self) -> None:
        """Remove unneeded stubs in a moment."""
        if not self._waiting and self._made.keys() - self._needed.keys():
            self._waiting = True
            self._later(LINGER_S, self.tidy)

    def tidy(self) -> None:
        """Remove unneeded stubs."""
        self._waiting = False
        unneeded = self._made.keys() - self._needed.keys()
        for path in unneeded:
            text = self._made.pop(path)
            with contextlib.suppress(OSError):
                remove(path, None if text is None else text.encode())
        if unneeded:
            self._list()

    def _list(self) -> None:
        # If the list cannot be written, some stubs may stay forever.
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
    """Make a file with this text, an empty directory (None) or a `SOCKET` for `owner`; FileExistsError if it exists."""
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
    """Remove a stub if it is as it was made; OSError if it is missing, or is a directory with content."""
    with _parent(path) as (folder, name):
        if text is None:
            os.rmdir(name, dir_fd=folder)
            return
        if text == SOCKET:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode) and not mode & 0o222:  # no program listens at such a socket
                os.unlink(name, dir_fd=folder)
                return
            text = b""
        with linux.opened(name, _OLD, dir_fd=folder) as fd:
            same = stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, len(text) + 1) == text
        if same:
            os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def _parent(path: str) -> Generator[tuple[int, str]]:
    """The directory of `path` and the name in it, without following symlinks: we may be root."""
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
