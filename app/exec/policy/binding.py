"""The files that a command line runs, read from the file system: programs, and contents of scripts.

Contents are bound in the workspace, where the agent could change them. Files that a script reads are not followed.
Files above a size are bound by their identity alone; `unbound` lists them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from shellback.exec.core.runner import found
from shellback.exec.core.sight.place import opened
from shellback.exec.core.sight.sight import Sight, TooMuch, Unseen, expanded
from shellback.exec.policy.operands import Line, Operand, named_in
from shellback.exec.wire.descriptors import closing

PROGRAM_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 16 * 1024 * 1024
ALL_BYTES: Final = 64 * 1024 * 1024
FILES: Final = 64
PATTERN_NAMES: Final = 256
_CHUNK: Final = 1 << 20
_LINKS: Final = 40

Row = dict[str, Any]
"""A file in a proposal: `name` in the line, `path`, `size`, and `sha256` or the identity of the inode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The files that a command line runs.

    `scripts` also have `named`, the path by which the command opens the file, and `held`: whether a sandbox mounts the
    approved bytes there.
    """

    executables: tuple[Row, ...] = ()
    scripts: tuple[Row, ...] = ()
    unbound: tuple[str, ...] = ()

    def facts(self) -> dict[str, object]:
        return {"executables": [*self.executables], "scripts": [*self.scripts], "unbound": [*self.unbound]}


def read(
    command: str,
    *,
    cwd: str,
    workspace: Path,
    private: Sequence[str] = (),
    inner: str | None = None,
    held: Callable[[str], int] | None = None,
) -> Binding:
    """Read every file that the command line names. Blocks while it reads.

    `private` are the command's private directories, which cannot be read from here. `inner` is the workspace's path as
    the command sees it; if it differs, programs belong to an image, and the image's id stands for them. `held` opens a
    directory that this thread's user cannot reach by its path.
    """
    line = named_in(command)
    reading = _Reading(str(workspace), cwd, private, line, inner or str(workspace), Sight((str(workspace),), held=held))
    for name in line.programs if reading.inner == reading.workspace else ():
        reading.program(name)
    for operand in line.files:
        reading.file(operand)
    return reading.binding()


def changed(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """The names of the facts that differ between two proposals; '' if none do."""
    names: dict[str, None] = {}
    for key in ("executables", "scripts"):
        old, new = _by_path(before.get(key)), _by_path(now.get(key))
        names |= dict.fromkeys(name for name in (*old, *new) if old.get(name) != new.get(name))
    told = {"executables", "scripts", "unbound"} if names else set[str]()
    for key in sorted({*before, *now} - told):
        if before.get(key) != now.get(key):
            names[key.removesuffix("_device").removesuffix("_inode")] = None
    return ", ".join(names)


@dataclass(slots=True)
class _Reading:
    workspace: str
    cwd: str
    private: Sequence[str]
    line: Line
    inner: str
    sight: Sight
    _executables: dict[str, Row] = field(default_factory=dict[str, Row])
    _scripts: dict[str, Row] = field(default_factory=dict[str, Row])
    _unbound: dict[str, None] = field(default_factory=dict[str, None])
    _bytes: int = 0

    def binding(self) -> Binding:
        written = {real for name in self.line.written for _, real in self._paths(Operand(name))}
        for path, row in self._scripts.items():
            row["held"] = bool(row["held"] and row["sha256"] and path not in written)
        return Binding(
            executables=tuple(self._executables.values()),
            scripts=tuple(self._scripts.values()),
            unbound=(*self.line.unknown, *self._unbound),
        )

    def program(self, name: str) -> None:
        path = found(name)
        self._executables[name] = {"name": name, "path": None} if path is None else self._program_row(name, path)

    def _program_row(self, name: str, path: str) -> Row:
        real = os.path.realpath(path)
        try:
            identity = _identity(os.stat(real))
            sha256 = _content(real, identity) if _steady(real) else _hashed_program(real)[1]
        except OSError as error:
            return {"name": name, "path": path, "why": error.strerror}
        if sha256 is None:
            self._unbound[f"{name}: larger than {PROGRAM_BYTES >> 20} MiB, its content is not bound"] = None
        return _row(name, real, identity, sha256)

    def file(self, operand: Operand) -> None:
        for named, real in self._paths(operand):
            self._bind(operand, named, real)

    def _paths(self, operand: Operand) -> Iterator[tuple[str, str]]:
        """The files that a name may mean: the path that the command opens, and the path without symlinks."""
        name = operand.name
        if name == "~" or name.startswith("~/"):
            name = self.workspace + name[1:]
        elif f"{name}/".startswith(f"{self.inner}/"):
            name = self.workspace + name[len(self.inner) :]
        try:
            for folder in self._folders():
                path = os.path.join(folder, name)
                names = expanded(path, self.sight) if operand.globs else [path]
                if len(names) > PATTERN_NAMES:
                    self._unbound[f"{operand.name}: more than {PATTERN_NAMES} names, the others are not bound"] = None
                if operand.globs and not self.sight.sees(os.path.normpath(_fixed(path))):
                    self._unbound[f"{operand.name}: a pattern outside of the workspace, it is not bound"] = None
                for met in names[:PATTERN_NAMES]:
                    if (found := self._file(met, operand)) is not None:
                        yield found
                if os.path.isabs(name):
                    return
        except TooMuch as error:
            self._unbound[f"{operand.name}: {error}; not all of it is bound"] = None

    def _file(self, met: str, operand: Operand) -> tuple[str, str] | None:
        """A regular file, or the program in a directory: path and real path. Outside the workspace only if it runs."""
        one = os.path.join(met, "__main__.py") if operand.runs and self.sight.is_directory(met) else met
        try:
            real, place = self.sight.place(one)
        except Unseen:
            if not operand.runs:
                return None
            real = os.path.realpath(one)
            return (one, real) if os.path.isfile(real) else None
        except OSError:
            return None
        place.close()
        return (one, real) if place.status is not None and stat.S_ISREG(place.status.st_mode) else None

    def _folders(self) -> list[str]:
        places = [self.cwd]
        for folder in self.line.folders:
            # A line may change its directory repeatedly, each time from the last one.
            places += [path for place in places if (path := os.path.join(place, folder)) not in places][:FILES]
        return places[:FILES]

    def _bind(self, operand: Operand, named: str, path: str) -> None:
        if not f"{path}/".startswith(f"{self.workspace}/"):
            if not operand.runs or self.inner != self.workspace:
                return
            if any(f"{path}/".startswith(f"{place}/") for place in self.private):
                self._unbound[f"{operand.name}: in a directory of the sandbox's own, it is not bound"] = None
            elif path not in self._executables:
                self._executables[path] = self._program_row(operand.name, path)
            return
        row = self._scripts.get(path)
        if row is None:
            row = self._scripts[path] = {**self._script_row(operand.name, path), "named": named, "held": False}
        row["held"] |= bool(operand.runs) or (operand.runs is None and self._runs(path))

    def _script_row(self, name: str, path: str) -> Row:
        sha256: str | None = None
        why = ""
        try:
            _, place = self.sight.place(path, follow=False)
            with place:
                identity = _identity(place.there)
                fd = opened(place.name, place.directory)
        except (OSError, Unseen, TooMuch) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._unbound[f"{name}: {why}, its content is not bound"] = None
            return {"name": name, "path": path, "sha256": None, "why": why}
        with closing(fd):
            if len(self._scripts) >= FILES:
                why = f"more than {FILES} files"
            elif self._bytes + identity.size > ALL_BYTES:
                why = f"more than {ALL_BYTES >> 20} MiB together"
            else:
                identity, sha256 = _hashed(fd, FILE_BYTES)
                why = f"larger than {FILE_BYTES >> 20} MiB"
        if sha256 is None:
            self._unbound[f"{name}: {why}, its content is not bound"] = None
        else:
            self._bytes += identity.size
        return _row(name, path, identity, sha256)

    def _runs(self, path: str) -> bool:
        try:
            status = self.sight.status(path, follow=False)
            return (status is not None and bool(status.st_mode & 0o111)) or self.sight.content(path, 2) == b"#!"
        except (OSError, Unseen, TooMuch):
            return True


@dataclass(frozen=True, slots=True)
class _Identity:
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def ways(paths: Iterable[str], workspace: Path) -> tuple[str, ...]:
    """Every name in the workspace on the paths to these files, including symlinks and the files; parents first."""
    root, met = str(workspace), dict[str, None]()
    for path in paths:
        left, at, links = path.split("/")[::-1], "/", 0
        while left and links < _LINKS:
            part = left.pop()
            if part in {"", "."}:
                continue
            at = os.path.dirname(at) if part == ".." else os.path.join(at, part)
            if part != ".." and at.startswith(f"{root}/"):
                met[at] = None
            if os.path.islink(at):
                links += 1
                target = os.readlink(at)
                left += target.split("/")[::-1]
                at = "/" if target.startswith("/") else os.path.dirname(at)
    return tuple(sorted(met))


def _fixed(pattern: str) -> str:
    """The leading directories of an absolute pattern that contain no pattern."""
    return (
        "/".join(itertools.takewhile(lambda part: not any(sign in part for sign in "*?["), pattern.split("/"))) or "/"
    )


def _row(name: str, path: str, identity: _Identity, sha256: str | None) -> Row:
    row: Row = {"name": name, "path": path, "size": identity.size, "sha256": sha256}
    if sha256 is None:
        row |= {"device": identity.device, "inode": identity.inode, "mtime_ns": identity.mtime_ns}
    return row


def _identity(status: os.stat_result) -> _Identity:
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _steady(path: str) -> bool:
    """Whether only root can change the file; then an unchanged inode means unchanged contents."""
    while True:
        status = os.lstat(path)
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


@functools.lru_cache(maxsize=1024)
def _content(path: str, identity: _Identity) -> str | None:
    return _hashed_program(path)[1] if identity.size <= PROGRAM_BYTES else None


def _hashed_program(path: str) -> tuple[_Identity, str | None]:
    """`_hashed` of a program outside the workspace, by its real path."""
    with closing(opened(path, None)) as fd:
        return _hashed(fd, PROGRAM_BYTES)


def _hashed(fd: int, most: int) -> tuple[_Identity, str | None]:
    """The identity of a file, and the digest of its contents; None above `most` bytes."""
    identity = _identity(os.fstat(fd))
    if identity.size > most:
        return identity, None
    digest, total = hashlib.sha256(), 0
    while data := os.read(fd, _CHUNK):
        total += len(data)
        if total > most:
            return identity, None
        digest.update(data)
    return identity, digest.hexdigest()


def _by_path(rows: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for row in cast("Sequence[Row]", rows or ()):
        found[str(row["name"])] = row
    return found
