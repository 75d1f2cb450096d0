"""Many processes, and much output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading
from benchmarks.rig import Ground, Rig, ground, rig, terminate
from shellback.exec.core import limits
from shellback.exec.core.model import Session
from shellback.exec.core.ports import ExitSink
from shellback.exec.engine.memory_store import MemorySessionStore

SLEEPS: Final = 1000
MB: Final = 1_000_000
GIB: Final = 1 << 30
SOURCES: Final = {"zeros": "head -c {size} /dev/zero", "lines": "yes | head -c {size}"}
SLACK: Final = 64 * 1024
"""A file system counts whole blocks, and its own."""


class Told(ExitSink):
    """Counts ends; `enough` is set with the last one that is expected."""

    def __init__(self, expected: int) -> None:
        self.sessions: list[str] = []
        self.enough = asyncio.Event()
        self._expected = expected

    def ended(self, tx: object, session: Session) -> None:  # noqa: ARG002
        self.sessions.append(session.id)
        if len(self.sessions) == self._expected:
            self.enough.set()


def sleeps(options: Options) -> Mapping[str, Reading]:
    told = Told(SLEEPS)

    async def measure(where: Ground) -> Mapping[str, Reading]:
        store = MemorySessionStore(sink=told)
        async with rig(where, store) as made:
            gate = asyncio.Semaphore(50)

            async def start() -> Session:
                async with gate:
                    return await made.launch("sleep 3600")

            sessions = await asyncio.gather(*(start() for _ in range(SLEEPS)))
            alive = sum(map(runs, sessions))
            pids = await made.processes()
            memory = [pss(pid) for pid in pids]
            for session in sessions:
                terminate(session.pid, session.id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await told.enough.wait()
            await asyncio.sleep(0.2)
            note = f"supervisor {memory[0] / MB:.1f} MB, keeper {memory[1] / MB:.1f} MB"
            # More ends than sessions would be as wrong as fewer.
            once = len(told.sessions) if len(set(told.sessions)) == len(told.sessions) else -1
            return {
                "sleeps started": Reading(measured=alive),
                "sleeps memory": Reading(measured=sum(memory) / MB, note=note),
                "sleeps callbacks": Reading(measured=once),
            }

    return asyncio.run(measure(ground(options.directory)))


def runs(session: Session) -> bool:
    """Whether the process of a session is there, and is the session's."""
    return session.pid is not None and session.id.encode() in Path(f"/proc/{session.pid}/environ").read_bytes()


def pss(pid: int) -> int:
    """Bytes of memory; pages that several processes have are shared out among them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no Pss of {pid}")


def throughput(options: Options) -> Mapping[str, Reading]:
    size = GIB // 8 if options.quick else GIB
    rounds = 3 if options.quick else 5

    async def measure(free: Ground, capped: Ground) -> Mapping[str, Reading]:
        readings: dict[str, Reading] = {}
        async with rig(free, log_bytes=2 * GIB) as unbounded, rig(capped) as bounded:
            for name, source in SOURCES.items():
                command = source.format(size=size)
                await unbounded.run("head -c 1M /dev/zero")
                grown_from = _peak_reset()
                ours: list[float] = []
                alone: list[float] = []
                theirs: list[float] = []
                for _ in range(rounds):
                    whole, process = await _through_us(unbounded, command, size)
                    ours.append(whole)
                    alone.append(process)
                    theirs.append(await _into_file(unbounded, command))
                rate, of_process, bare = (size / MB / statistics.median(taken) for taken in (ours, alone, theirs))
                note = f"median of {rounds}; until the process has ended {of_process:.0f} MB/s, the rest is the result"
                readings[f"{name} throughput"] = Reading(measured=rate, baseline=bare, note=note)
                blocks, took = await _watched(bounded, command)
                readings[f"{name} log"] = Reading(
                    measured=blocks / MB, note=f"most at any time; {size / MB / took:.0f} MB/s with the cap on"
                )
                readings[f"{name} memory"] = Reading(measured=(_peak() - grown_from) / MB)
        return readings

    return asyncio.run(measure(ground(options.directory), ground(options.directory)))


async def _through_us(made: Rig, command: str, size: int) -> tuple[float, float]:
    """Seconds until the call has its result, and seconds that the process ran."""
    began = time.perf_counter()
    outcome = await made.run(command, timeout=600)
    took = time.perf_counter() - began
    log = made.where.home / "sessions" / outcome.session.id / "log"
    if log.stat().st_size != size or log.stat().st_blocks * 512 < size:
        raise RuntimeError(f"the log of {command!r} is not whole: {log.stat()}")
    log.unlink()
    return took, outcome.session.end.duration_s if outcome.session.end else took


async def _into_file(made: Rig, command: str) -> float:
    file = made.where.workspace / "output"
    argv, alike = await made.alike(f"{command} | cat > {file.name}")
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*argv, **alike)
    await process.wait()
    took = time.perf_counter() - began
    file.unlink()
    return took


async def _watched(made: Rig, command: str) -> tuple[int, float]:
    """The most bytes on disk that the log of a capped run ever had, and how long it took."""
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            for log in made.where.home.glob("sessions/*/log"):
                with contextlib.suppress(FileNotFoundError):
                    most = max(most, log.stat().st_blocks * 512)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    outcome = await made.run(command, timeout=600)
    took = time.perf_counter() - began
    watching.cancel()
    log = made.where.home / "sessions" / outcome.session.id / "log"
    most = max(most, log.stat().st_blocks * 512)
    log.unlink()
    return most, took


def _peak_reset() -> int:
    """Bytes that this process has now; from here on `_peak` is the most it had."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name}")


BENCHES = (
    Bench(
        name="sleeps",
        run=sleeps,
        figures=(
            Figure(name="sleeps started", says=f"of {SLEEPS} background sleeps", unit="", limit=SLEEPS, at_least=True),
            Figure(
                name="sleeps memory", says=f"Pss of supervisor + keeper with {SLEEPS} sleeps", unit="MB", limit=20.0
            ),
            Figure(
                name="sleeps callbacks",
                says="ends that the sink was told, once each",
                unit="",
                limit=SLEEPS,
                at_least=True,
            ),
        ),
    ),
    Bench(
        name="throughput",
        run=throughput,
        limit_s=900,
        figures=tuple(
            figure
            for name, source in SOURCES.items()
            for figure in (
                Figure(
                    name=f"{name} throughput",
                    says=f"`{source.format(size='1G')}`, no cap / `... | cat > file`",
                    unit="MB/s",
                    compare="ratio",
                    limit=0.5,
                    at_least=True,
                ),
                Figure(
                    name=f"{name} log",
                    says="its log on disk with the cap on",
                    unit="MB",
                    limit=(limits.LOG_BYTES + SLACK) / MB,
                ),
                Figure(name=f"{name} memory", says="growth of the worker's memory meanwhile", unit="MB", limit=8.0),
            )
        ),
    ),
)
