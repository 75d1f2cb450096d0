"""What it costs to follow output: others while much is streamed, and sessions that print nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.calls import exit_through
from benchmarks.harness import SETTLE_S, Bench, Figure, Options, Reading, ms
from benchmarks.rig import Rig, ground, rig

MB: Final = 1_000_000
PACE_S: Final = 0.1
FOLLOWERS: Final = 3
LINE: Final = b"2026-11-22 12:00:00.000 INFO  app.requests handled path=/items/42 status=200 ms=12 bytes=4711\n"
IDLE: Final = 100
IDLE_S: Final = 10.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


def beside(options: Options) -> Mapping[str, Reading]:
    """From the end of a process until the engine knows, while another prints 100 MB a second, followed or not."""
    return asyncio.run(_beside(options))


async def _beside(options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    (where.workspace / "block").write_bytes(LINE * int(100 * MB * PACE_S // len(LINE)))
    taken: dict[int, list[float]] = {0: [], FOLLOWERS: []}
    read: list[float] = []
    names = itertools.count()
    async with rig(where) as made:
        # In this order nobody profits from what the machine does meanwhile.
        for followers in (0, FOLLOWERS, FOLLOWERS, 0):
            async with _printing(made, followers, read):
                for number in range(-3, options.samples() // 2):
                    took = await exit_through(made, f"gate-{next(names)}")
                    if number >= 0:
                        taken[followers].append(took)
                    await asyncio.sleep(SETTLE_S)
    alone, followed = (statistics.median(taken[followers]) for followers in (0, FOLLOWERS))
    note = f"each of {FOLLOWERS} read {statistics.mean(read):.0f} MB/s"
    return {"wake beside 3 followers of 100 MB/s": Reading(measured=ms(followed), baseline=ms(alone), note=note)}


@contextlib.asynccontextmanager
async def _printing(made: Rig, followers: int, read: list[float]) -> AsyncGenerator[None]:
    """A command that prints 100 MB a second, with so many that read all of it; their MB a second go to `read`."""
    from shellback.exec.shell import AsyncShell
    from shellback.exec.shell.permit import ByOperator

    shell = AsyncShell(made.engine, ByOperator(made.engine))
    printing = await shell.spawn(f"while :; do sleep {PACE_S} & cat block; wait; done")
    first = asyncio.Event()

    async def follow() -> None:
        size, began = 0, time.monotonic()
        try:
            async for chunk in printing.stream():
                size += len(chunk.text)
                first.set()
        finally:
            read.append(size / (time.monotonic() - began) / MB)

    tasks = [asyncio.create_task(follow()) for _ in range(followers)]
    try:
        if followers:
            await first.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await printing.kill()


def idle(options: Options) -> Mapping[str, Reading]:
    """What worker, supervisor and keeper use of a core while each of 100 sessions is followed and prints nothing."""
    return asyncio.run(_idle(options))


async def _idle(options: Options) -> Mapping[str, Reading]:
    from shellback.exec.engine.following import Follower

    seconds = IDLE_S / 3 if options.quick else IDLE_S
    async with rig(ground(options.directory)) as made:
        sessions = [await made.launch("exec sleep 3600") for _ in range(IDLE)]

        async def follow(follower: Follower) -> None:
            while True:
                await follower.grown(0)

        tasks = [asyncio.create_task(follow(Follower(made.engine, session))) for session in sessions]
        await asyncio.sleep(1.0)
        pids = (os.getpid(), *await made.processes())
        before, began = [_cpu(pid) for pid in pids], time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        shares = [100 * (_cpu(pid) - was) / took for pid, was in zip(pids, before, strict=True)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    note = "worker {:.2f} %, supervisor {:.2f} %, keeper {:.2f} %".format(*shares)
    return {"100 idle sessions": Reading(measured=sum(shares), note=note)}


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


BENCHES = (
    Bench(
        name="following",
        run=beside,
        figures=(
            Figure(
                name="wake beside 3 followers of 100 MB/s",
                says="exit to the engine's knowledge, beside a command that prints 100 MB/s / the same, unfollowed",
                compare="ratio",
                limit=1.2,
            ),
        ),
    ),
    Bench(
        name="idle",
        run=idle,
        figures=(
            Figure(
                name="100 idle sessions",
                says="of a core: worker, supervisor and keeper, while each is followed",
                unit="%",
                limit=1.0,
            ),
        ),
    ),
)
