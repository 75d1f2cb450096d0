"""What a mount would bring: every directory, file and symlink, looked at before anything is copied."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.backends.mounts.mount import WORKDIR, HostMount, Roots
from shellback.exec.core.display import shown_line
from shellback.exec.core.errors import MountUnusable
from shellback.exec.wire.descriptors import closing

ENTRIES: Final = 200_000
"""Directories, files and symlinks that one mount is looked through for."""
MOUNT_BYTES: Final = 2**30
"""Bytes of one mount that names no bound of its own."""
DEPTH: Final = 100
PATHS: Final = 20
"""Files of one mount that a preview names."""
CHARS: Final = 4_000
"""Of a whole preview."""

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing to make at `path` in the workspace, from the real path `source`. `seen` is what says of it changed."""

    path: str
    source: str
    mode: int
    size: int = 0
    seen: tuple[int, ...] = ()
    link: str | None = None

    @property
    def is_directory(self) -> bool:
        """Whether it is one."""
        return stat.S_ISDIR(self.mode)


def plan(mounts: Sequence[HostMount], roots: Roots) -> list[Entry]:
    """Everything that the mounts bring together; MountUnusable if one cannot be copied whole, or two bring the same."""
    found: dict[str, tuple[HostMount, Entry]] = {}
    for mount in mounts:
        for entry in _Walk(mount, roots).entries():
            other = found.get(entry.path)
            if other is not None and not (other[1].is_directory and entry.is_directory):
                raise MountUnusable(
                    f"the mounts of {other[0].shown} and {mount.shown} both bring {entry.path or 'it all'}"
                )
            found.setdefault(entry.path, (mount, entry))
    for path, (mount, _) in found.items():
        for above in above_of(path):
            if above in found and not found[above][1].is_directory:
                raise MountUnusable(
                    f"the mount of {mount.shown} needs the directory {above}, which is a file of another mount"
                )
    return [entry for _, (_, entry) in sorted(found.items())]


def preview(
    mounts: Sequence[HostMount],
    *,
    roots: Sequence[str | os.PathLike[str]],
    secret: Callable[[Path], bool] = lambda _: False,
    workdir: str = WORKDIR,
) -> str:
    """What mounts bring, in a few lines for people and models: each with its first files; "" for none. Blocks.

    Raises:
        MountUnusable: One cannot be copied.
    """
    if not mounts:
        return ""
    lines = ["Copied from the host when the workspace was made; what changes there since does not change here:"]
    with Roots(roots, secret) as opened:
        for mount in mounts:
            files = [entry for entry in plan([mount], opened) if not entry.is_directory]
            size = sum(entry.size for entry in files)
            where = f"{workdir}/{mount.target}".rstrip("/")
            lines.append(f"- {shown_line(where)}: {len(files):,} files, {size:,} bytes, from {shown_line(mount.shown)}")
            lines += [f"    {shown_line(entry.path)} ({entry.size:,} bytes)" for entry in files[:PATHS]]
            if len(files) > PATHS:
                lines.append(f"    and {len(files) - PATHS:,} more")
    text = "\n".join(lines)
    return text if len(text) <= CHARS else text[: CHARS - 2].rpartition("\n")[0] + "\n…"


def signature(status: os.stat_result) -> tuple[int, ...]:
    """What of a file changes when it does."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _Walk:
    def __init__(self, mount: HostMount, roots: Roots) -> None:
        self._mount = mount
        self._roots = roots
        self._start = roots.find(mount)
        self._looked_at = 0
        self._bytes = 0

    def entries(self) -> list[Entry]:
        """All that a mount brings, each directory before what is in it."""
        found = list(self._at(self._start, "", ()))
        if self._mount.include_glob:  # directories only where a file needs them
            needed = {above for entry in found if not entry.is_directory for above in above_of(entry.path)}
            found = [entry for entry in found if not entry.is_directory or entry.path in needed]
        return found

    def _at(self, source: str, path: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
        """What is at the real path `source`, which is `path` from the mount's beginning."""
        try:
            status = os.stat(source, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield from self._directory(source, path, above)
            elif stat.S_ISREG(status.st_mode):
                yield from self._file(source, path)
            elif stat.S_ISLNK(status.st_mode):
                yield from self._symlink(source, path, above)
            elif self._mount.takes(path or os.path.basename(source)):
                kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
                raise self._refused(f"{source} is {kind}, which cannot be copied: leave it out with exclude_glob")
        except OSError as error:
            raise self._refused(f"{error.filename or source}: {error.strerror}") from None

    def _directory(self, source: str, path: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
        self._no_secret(source)
        with closing(self._roots.open(source)) as fd:
            status = os.fstat(fd)
            here = status.st_dev, status.st_ino
            if here in above:
                raise self._refused(f"a symlink leads from {source} back to a directory that it is in")
            if len(above) == DEPTH:
                raise self._refused(f"{source} is more than {DEPTH} directories deep")
            names = sorted(os.listdir(fd))
        yield Entry(path=self._target(path), source=source, mode=status.st_mode)
        for name in names:
            self._looked_at += 1
            if self._looked_at > ENTRIES:
                raise self._refused(f"it has more than {ENTRIES:,} entries: leave directories out with exclude_glob")
            inner = posixpath.join(path, name)
            if not self._mount.leaves_out(inner):
                yield from self._at(f"{source.rstrip('/')}/{name}", inner, (*above, here))

    def _file(self, source: str, path: str) -> Iterator[Entry]:
        if not self._mount.takes(path or os.path.basename(source)):
            return
        self._no_secret(source)
        with closing(self._roots.open(source)) as fd:  # what cannot be read is told before anything is copied
            status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise self._refused(f"{source} is another kind of file each time it is looked at")
        bound = self._mount.max_bytes or MOUNT_BYTES
        self._bytes += status.st_size
        if self._bytes > bound:
            raise self._refused(
                f"its files have more than {bound:,} bytes, which is the bound (max_bytes): choose fewer with"
                " include_glob or exclude_glob, or raise it"
            )
        yield Entry(
            path=self._target(path) or os.path.basename(source),
            source=source,
            mode=status.st_mode,
            size=status.st_size,
            seen=signature(status),
        )

    def _symlink(self, source: str, path: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
        if not self._mount.follow_symlinks and not self._mount.takes(path or os.path.basename(source)):
            return
        link, real = os.readlink(source), os.path.realpath(source)
        if self._mount.follow_symlinks:
            if self._roots.root_of(real) is None:
                raise self._refused(
                    f"{source} is a symlink to {real}, which is in none of the directories that mounts may come from"
                )
            yield from self._at(real, path, above)
            return
        if link.startswith("/") or not (real == self._start or real.startswith(f"{self._start}/")):
            raise self._refused(
                f"{source} is a symlink to {link}, which is not in the mount: leave it out with exclude_glob, or copy"
                " what it names with follow_symlinks"
            )
        yield Entry(path=self._target(path), source=source, mode=stat.S_IFLNK | 0o777, link=link)

    def _no_secret(self, source: str) -> None:
        if self._roots.secret(Path(source)):
            raise self._refused(f"{source} may be a secret (name or SECRET_PATHS): leave it out with exclude_glob")

    def _target(self, path: str) -> str:
        return posixpath.join(self._mount.target, path).rstrip("/") if path else self._mount.target

    def _refused(self, why: str) -> MountUnusable:
        return MountUnusable(f"the mount of {self._mount.shown} is refused: {why}. Nothing was copied")


def above_of(path: str) -> Iterator[str]:
    """The directories that a path in the workspace is in, the nearest first; "" is the workspace."""
    while path:
        path = posixpath.dirname(path)
        yield path
