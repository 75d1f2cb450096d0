"""Descriptors, threads and memory of everybody over time, from /proc."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.soak.staff import Staff
from shellback.exec.supervisor.process import procfs

EVERY_S: Final = 2.0
WARM_S: Final = 10.0
"""What is younger still opens its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One process, at one moment."""

    at: float
    role: str
    descriptors: int
    threads: int
    megabytes: float


@dataclass(slots=True)
class Gauges:
    """Samples of a staff."""

    staff: Staff
    samples: list[Sample] = field(default_factory=list[Sample])
    _due: float = 0.0

    def step(self, *, full: bool) -> None:
        """Take samples if it is time; of a crowd that is not `full` they would tell of the crowd."""
        if full and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            self.samples += self.now()

    def now(self) -> list[Sample]:
        """One sample of each that is old enough."""
        pids = {f"worker {post.name}": post.worker.process.pid for post in self.staff.posts if post.worker is not None}
        for host in self.staff.hosts:
            pids |= {f"supervisor {host.name}": host.supervisor, f"keeper {host.name}": host.keeper}
        found: list[Sample] = []
        for role, pid in pids.items():
            with suppress(OSError, KeyError):  # gone, or a zombie, which has no memory
                if _age(pid) > WARM_S:
                    found.append(_sample(role, pid))
        return found


def quarters(samples: Sequence[Sample], role: str, what: str) -> tuple[float, float] | None:
    """The medians of the first and of the last quarter."""
    values: list[float] = [getattr(sample, what) for sample in samples if sample.role.startswith(role)]
    quarter = len(values) // 4
    if not quarter:
        return None
    return statistics.median(values[:quarter]), statistics.median(values[-quarter:])


def descendants(pid: int) -> int:
    """How many processes there are below it."""
    children = procfs.children(pid)
    return len(children) + sum(map(descendants, children))


def _age(pid: int) -> float:
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / 100


def _sample(role: str, pid: int) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Sample(
        at=time.time(),
        role=role,
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        megabytes=int(status["VmRSS"].split()[0]) / 1024,
    )
