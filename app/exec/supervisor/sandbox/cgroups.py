"""Limits for all processes of a sandbox instance together, by cgroup: detected by trying, never required.

Groups are made below our own cgroup, so our limits hold for them too. cgroup v1 (memory, pids): as root. cgroup v2:
below a unit that systemd delegated (Delegate=yes with DelegateSubgroup=), or below the root of a cgroup namespace
without other processes, as in a container.

Memory includes swap and files in a tmpfs; at the limit the kernel kills one process of the group. Processes are tasks,
so each thread counts; at the limit fork fails with EAGAIN. Files in a tmpfs count until they are removed, and killing
frees none: if the tmpfs of an instance can hold more than its memory limit, filling it kills all its processes and each
later command.
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
"""Instances cannot have these names."""
_AGAIN_S: Final = 5.0
_ALONE: Final = "file size by rlimit, processes by rlimit for each instance"
_TOGETHER: Final = "file size by rlimit, processes not at all: this kernel would count those of the whole user"


class Group:
    """The limits of one instance, with a descriptor for each hierarchy until it is removed."""

    def __init__(self, folders: list[str], doors: list[int]) -> None:
        self._folders = folders
        self._doors = doors

    def join(self) -> None:
        """Put the calling process and its future children under these limits; for a forked child before its exec."""
        for fd in self._doors:
            os.write(fd, b"0")

    def remove(self) -> bool:
        """Remove it; False while it still has a process, so try again later."""
        while self._doors:
            os.close(self._doors.pop())
        self._folders = [folder for folder in self._folders if not _removed(folder)]
        return not self._folders


class Cgroups:
    """Groups of one state directory, which `owner` names; errors are passed to `note`."""

    def __init__(self, owner: str, note: Callable[[str], None]) -> None:
        self._prefix = f"{PREFIX}.{owner}."
        self._note = note
        self._hierarchies: list[Hierarchy] = []
        self.memory = self.processes = False
        self.says = ""
        """What can be limited here, in one sentence."""

    def probe(self, ours: Collection[int] = ()) -> None:
        """Detect what can be limited by making a group and joining it; call this once, first.

        `ours` are other pids that may be moved into a separate group, which cgroup v2 needs in a container. Only that
        group remains.
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
        """The group of that name with these limits (0 is none), made if missing; None if nothing can be limited."""
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
        """Remove empty groups of this state directory, except those in `keep`; how many could not be removed.

        Groups below a cgroup that we were in earlier stay there, empty.
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
    """Make the group and set its limits; a descriptor of the file by which a process joins."""
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
    """The groups of all instances; what the machine supports is detected when the first sandbox is needed."""

    def __init__(self, loop: Loop, keeper: Callable[[], int | None], note: Callable[[str], None]) -> None:
        self._loop = loop
        self._keeper = keeper
        self._note = note
        self._cgroups: Cgroups | None = None
        self._groups: dict[str, Group] = {}
        self.kept: list[str] = []
        """Instances of the last supervisor, whose groups are still needed; its other groups are removed."""
        self._alone: dict[tuple[int, int] | None, bool] = {}

    def says(self, who: tuple[int, int] | None) -> str:
        """The limits of a sandbox of this user here, in one sentence."""
        return f"{self._tried().says}; {_ALONE if self._counted_alone(who) else _TOGETHER}"

    def together(self, who: tuple[int, int] | None) -> tuple[bool, bool]:
        """Whether memory, and whether processes, are limited for all commands of a sandbox together."""
        found = self._tried()
        return found.memory, found.processes or self._counted_alone(who)

    def join(self, key: str, bounds: Bounds) -> Callable[[], object] | None:
        """The call by which a forked child joins the group of its instance; None if no group can limit it.

        Raises OSError if there is no room for the group now.
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
        """The bounds that each process needs in addition to the group."""
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
            # An unused group of the last supervisor, or the kernel is still ending its processes.
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
