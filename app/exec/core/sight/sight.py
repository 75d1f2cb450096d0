"""The inspection of a call's files before its approval: limited to some directories, names and seconds.

Paths are walked as by `Root`; a symlink may lead from one of the directories to another. A path outside them is not
touched at all, so a call cannot make us access another file system of the host.
"""

from __future__ import annotations

import errno
import fnmatch
import functools
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from shellback.exec.core.errors import ExecError, InvalidCommand, PathOutsideSandbox, WorkspaceUnusable
from shellback.exec.core.sight.place import LINKS_MOST, PATH_MOST, Place, Root, gone
from shellback.exec.wire.descriptors import closing

ENTRIES: Final = 20_000
"""The most names that one check reads."""
SECONDS: Final = 3.0
DEPTH: Final = 100
PUBLIC_TREES: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Directories that only root changes and every command may read."""
UNSTEADY: Final = frozenset({"/proc", "/dev", "/sys"})
"""Directories whose contents differ for each process."""
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unseen(ExecError):
    """Raised for a path that a check must not inspect; `above`: it is a parent of one that it may inspect."""

    def __init__(self, path: str, *, above: str = "") -> None:
        super().__init__(f"{path} lies outside of what is looked at")
        self.above = above


class TooMuch(ExecError):
    """Raised when a check exceeds its bounds."""


class Name(NamedTuple):
    """A name in a directory: `kind` is `d` for a directory, `l` for a symlink, else `f`."""

    name: str
    kind: str


class Sight:
    """Inspects the directories `roots`, absolute and without symlinks, as the user of its thread.

    `held` opens a directory that this user cannot reach by its path; see `Root`. Not thread-safe.
    """

    def __init__(
        self,
        roots: Iterable[str],
        *,
        held: Callable[[str], int] | None = None,
        entries: int = ENTRIES,
        seconds: float = SECONDS,
    ) -> None:
        self._roots: dict[str, Root | None] = dict.fromkeys(_plain(roots))
        self._ways = _ways(tuple(self._roots))
        self._held = held
        self._left = entries
        self._entries = entries
        self._seconds = seconds
        self._ends = time.monotonic() + seconds

    def count(self, names: int = 1) -> None:
        """Count names that are read; TooMuch if a bound is exceeded."""
        self._left -= names
        if self._left < 0:
            raise TooMuch(f"more than {self._entries:,} names would have to be looked at")
        if time.monotonic() > self._ends:
            raise TooMuch(f"looking at its files took more than {self._seconds:g} s")

    def place(self, path: str, *, follow: bool = True) -> tuple[str, Place]:
        """The real path of an absolute path, and its place; `follow`: a symlink at its end is followed.

        Raises:
            Unseen: The path is, or leads, outside the directories.
            TooMuch: A bound is exceeded.
            OSError: A directory of the path is missing or is no directory, or symlinks form a loop.
        """
        given = path
        for _ in range(LINKS_MOST):
            self.count()
            top, rest = self._top(path)
            root = self._root(top)
            try:
                found = root.place(rest, follow=follow)
            except PathOutsideSandbox as error:
                path = error.leads
            except WorkspaceUnusable:
                raise gone() from None
            except InvalidCommand:
                raise OSError(errno.ENAMETOOLONG, "it is too long, or no file can have that name", given) from None
            else:
                return root.shown(found.names), found
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), given)

    def sees(self, path: str) -> bool:
        """Whether a path without symlinks is one of the directories or below one."""
        return any(path.startswith(root) and path[len(root) : len(root) + 1] in {"/", ""} for root in self._roots)

    def real(self, path: str) -> str:
        """The real path, whose last part may be missing; raises as `place`."""
        real, found = self.place(path)
        found.close()
        return real

    def status(self, path: str, *, follow: bool = True) -> os.stat_result | None:
        """The status of a path; None if it is missing or must not be inspected. TooMuch if a bound is exceeded."""
        try:
            _, found = self.place(path, follow=follow)
        except (OSError, Unseen):
            return None
        found.close()
        return found.status

    def is_directory(self, path: str) -> bool:
        """Whether a path leads to a directory that may be inspected."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def content(self, path: str, most: int, *, follow: bool = False) -> bytes:
        """The first `most` bytes of a regular file; raises as `place`, and OSError if it cannot be read."""
        _, found = self.place(path, follow=follow)
        with found:
            return found.content(most)

    def names(self, path: str) -> list[Name]:
        """The names in a directory, unsorted; raises as `place`, and OSError if it cannot be read."""
        _, found = self.place(path)
        with found:
            return self._names(found.name, found.directory)

    def listed(self, path: str, *, hidden: bool) -> list[Name]:
        """The hidden, or the other, names in a directory; none if it cannot be read. TooMuch if a bound is exceeded."""
        try:
            return [one for one in self.names(path) if one.name.startswith(".") == hidden]
        except (OSError, Unseen):
            return []

    def stands(self, path: str) -> bool:
        """Whether a path exists that may be inspected; a symlink counts itself."""
        return self.status(path, follow=False) is not None

    enters = is_directory
    meets = stands

    def below(self, path: str, *, hidden: bool = True) -> Generator[tuple[str, Name]]:
        """Everything below a directory, with its path; symlinks and unreadable directories are not entered.

        Hidden files and directories are left out unless `hidden`. Raises as `place`.
        """
        waiting = [path]
        while waiting:
            above = waiting.pop()
            if above.count("/") - path.count("/") > DEPTH:
                raise TooMuch(f"directories more than {DEPTH} deep would have to be looked at")
            try:
                found = self.names(above)
            except OSError:
                continue
            for one in found:
                if one.name.startswith(".") and not hidden:
                    continue
                inner = f"{above.rstrip('/')}/{one.name}"
                yield inner, one
                if one.kind == "d":
                    waiting.append(inner)

    def _names(self, name: str, directory: int) -> list[Name]:
        found: list[Name] = []
        with closing(os.open(name, _LIST, dir_fd=directory)) as descriptor, os.scandir(descriptor) as entries:
            for one in entries:
                self.count()
                kind = "d" if one.is_dir(follow_symlinks=False) else "l" if one.is_symlink() else "f"
                found.append(Name(one.name, kind))
        return found

    def _top(self, path: str) -> tuple[str, str]:
        """The directory from which a path is walked, without symlinks, and the rest of the path."""
        if len(path) >= PATH_MOST * 2 or not path.startswith("/"):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        for root in self._roots:  # as its path is written without symlinks, so mostly
            if path.startswith(root) and path[len(root) : len(root) + 1] in {"/", ""}:
                return root, path[len(root) + 1 :].lstrip("/") or "."
        at, waiting = "", deque(path.split("/"))
        while waiting:
            name = waiting.popleft()
            if name in {"", "."}:
                continue
            at = at.rpartition("/")[0] if name == ".." else f"{at}/{name}"
            if at in self._roots:
                return at, "/".join(waiting).lstrip("/") or "."
            target = _aliases().get(at)
            if target is not None:
                at, waiting = "", deque((*target.split("/"), *waiting))
            elif at and at not in self._ways:
                raise Unseen(path)
        raise Unseen(path, above=at or "/")

    def _root(self, path: str) -> Root:
        root = self._roots[path]
        if root is None:
            held = None if self._held is None else functools.partial(self._held, path)
            root = self._roots[path] = Root(path, path, held)
        return root


