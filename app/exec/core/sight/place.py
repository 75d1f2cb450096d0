"""Resolves a path inside the workspace, safe against changes during the walk.

Each step opens one name in a directory that is held by a descriptor, never through a symlink. The target of a symlink
is read and walked by the same rules, so a name that is exchanged between two steps leads at worst to another file of
the workspace. An absolute path is taken as commands see it.

Only regular files are opened for reading, never a pipe, device or directory. A file is first opened with `O_PATH`,
which neither blocks nor affects a device; only a regular file is then opened for its bytes, through the same
descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox, WorkspaceUnusable
from shellback.exec.wire.descriptors import closing, kept

LINKS_MOST: Final = 40
PATH_MOST: Final = 4096
_STEPS_MOST: Final = 20_000
"""The most steps of one walk; each `..` walks again from the top, and symlinks may contain many."""
_DIRECTORY: Final = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC

Names = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Place:
    """A name in a directory that is held open, with its status; None if the name does not exist.

    `name` is `.` for the workspace itself, and if the path requires a directory. `names` is the path from the
    workspace, without symlinks.
    """

    directory: int
    name: str
    names: Names
    status: os.stat_result | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory."""
        os.close(self.directory)

    def again(self) -> Self:
        """Read the status again; another process may have changed the name."""
        self.status = _look(self.name, self.directory)
        return self

    @property
    def there(self) -> os.stat_result:
        """The status of the name; FileNotFoundError if it does not exist."""
        if self.status is None:
            raise gone()
        return self.status

    def content(self, most: int) -> bytes:
        """The first `most` bytes of the file.

        Raises:
            FileNotFoundError: It does not exist.
            OSError: As `opened`.
        """
        self.there  # noqa: B018 - raises if it does not exist
        return head(self.name, most, self.directory)


class Root:
    """The workspace, which commands see at `inner`; `workspace` is absolute and without symlinks.

    If commands reach it only by a mount, they may have no access to its parents: `held` then opens the workspace, and
    permissions are checked in the workspace alone.
    """

    def __init__(self, workspace: str, inner: str, held: Callable[[], int] | None = None) -> None:
        self.workspace = workspace
        self.inner = inner
        self._held = held
        self._inner = _parts(inner)

    def shown(self, names: Sequence[str]) -> str:
        """The path of `names` as commands see it."""
        return "/".join((self.inner.rstrip("/"), *names)) if names else self.inner

    def asked(self, path: str, names: Sequence[str]) -> str:
        """`path` as commands see it, with its symlinks; if it has a `..`, the resolved path of `names`."""
        parts = [part for part in self.parts(path) if part != "."]
        return self.shown(names if ".." in parts else parts)

    def place(self, path: str, *, follow: bool = True, making: Callable[[Names], None] | None = None) -> Place:
        """The place of `path`, which the caller closes. `follow`: a symlink at its end is followed.

        With `making`, missing directories are made, after it was called once with the names of the whole path; its
        exception ends the walk before anything is made.

        Raises:
            InvalidCommand: The path is empty, too long, has a NUL, or cannot be encoded.
            PathOutsideSandbox: It leaves the workspace, by itself or by a symlink.
            WorkspaceUnusable: The workspace is gone.
            OSError: A directory of the path is missing, is no directory, or cannot be entered; or symlinks form a loop.
        """
        walk = _Walk(self, path, making)
        try:
            name, status = walk.to_the_end(follow)
        except BaseException:
            os.close(walk.directory)
            raise
        return Place(walk.directory, name, tuple(walk.names), status)

    def real(self, path: str) -> Names:
        """The names of `path` without symlinks; names after a missing directory stay as written.

        Raises:
            InvalidCommand, PathOutsideSandbox, WorkspaceUnusable: As `place`.
            OSError: Symlinks form a loop.
        """
        walk = _Walk(self, path)
        try:
            walk.as_far_as_it_goes()
        finally:
            os.close(walk.directory)
        return tuple(walk.names)

    def open(self) -> int:
        """A descriptor of the workspace; WorkspaceUnusable if it is gone or cannot be entered."""
        try:
            try:
                return os.open(self.workspace, _DIRECTORY)
            except PermissionError:
                if self._held is None:
                    raise
                with closing(self._held()) as held:
                    return os.open(".", _DIRECTORY, dir_fd=held)
        except OSError as error:
            raise WorkspaceUnusable(
                f"the workspace {self.inner} cannot be entered ({error.strerror}); the operator has to put it back"
            ) from None

    def parts(self, path: str) -> list[str]:
        """The components of `path` below the workspace, with any `..`; the last is `.` if it must be a directory.

        Raises:
            InvalidCommand: The path is empty, too long, has a NUL, or cannot be encoded.
            PathOutsideSandbox: It is absolute and not below the workspace.
        """
        if not path:
            raise InvalidCommand("the path is empty; `.` is the workspace")
        try:
            encoded = os.fsencode(path)
        except UnicodeEncodeError:
            raise InvalidCommand(f"the path {path!r} has characters that no file name can have") from None
        if b"\0" in encoded:
            raise InvalidCommand("the path holds a NUL byte; give a plain path inside the workspace")
        if len(encoded) >= PATH_MOST:
            raise InvalidCommand(f"the path has {len(encoded)} bytes of at most {PATH_MOST - 1}")
        parts = _parts(path)
        if path[0] == "/":
            below = len(self._inner)
            if [part for part in parts[:below] if part != "."] != self._inner:
                raise self.outside(path)
            parts = parts[below:]
        return parts

    def outside(self, path: str, leads: str = "") -> PathOutsideSandbox:
        """The error for a path that leaves the workspace; `leads` as in the error."""
        error = PathOutsideSandbox(f"{path!r} leads out of the workspace; use a path inside {self.inner}")
        error.leads = leads
        return error


