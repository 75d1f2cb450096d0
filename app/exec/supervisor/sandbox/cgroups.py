"""Limits on all processes of a sandbox instance together, by cgroup: found by trying, never required.

Groups are made below the cgroup that we are in, so that what limits us limits them too. cgroup v1 (memory, pids): where
we may make directories, which is root. cgroup v2: below a unit that systemd delegated (Delegate=yes with
DelegateSubgroup=), or below the root of a cgroup namespace in which nobody else lives, as in a container.

What a group limits: memory is what its processes use and what they wrote into a tmpfs, swap included; at the limit the
kernel kills one process of the group, not all. Processes are tasks, so each thread counts; at the limit fork fails with
EAGAIN. What lies in a tmpfs counts until it is removed, and no killing frees it: an instance whose tmpfs can hold more
than the memory it may have loses all of its processes, and each command after them, when it is filled.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import hierarchies, rlimits
from shellback.exec.supervisor.sandbox.hierarchies import KINDS, MEMORY, PIDS, Hierarchy
from shellback.exec.wire.sandbox import Bounds

PREFIX: Final = "shellback"
_OURSELVES: Final = "+main"
_TRIED: Final = "+probe"
"""Names that no instance can have."""
_AGAIN_S: Final = 5.0
_ALONE: Final = "file size by rlimit, processes by rlimit for each instance"
_TOGETHER: Final = "file size by rlimit, processes not at all: this kernel would count those of the whole user"


class Group:
    """The limits of one instance. Holds a descriptor for each hierarchy until it is removed."""

    def __init__(self, folders: list[str], doors: list[int]) -> None:
        self._folders = folders
        self._doors = doors

    def join(self) -> None:
        """Put the calling process under these limits, with all that it will fork. For a forked child that is still us.

        Raises:
            OSError: The group is gone, or the kernel refuses.
        """
        for fd in self._doors:
            os.write(fd, b"0")

    def remove(self) -> bool:
        """Remove it, and say whether it is gone: it is not while a process of it is left, to be tried again then."""
        while self._doors:
            os.close(self._doors.pop())
        self._folders = [folder for folder in self._folders if not _removed(folder)]
        return not self._folders


class Cgroups:
    """Groups of one state directory, whose `owner` is a plain name of it; `note` is told what went wrong."""

    def __init__(self, owner: str, note: Callable[[str], None]) -> None:
        self._prefix = f"{PREFIX}.{owner}."
        self._note = note
        self._hierarchies: list[Hierarchy] = []
        self.memory = self.processes = False
        self.says = ""
        """What can be limited here, and one sentence of it for who reads the outcome."""

    def probe(self, ours: Collection[int] = ()) -> None:
        """Find what can be limited, by making a group and joining it. To be called once, before any other method.

        `ours` are pids beside this one that may be moved into a group of their own, which cgroup v2 needs in a
        container. Leaves that group, and nothing else.
        """
        reasons: list[str] = []
        for hierarchy in hierarchies.hierarchies(reasons, self._prefix + _OURSELVES, {os.getpid(), *ours}):
            kinds = tuple(kind for kind in hierarchy.kinds if self._limiting(kind) is None)
            tried = Hierarchy(hierarchy.version, hierarchy.folder, kinds)
            if not kinds:
                continue
            try:
                self._try(tried)
            except OSError as error:
                reasons.append(f"cgroup v{tried.version} ({' and '.join(kinds)}): {error.strerror}")
            else:
                self._hierarchies.append(tried)
        self.memory, self.processes = (self._limiting(kind) is not None for kind in KINDS)
        self.says = self._sentence(reasons)

    def make(self, name: str, *, memory_bytes: int, processes: int) -> Group | None:
        """The group of that name, made or found, under these limits (0 is none); None where nothing can be limited."""
        limits = {MEMORY: memory_bytes, PIDS: processes}
        folders: list[str] = []
        doors: list[int] = []
        try:
            for hierarchy in self._hierarchies:
                if any(limits[kind] for kind in hierarchy.kinds):
                    folders.append(os.path.join(hierarchy.folder, self._prefix + name))
                    doors.append(_made(hierarchy, folders[-1], limits))
        except OSError as error:
            Group(folders, doors).remove()
            self._note(f"no limits for sandbox {name}: {error.filename}: {error.strerror}")
            return None
        return Group(folders, doors) if folders else None

    def leftovers(self, keep: Collection[str] = ()) -> int:
        """Remove groups of this state directory that nobody is in, but those of the names in `keep`; how many stay.

        Only below the cgroup that we are in now: what was made below another one stays there, empty.
        """
        kept = {self._prefix + name for name in (*keep, _OURSELVES)}
        stayed = 0
        for hierarchy in self._hierarchies:
            with contextlib.suppress(OSError):
                for name in os.listdir(hierarchy.folder):
                    if name.startswith(self._prefix) and name not in kept:
                        stayed += not _removed(os.path.join(hierarchy.folder, name))
        return stayed

    def _try(self, hierarchy: Hierarchy) -> None:
        folder = os.path.join(hierarchy.folder, f"{self._prefix}{_TRIED}")
        door = _made(hierarchy, folder, {MEMORY: 64 << 20, PIDS: 16})
        group = Group([folder], [door])
        try:
            child = os.fork()
            if child == 0:
                number = errno.EIO
                try:
                    group.join()
                    number = 0
                except OSError as error:
                    number = error.errno or number
                finally:
                    os._exit(number)
            number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if number:
                raise OSError(abs(number), f"no process may join: {os.strerror(abs(number))}")
        finally:
            group.remove()

    def _limiting(self, kind: str) -> Hierarchy | None:
        return next((hierarchy for hierarchy in self._hierarchies if kind in hierarchy.kinds), None)

    def _sentence(self, reasons: list[str]) -> str:
        words = {MEMORY: "memory", PIDS: "processes"}
        by = [
            f"{' and '.join(words[kind] for kind in found.kinds)} by cgroup v{found.version}"
            for found in self._hierarchies
        ]
        none = [words[kind] for kind in KINDS if self._limiting(kind) is None]
        why = "; ".join(reasons) or "no cgroup file system is mounted"
        missing = f"no cgroup limits {' or '.join(none)}: {why}" if none else ""
        return "; ".join(part for part in (" and ".join(by), missing) if part)


def _made(hierarchy: Hierarchy, folder: str, limits: dict[str, int]) -> int:
    """Make the group and set its limits; the descriptor through which it is joined."""
    made = False
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            made = True
        for kind in hierarchy.kinds:
            if limits[kind]:
                for name, text in hierarchy.limits(kind):
                    hierarchies.write(
                        os.path.join(folder, name.lstrip("?")), text or str(limits[kind]), optional=name[0] == "?"
                    )
        return os.open(os.path.join(folder, hierarchy.door), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        if made:
            _removed(folder)
        raise


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class Groups:
    """Found by trying, when the first sandbox is wanted. All of its methods run on the loop's thread."""

    def __init__(self, loop: Loop, keeper: Callable[[], int | None], note: Callable[[str], None]) -> None:
        self._loop = loop
        self._keeper = keeper
        self._note = note
        self._cgroups: Cgroups | None = None
        self._groups: dict[str, Group] = {}
        self.kept: list[str] = []
        """Instances of the last supervisor, whose groups are still needed; what else it left is removed."""
        self._alone: dict[tuple[int, int] | None, bool] = {}

    def says(self, who: tuple[int, int] | None) -> str:
        """What limits a sandbox of this user here, in one sentence."""
        return f"{self._tried().says}; {_ALONE if self._counted_alone(who) else _TOGETHER}"

    def together(self, who: tuple[int, int] | None) -> tuple[bool, bool]:
        """Whether memory, and whether processes, are bounded for all commands of a sandbox together."""
        found = self._tried()
        return found.memory, found.processes or self._counted_alone(who)

    def join(self, key: str, bounds: Bounds) -> Callable[[], object] | None:
        """What a forked child of an instance does to be held to its bounds, None where no group can do that.

        Raises:
            OSError: A group can, and there is no room for it now.
        """
        cgroups = self._tried()
        if not bounds.memory_bytes and not bounds.processes:
            return None
        if key not in self._groups:
            made = cgroups.make(key, memory_bytes=bounds.memory_bytes, processes=bounds.processes)
            if made is None:
                if (bounds.memory_bytes and cgroups.memory) or (bounds.processes and cgroups.processes):
                    raise OSError(errno.EAGAIN, f"no group for sandbox {key}")
                return None
            self._groups[key] = made
        return self._groups[key].join

    def for_each(self, bounds: Bounds, who: tuple[int, int] | None) -> Bounds:
        """The bounds that each process has to be given beside the group."""
        return replace(
            bounds,
            processes=bounds.processes if self._counted_alone(who) else 0,
            data_bytes=0 if self._tried().memory else bounds.data_bytes,
        )

    def drop(self, key: str) -> None:
        """Remove the group of an instance that has ended."""
        group = self._groups.pop(key, None)
        inherited = key in self.kept
        if inherited:
            self.kept.remove(key)
        if inherited if group is None else not group.remove():
            # Nobody has used the last supervisor's since, or the kernel is still at it.
            self._loop.after(_AGAIN_S, self._sweep)

    def _sweep(self) -> None:
        self._tried().leftovers(keep={*self._groups, *self.kept})

    def _tried(self) -> Cgroups:
        if self._cgroups is None:
            self._cgroups = Cgroups(procfs.mark("").lstrip("@"), self._note)
            self._cgroups.probe({pid for pid in (self._keeper(),) if pid is not None})
            self._cgroups.leftovers(keep=self.kept)
        return self._cgroups

    def close(self) -> None:
        """Remove all groups that are empty."""
        for group in self._groups.values():
            group.remove()

    def _counted_alone(self, who: tuple[int, int] | None) -> bool:
        if who not in self._alone:
            self._alone[who] = who is None or rlimits.counts_by_namespace(*who)
        return self._alone[who]
