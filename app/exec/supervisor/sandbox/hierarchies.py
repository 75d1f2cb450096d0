"""The cgroups that we are in, and those below which we may make groups.

Sources: cgroups(7); Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst of the kernel; systemd.resource-control(5).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shellback.exec.wire import linux

MEMORY: Final = "memory"
PIDS: Final = "pids"
KINDS: Final = (MEMORY, PIDS)
_DELEGATED: Final = ("user.delegate", "trusted.delegate")

# Lowering a limit: swap after memory. Raising it: swap before memory.
_SWAP: Final = "?memory.memsw.limit_in_bytes"
_V1: Final = {
    MEMORY: ((_SWAP, "-1"), ("memory.limit_in_bytes", ""), (_SWAP, "")),
    PIDS: (("pids.max", ""),),
}
_V2: Final = {
    MEMORY: (("?memory.swap.max", "0"), ("memory.max", "")),
    PIDS: (("pids.max", ""),),
}
"""Files of a group and their content, "" for the limit; with "?" the file may be missing."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A cgroup in which we can make groups, and what they limit."""

    version: int
    folder: str
    kinds: tuple[str, ...]

    def limits(self, kind: str) -> tuple[tuple[str, str], ...]:
        return (_V1 if self.version == 1 else _V2)[kind]

    @property
    def door(self) -> str:
        # A single thread moves itself at once. With cgroup.procs the kernel stops all forks of the machine first: 13 ms
        # instead of 0.08 ms here.
        return "tasks" if self.version == 1 else "cgroup.procs"


def write(path: str, text: str, *, optional: bool = False) -> None:
    try:
        with linux.opened(path, os.O_WRONLY) as fd:
            os.write(fd, text.encode())
    except OSError as error:
        if not (optional and isinstance(error, FileNotFoundError)):
            raise OSError(error.errno, error.strerror, path) from None


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _lines(path: str) -> list[str]:
    # Not `splitlines`: names may contain other line ends of Python.
    return [line for line in read(path).split("\n") if line]


def _mounts() -> Iterator[tuple[str, list[str], str, str]]:
    """Each cgroup file system: kind, options, the root of what it shows, and its mount point."""
    for left, _, right in (line.partition(" - ") for line in _lines("/proc/self/mountinfo")):
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup2", "cgroup"}:
            root, mount = left.split(" ")[3:5]
            yield kind, options.rpartition(" ")[2].split(","), root, mount


def hierarchies(reasons: list[str], leaf: str, ours: set[int]) -> Iterator[Hierarchy]:
    """Cgroups that we are in and what may be limited below them, v2 first; adds refusals to `reasons`."""
    try:
        own = [line.split(":", 2)[1:] for line in _lines("/proc/self/cgroup")]
        mounts = sorted(_mounts(), key=lambda mount: mount[0], reverse=True)
    except OSError as error:
        reasons.append(f"/proc: {error.strerror}")
        return
    paths = {name: path for names, path in own for name in names.split(",")}
    for kind, options, root, mount in mounts:
        names = tuple(name for name in KINDS if name in options)
        path = paths.get("" if kind == "cgroup2" else names[0] if names else "-", "")
        folder = _below(mount, root, path)
        if folder is None:
            continue
        if kind == "cgroup":
            yield Hierarchy(1, folder, names)
            continue
        try:
            yield _delegated(folder, path, leaf, ours)
        except OSError as error:
            reasons.append(f"cgroup v2: {error.strerror}")


def memory_bytes() -> int:
    """The memory of the machine, or the limit of our cgroup if that is less."""
    found = [int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    with contextlib.suppress(OSError, ValueError):
        own = [line.split(":", 2) for line in _lines("/proc/self/cgroup")]
        for kind, options, root, mount in _mounts():
            wanted = "" if kind == "cgroup2" else MEMORY
            for _, names, path in own if wanted in ("", *options) else ():
                if wanted in names.split(","):
                    found += _limits_of(_below(mount, root, path), mount)
    return min(found)


def _limits_of(folder: str | None, top: str) -> Iterator[int]:
    """The memory limits of a group and of its visible parents."""
    while folder is not None and folder.startswith(top):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                yield int(read(os.path.join(folder, name)))  # `max` is no number
        folder = os.path.dirname(folder) if folder != "/" else None


def _below(mount: str, root: str, path: str) -> str | None:
    """The directory of cgroup `path` in a mount that shows the hierarchy from `root` on; None if it is not shown."""
    if not path.startswith("/") or path.startswith("/.."):
        return None
    inside = os.path.relpath(path, root)
    return None if inside.startswith("..") else os.path.normpath(os.path.join(mount, inside))


def _delegated(folder: str, path: str, leaf: str, ours: set[int]) -> Hierarchy:
    """The v2 cgroup in which we may make groups, with its controllers enabled; OSError says why there is none."""
    above = os.path.dirname(folder)
    if os.path.basename(folder) == leaf or (path != "/" and _is_delegated(above)):
        folder, path = above, os.path.dirname(path)
    kinds = tuple(kind for kind in KINDS if kind in read(os.path.join(folder, "cgroup.controllers")).split())
    if not kinds:
        raise OSError(errno.ENOENT, "it has no controller of memory or processes here")
    if path != "/" and not _is_delegated(folder):
        raise OSError(errno.EPERM, "our unit is not delegated to us (systemd: Delegate=yes and DelegateSubgroup=main)")
    switch, text = os.path.join(folder, "cgroup.subtree_control"), " ".join(f"+{kind}" for kind in kinds)
    try:
        write(switch, text)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        # A group with limits may not contain both processes and groups: move our processes, no others.
        pids = {int(word) for word in read(os.path.join(folder, "cgroup.procs")).split()}
        if not pids <= ours:
            text = "our cgroup has processes of others in it (systemd: DelegateSubgroup=main)"
            raise OSError(errno.EBUSY, text) from None
        os.makedirs(os.path.join(folder, leaf), exist_ok=True)
        for pid in pids:
            write(os.path.join(folder, leaf, "cgroup.procs"), str(pid))
        write(switch, text)
    return Hierarchy(2, folder, kinds)


def _is_delegated(folder: str) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False