class _Walk:
    """One walk through the workspace; `directory` is open during the walk, and `pending` are the remaining names."""

    def __init__(self, root: Root, path: str, making: Callable[[Names], None] | None = None) -> None:
        self._root = root
        self._path = path
        self._making = making
        self._pending = deque(root.parts(path))
        self._links = 0
        self._steps = 0
        self.names: list[str] = []
        self.directory = root.open()

    def to_the_end(self, follow: bool) -> tuple[str, os.stat_result | None]:
        while self._pending:
            name = self._next()
            if name == ".":
                continue
            if name == "..":
                self._up()
            elif self._pending:
                self._down(name)
            else:
                status = _look(name, self.directory)
                if status is not None and follow and stat.S_ISLNK(status.st_mode):
                    self._through(os.readlink(name, dir_fd=self.directory))
                    continue
                self.names.append(name)
                return name, status
        return ".", os.fstat(self.directory)

    def as_far_as_it_goes(self) -> None:
        lost = False
        while self._pending:
            name = self._next()
            if name == ".":
                continue
            if name == "..":
                self._up()
                lost = False
            elif lost:
                self.names.append(name)
            else:
                try:
                    self._down(name)
                except OSError as error:
                    if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG}:
                        raise
                    self.names.append(name)
                    lost = True

    def _next(self) -> str:
        self._steps += 1
        if self._steps > _STEPS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        return self._pending.popleft()

    def _down(self, name: str) -> None:
        try:
            below = os.open(name, _DIRECTORY, dir_fd=self.directory)
        except NotADirectoryError:
            self._through(self._target(name))
            return
        except FileNotFoundError:
            if self._making is None:
                raise
            self._make(name)
            return
        os.close(self.directory)
        self.directory = below
        self.names.append(name)

    def _up(self) -> None:
        # Not the directory's own `..`: it is outside if another process has moved the directory out.
        if not self.names:
            above = self._root.workspace.rpartition("/")[0]
            raise self._root.outside(self._path, "/".join((above, *self._pending)) or "/")
        self._pending.extendleft(self.names[-2::-1])
        self._again()

    def _through(self, target: str) -> None:
        self._links += 1
        if self._links > LINKS_MOST:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        try:
            parts = self._root.parts(target)
        except PathOutsideSandbox:
            raise self._root.outside(self._path, "/".join((target, *self._pending))) from None
        self._pending.extendleft(reversed(parts))
        if target[0] == "/":
            self._again()

    def _again(self) -> None:
        top = self._root.open()
        os.close(self.directory)
        self.directory = top
        self.names.clear()

    def _target(self, name: str) -> str:
        try:
            return os.readlink(name, dir_fd=self.directory)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path) from None

    def _make(self, name: str) -> None:
        assert self._making is not None
        if ".." in self._pending:
            raise gone()
        if self._pending and self._pending[-1] == ".":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._making((*self.names, name, *(part for part in self._pending if part != ".")))
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=self.directory)
        self._pending.appendleft(name)


def held(workspace: str) -> int:
    """A descriptor of the workspace, opened with the caller's rights.

    Raises:
        OSError: It is gone, a symlink, or no directory.
    """
    return os.open(workspace, _DIRECTORY)


def _look(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def gone() -> FileNotFoundError:
    """The error for a missing file; the caller, who knows the path, adds it."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != "."]
    if path.endswith(("/", "/.")) and parts:
        parts.append(".")
    return parts


_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NAMED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK: Final = 1 << 18


def regular(status: os.stat_result) -> None:
    """Check that a file is regular.

    Raises:
        IsADirectoryError: It is a directory.
        OSError: ENOTSUP: a pipe, a socket or a device, which could block the open.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENOTSUP, "not a regular file")


def opened(name: str, directory: int | None, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the existing regular file `name`, which is no symlink; never blocks.

    Raises:
        OSError: As `regular`, or from the kernel.
    """
    with closing(os.open(name, _NAMED, dir_fd=directory)) as named:
        regular(os.fstat(named))
        return os.open(f"/proc/self/fd/{named}", flags | (_SAFE & ~os.O_NOFOLLOW))


def made(name: str, directory: int, flags: int, mode: int = 0o666) -> int:
    """A descriptor of the file `name`, which is made if missing; never through a symlink, and never blocks.

    Raises:
        OSError: As `regular`, or from the kernel.
    """
    descriptor = os.open(name, flags | os.O_CREAT | _SAFE, mode, dir_fd=directory)
    with kept(descriptor):
        regular(os.fstat(descriptor))
    return descriptor


def head(name: str, most: int, directory: int | None = None) -> bytes:
    """The first `most` bytes of the regular file `name`, which is no symlink; OSError as `opened`."""
    with closing(opened(name, directory)) as descriptor:
        parts, left = list[bytes](), most
        while left > 0 and (part := os.read(descriptor, min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def empty(name: str) -> bool:
    """Whether the directory `name`, which is no symlink, is empty; OSError if it cannot be read."""
    with closing(os.open(name, _SAFE | os.O_RDONLY | os.O_DIRECTORY)) as descriptor, os.scandir(descriptor) as entries:
        return next(entries, None) is None
