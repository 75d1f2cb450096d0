"""What holds the commands of a sandbox to their bounds here: groups of the kernel where there are any, rlimits else."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from shellback.exec.supervisor.loop import Loop
from shellback.exec.supervisor.process import procfs
from shellback.exec.supervisor.sandbox import rlimits
from shellback.exec.supervisor.sandbox.cgroups import Cgroups, Group
from shellback.exec.wire.sandbox import Bounds

_AGAIN_S: Final = 5.0
_ALONE: Final = "file size by rlimit, processes by rlimit for each instance"
_TOGETHER: Final = "file size by rlimit, processes not at all: this kernel would count those of the whole user"


class Groups:
    """Found by trying, when the first sandbox is wanted. All of its methods run on the loop's thread."""

    def __init__(self, loop: Loop, keeper: Callable[[], int | None], note: Callable[[str], None]) -> None:
        self._loop = loop
        self._keeper = keeper
        self._note = note
        self._cgroups: Cgroups | None = None
        self._memory = False
        self._processes = False
        self._groups: dict[str, Group] = {}
        self.kept: list[str] = []
        """Instances of the last supervisor, whose groups are still needed; what else it left is removed."""
        self._alone: dict[tuple[int, int] | None, bool] = {}
        self._says = ""

    def says(self, who: tuple[int, int] | None) -> str:
        """What limits a sandbox of this user here, in one sentence."""
        self._tried()
        return f"{self._says}; {_ALONE if self._counted_alone(who) else _TOGETHER}"

    def together(self, who: tuple[int, int] | None) -> tuple[bool, bool]:
        """Whether memory, and whether processes, are bounded for all commands of a sandbox together."""
        self._tried()
        return self._memory, self._processes or self._counted_alone(who)

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
                if (bounds.memory_bytes and self._memory) or (bounds.processes and self._processes):
                    raise OSError(errno.EAGAIN, f"no group for sandbox {key}")
                return None
            self._groups[key] = made
        return self._groups[key].join

    def for_each(self, bounds: Bounds, who: tuple[int, int] | None) -> Bounds:
        """The bounds that each process has to be given beside the group."""
        self._tried()
        return replace(
            bounds,
            processes=bounds.processes if self._counted_alone(who) else 0,
            data_bytes=0 if self._memory else bounds.data_bytes,
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
            found = self._cgroups.probe({pid for pid in (self._keeper(),) if pid is not None})
            self._memory, self._processes, self._says = found.memory, found.processes, found.says
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
