"""What stands in the workspace, while commands run, where nothing may come into being: gone soon after the last one.

Empty directories, which the sandboxes make by themselves, and small files with harmless content, which are made here.
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

LINGER_S: Final = 2.0
"""Making and removing them costs a quarter of what a command costs to start."""

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


Later = Callable[[float, Callable[[], None]], object]


class Stubs:
    """Counts who needs which; `files` are paths with their content.

    With `later` they stay for a moment after the last one, as the next command will want the same. What is there is
    listed in `kept`, so that whoever comes after us removes it.
    """

    def __init__(self, kept: str = "", later: Later | None = None) -> None:
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
                _make(path, text.encode(), owner)

    def let_go(self, paths: Iterable[str]) -> None:
        """Remove those that nobody needs any more, now or in a moment."""
        self._needed.subtract(paths)
        self._needed = +self._needed
        self.tidy_later()

    def tidy_later(self) -> None:
        """Remove what nobody needs once it has not been needed for a moment."""
        if self._later is None:
            self.tidy()
        elif not self._waiting and self._made.keys() - self._needed.keys():
            self._waiting = True
            self._later(LINGER_S, self._tidy_now)

    def _tidy_now(self) -> None:
        self._waiting = False
        self.tidy()

    def tidy(self) -> None:
        """Remove what nobody needs."""
        unneeded = self._made.keys() - self._needed.keys()
        for path in unneeded:
            text = self._made.pop(path)
            with contextlib.suppress(OSError):
                _remove(path, None if text is None else text.encode())
        if unneeded:
            self._list()

    def _list(self) -> None:
        if self._kept:
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


def _make(path: str, text: bytes, owner: tuple[int, int] | None) -> None:
    with _parent(path) as (folder, name):
        fd = os.open(name, _NEW, 0o644, dir_fd=folder)
        try:
            os.write(fd, text)
            if owner is not None:
                os.fchown(fd, *owner)
        finally:
            os.close(fd)


def _remove(path: str, text: bytes | None) -> None:
    with _parent(path) as (folder, name):
        if text is None:
            os.rmdir(name, dir_fd=folder)
            return
        fd = os.open(name, _OLD, dir_fd=folder)
        try:
            same = stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, len(text) + 1) == text
        finally:
            os.close(fd)
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
