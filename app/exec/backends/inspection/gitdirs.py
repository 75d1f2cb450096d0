"""What in one git directory, or in one `.git` that points at one, may have git run a program or look elsewhere.

Commands may change everything meanwhile: each file is reached without following a symlink, opened only where it is a
regular one, and read within a bound. What cannot be looked at so is a problem itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Final

from shellback.exec.core.errors import ExecError
from shellback.exec.core.sight.place import Place, Root
from shellback.exec.wire import gitconfig, linux

POINTER_BYTES: Final = 4096
HOOKS: Final = 64
"""Hooks that are named one by one; of a directory with more all is one problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that git must not read: its path from the workspace, its status, and what is wrong with it."""

    path: str
    status: os.stat_result
    what: str


class GitDirs:
    """Looks at git directories of a workspace; `places` are those that a look at the whole workspace has found."""

    def __init__(self, root: Root, places: Collection[str]) -> None:
        self._root = root
        self._places = places

    def problems(self, place: str) -> Iterator[Problem]:
        """What is wrong with the `.git`, bare repository or worktree at this path from the workspace."""
        status = look(self._root, place)
        if status is None:
            return
        if stat.S_ISDIR(status.st_mode):
            for name in ("config", "config.worktree"):
                yield from self._config(place, f"{place}/{name}")
            yield from self._pointer(place, f"{place}/commondir", b"")
            yield from self._hooks(f"{place}/hooks")
        elif stat.S_ISLNK(status.st_mode):
            if self._astray(os.path.dirname(place), os.readlink(f"{self._root.workspace}/{place}")):
                yield Problem(place, status, "a symlink to a git directory that is not looked at")
        else:
            yield from self._pointer(os.path.dirname(place), place, b"gitdir:")

    def _config(self, place: str, path: str) -> Iterator[Problem]:
        status = look(self._root, path)
        if status is None:
            return
        data = content(self._root, path, gitconfig.MOST_BYTES + 1)
        if data is None:
            yield Problem(path, status, "configuration that is no plain file, or cannot be read")
        elif names := gitconfig.harmful(data, place=place):
            yield Problem(path, status, f"configuration that sets {', '.join(names)}")

    def _pointer(self, base: str, path: str, begins: bytes) -> Iterator[Problem]:
        status = look(self._root, path)
        if status is None:
            return
        data = content(self._root, path, POINTER_BYTES)
        if data is None or not data.startswith(begins):
            yield Problem(path, status, "a pointer to a git directory that cannot be read")
        elif self._astray(base, os.fsdecode(data[len(begins) :].strip())):
            yield Problem(path, status, "a pointer to a git directory that is not looked at")

    def _astray(self, base: str, target: str) -> bool:
        """Whether a path leads into the workspace, but to no place that is looked at, or not always there."""
        workspace = self._root.workspace
        if target.startswith(f"{self._root.inner}/"):
            target = f"{workspace}/{target[len(self._root.inner) + 1 :]}"
        path = os.path.normpath(os.path.join(workspace, base, target))
        real = os.path.realpath(path)
        if not any(f"{one}/".startswith(f"{workspace}/") for one in (path, real)):
            return False
        return path != real or path[len(workspace) + 1 :] not in self._places

    def _hooks(self, path: str) -> Iterator[Problem]:
        status = look(self._root, path)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            yield Problem(path, status, "hooks that are no directory")
            return
        names = [name for name in listed(self._root, path, HOOKS * 2) if not name.endswith(".sample")]
        if len(names) > HOOKS:
            yield Problem(path, status, f"more than {HOOKS} hooks")
            return
        for name in names:
            if (one := look(self._root, f"{path}/{name}")) is not None:
                yield Problem(f"{path}/{name}", one, "a hook")


def look(root: Root, path: str) -> os.stat_result | None:
    """The status of a path from the workspace; None if nothing exists, or a symlink is on the way."""
    with contextlib.suppress(OSError, ExecError), reached(root, path) as place:
        return place.status
    return None


@contextlib.contextmanager
def reached(root: Root, path: str) -> Generator[Place]:
    """The place of a path from the workspace, without a symlink on the way.

    Raises:
        OSError, ExecError: As `Root.place`; ELOOP where a symlink is on the way.
    """
    with root.place(f"{root.inner}/{path}", follow=False) as place:
        if "/".join(place.names) != path:
            raise OSError(40, "a symlink is on the way", path)
        yield place


def content(root: Root, path: str, most: int) -> bytes | None:
    """The first bytes of a regular file; None if it is not one or cannot be read."""
    try:
        with reached(root, path) as place:
            return place.content(most)
    except (OSError, ExecError):
        return None


def listed(root: Root, path: str, most: int) -> list[str]:
    """At most so many names of a directory; none where it cannot be read."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        with (
            reached(root, path) as place,
            linux.opened(place.name, flags, dir_fd=place.directory) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            return [entry.name for entry in itertools.islice(entries, most)]
    except (OSError, ExecError):
        return []
