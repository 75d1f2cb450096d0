"""One host mount: what is wanted, and the directories that it may come from."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from shellback.exec.core.errors import MountUnusable

WORKDIR: Final = "/workspace"
"""What a container calls its workspace."""
FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class HostMount:
    """A file or directory of the host to be copied into a workspace.

    Args:
        host_path: Absolute, or relative to the first allowed root that has it.
        mount_path: Where it goes in the workspace; its own name where not given, "." is the workspace itself.
        include_glob: Only files that one of these fits; all where there are none. A glob without a slash is about the
            name, one with a slash about the path from `host_path`; `**` stands for any number of directories.
        exclude_glob: Neither these files nor what is in these directories.
        max_bytes: Of all files together; None is the bound that every mount has.
        follow_symlinks: Copy what symlinks name, if that is in an allowed root; else they are copied as they are, if
            they stay inside the mount.

    Raises:
        MountUnusable: One of them makes no sense.
    """

    host_path: str | os.PathLike[str]
    mount_path: str | None = None
    include_glob: tuple[str, ...] = ()
    exclude_glob: tuple[str, ...] = ()
    max_bytes: int | None = None
    follow_symlinks: bool = False

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse what could mean anything else."""
        for name in ("include_glob", "exclude_glob"):
            given: str | Iterable[str] = getattr(self, name)
            globs = (given,) if isinstance(given, str) else tuple(given)
            if any(not glob or "\0" in glob or ".." in glob.split("/") for glob in globs):
                raise MountUnusable(f"{name} of the mount of {self.shown} holds an empty glob, a NUL or `..`")
            object.__setattr__(self, name, globs)
        if not os.fspath(self.host_path) or "\0" in os.fspath(self.host_path) + (self.mount_path or ""):
            raise MountUnusable("a mount needs a host_path, and neither it nor mount_path may hold a NUL")
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise MountUnusable(f"max_bytes of the mount of {self.shown} is {self.max_bytes}; it has to be above 0")
        if self.target.split("/")[0] in {"..", ""} and self.target:
            raise MountUnusable(
                f"mount_path {self.mount_path!r} is not in the workspace; give a relative path, or one in {WORKDIR}"
            )

    @property
    def shown(self) -> str:
        """The host path as it was given."""
        return os.fspath(self.host_path)

    @property
    def target(self) -> str:
        """Where it goes, relative to the workspace and without `.`; "" is the workspace itself."""
        if self.mount_path is None:
            return os.path.basename(os.path.abspath(self.shown))
        path = posixpath.normpath(self.mount_path)
        if path == WORKDIR or path.startswith(f"{WORKDIR}/"):
            path = path.removeprefix(WORKDIR).lstrip("/")
        return "" if path == "." else path

    def takes(self, path: str) -> bool:
        """Whether the globs let in the file at `path`, relative to `host_path`."""
        return not self.leaves_out(path) and (not self.include_glob or _fits(self.include_glob, path))

    def leaves_out(self, path: str) -> bool:
        """Whether the globs leave out the file or directory at `path`."""
        return _fits(self.exclude_glob, path)


class Roots(contextlib.ExitStack):
    """The directories that mounts may come from, held open; every path below is reached without a symlink.

    What `secret` says True of, by its real path, no mount brings.

    Raises:
        MountUnusable: One is missing, or cannot be read.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], secret: Callable[[Path], bool] = lambda _: False
    ) -> None:
        super().__init__()
        self.secret: Final = secret
        self.paths: Final = tuple(dict.fromkeys(os.path.realpath(os.path.expanduser(path)) for path in paths))
        self._fds: list[int] = []
        for path in self.paths:
            try:
                fd = os.open(path, FLAGS | os.O_DIRECTORY)
            except OSError as error:
                self.close()
                raise MountUnusable(
                    f"{path}, which mounts may come from (HOST_MOUNT_ROOTS), cannot be read: {error.strerror}"
                ) from None
            self.callback(os.close, fd)
            self._fds.append(fd)

    def find(self, mount: HostMount) -> str:
        """The real path of what a mount copies; MountUnusable if it is missing, or in no allowed root."""
        if not self.paths:
            raise MountUnusable(
                f"the mount of {mount.shown} is refused: mounts may come from nowhere here; name the directories that"
                " they may come from (HOST_MOUNT_ROOTS, or allowed_roots)"
            )
        tried = [os.path.realpath(os.path.join(root, os.path.expanduser(mount.shown))) for root in self.paths]
        inside = [path for path in tried if self.root_of(path) is not None]
        if not inside:
            raise MountUnusable(
                f"the mount of {mount.shown} is refused: {tried[0]} is in none of the directories that mounts may come"
                f" from ({', '.join(self.paths)})"
            )
        found = next((path for path in inside if os.path.lexists(path)), None)
        if found is None:
            raise MountUnusable(f"the mount of {mount.shown} is refused: {inside[0]} does not exist")
        return found

    def root_of(self, path: str) -> int | None:
        """The number of the root that a real path is in, None for no root."""
        for number, root in enumerate(self.paths):
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return number
        return None

    def open(self, path: str) -> int:
        """A descriptor of a real path in one of the roots, read-only.

        Raises:
            OSError: It is not there, or a part of it is a symlink by now.
        """
        number = self.root_of(path)
        assert number is not None
        at = os.dup(self._fds[number])
        try:
            for part in os.path.relpath(path, self.paths[number]).split("/"):
                inner = os.open(part, FLAGS, dir_fd=at)
                os.close(at)
                at = inner
        except OSError:
            os.close(at)
            raise
        return at


def _fits(globs: Iterable[str], path: str) -> bool:
    parts = path.split("/")
    return any(_fit(parts if "/" in glob else parts[-1:], glob.strip("/").split("/")) for glob in globs)


def _fit(parts: list[str], glob: list[str]) -> bool:
    if not glob:
        return not parts
    if glob[0] == "**":
        return any(_fit(parts[at:], glob[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], glob[0]) and _fit(parts[1:], glob[1:])