@functools.lru_cache(maxsize=64)
def _ways(roots: tuple[str, ...]) -> frozenset[str]:
    """The parents of roots; none is a symlink."""
    return frozenset(str(above) for root in roots for above in Path(root).parents)


@functools.cache
def _aliases() -> dict[str, str]:
    """Symlinks in `/`, such as `/bin`; only root can make them."""
    found: dict[str, str] = {}
    for tree in PUBLIC_TREES:
        try:
            target = os.readlink(tree)
        except OSError:
            continue
        found[tree] = target if target.startswith("/") else f"/{target}"
    return found


def _plain(roots: Iterable[str]) -> Generator[str]:
    for root in roots:
        if root != "/":
            if root not in _aliases():
                yield root
            continue
        yield from (top for name in os.listdir("/") if (top := f"/{name}") not in UNSTEADY and top not in _aliases())


def inside(path: Path, workspace: Path) -> bool:
    """Whether `path`, after its symlinks, is the workspace or below it; False if it cannot be resolved."""
    try:
        return path.resolve().is_relative_to(workspace.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def sandbox_cwd(cwd: str | None, workspace: Path) -> Path:
    """The directory in which a command runs, absolute and without symlinks; the workspace when not given.

    Relative paths and `~` start at the workspace.

    Raises:
        PathOutsideSandbox: It leaves the workspace, also through a symlink.
        InvalidCommand: It has a NUL, does not exist, or is no directory.
    """
    root = workspace.resolve()
    if cwd is None or cwd in {"", "."}:
        return root
    if "\0" in cwd:
        raise InvalidCommand("cwd holds a NUL byte; give a plain path inside the workspace")
    given = "." + cwd[1:] if cwd == "~" or cwd.startswith("~/") else cwd
    outside = PathOutsideSandbox(f"cwd {cwd!r} is outside the workspace; use a directory inside {root}")
    try:
        real, found = Sight((str(root),)).place(given if given.startswith("/") else f"{root}/{given}")
        found.close()
    except Unseen:
        raise outside from None
    except (FileNotFoundError, NotADirectoryError):
        real, found = "", None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise outside from None
        raise InvalidCommand(f"cwd {cwd!r} cannot be read ({error.strerror}); use another directory") from None
    if found is None or found.status is None:
        raise InvalidCommand(f"cwd {cwd!r} does not exist; create it first, or leave cwd out for the workspace root")
    if not stat.S_ISDIR(found.status.st_mode):
        raise InvalidCommand(f"cwd {cwd!r} is not a directory; give the directory that holds it")
    return Path(real)


MOST: Final = 5_000
"""The most matches of a pattern; a pattern with more is not expanded."""
_BRACKET: Final = re.compile(r"\[[!^]?[\w.,-]+\]")
"""A pattern that matches any one character."""


class Looking(Protocol):
    """Reads directories for `expanded`; paths are written as in the pattern."""

    def listed(self, path: str, *, hidden: bool) -> list[Name]:
        """The hidden, or the other, names in a directory; none if it cannot be read."""
        ...

    def enters(self, path: str) -> bool:
        """Whether a path leads, or may lead, to a directory."""
        ...

    def meets(self, path: str) -> bool:
        """Whether a path exists, or may exist."""
        ...


def expanded(pattern: str, looking: Looking, *, wide: bool = False) -> list[str]:
    """The sorted matches of a pattern; with `wide` a superset, for any meaning of a bracket. TooMuch above `MOST`."""
    found: list[tuple[str, Name | None]] = [("/" if pattern.startswith("/") else "", None)]
    parts = [part for part in pattern.split("/") if part]

    def enters(path: str, one: Name | None) -> bool:
        return one.kind == "d" if one is not None and one.kind != "l" else looking.enters(path)

    for index, part in enumerate(parts):
        if not any(sign in part for sign in "*?["):
            found = [(os.path.join(base, part), None) for base, _ in found]
            continue
        matching = _matching(part, wide=wide)
        grown: list[tuple[str, Name | None]] = []
        for base, _ in found:
            names = looking.listed(base or ".", hidden=part.startswith("."))
            grown += [(os.path.join(base, one.name), one) for one in names if matching.fullmatch(one.name)]
            if len(grown) > MOST:
                raise TooMuch(f"{pattern} stands for too many files")
        last = index == len(parts) - 1
        found = grown if last else [(path, one) for path, one in grown if enters(path, one)]
    if pattern.endswith("/"):
        return sorted(f"{path}/" for path, one in found if enters(path, one))
    return sorted(path for path, one in found if one is not None or looking.meets(path))


def _matching(part: str, *, wide: bool) -> re.Pattern[str]:
    """The regular expression of a pattern of bash; it matches in bounded time."""
    # Brackets depend on the locale, and an unclosed bracket is literal: `wide` accepts every possible meaning.
    part = _BRACKET.sub("?", part) if wide else part
    return re.compile(".*" if wide and "[" in part else fnmatch.translate(part), re.DOTALL)
