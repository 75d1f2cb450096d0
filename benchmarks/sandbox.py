"""Commands in sandboxes: what one costs over the host, the first of an instance, many in one, and the end of a tree."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bulk import MB, Told, pss, runs
from benchmarks.harness import Bench, Figure, Options, Reading, absent, alternate, floor_ms, ms
from benchmarks.rig import CONVERSATION, SOON_S, Rig, ground, rig, terminate
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.probe import probe
from shellback.exec.core import limits
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.core.model import EndedBy, Session
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.supervisor.process import procfs

TRUE: Final = "true"
SESSIONS: Final = 100
AT_ONCE: Final = 200
SLEEPERS: Final = 5
TREE: Final = (
    "setsid sleep {name} & (setsid sh -c 'sleep {name} & sleep {name}' &); (sleep {name} &); sleep {name} & wait"
)
_names = itertools.count(86_400_000)
"""Seconds that no other process sleeps: how those of one tree are found, whatever they have become."""


def refused(options: Options) -> str:
    """Why no command can run in a sandbox on this machine, "" where they can.

    Raises:
        RuntimeError: It did not go well this time, which says nothing about the next.
    """
    try:
        found = probe(BubblewrapBackend(ground(options.directory).workspace))
    except (BackendUnavailable, WorkspaceUnusable) as error:
        return str(error)
    if not found.ok and found.passing:
        raise RuntimeError(found.why)
    return found.why


@contextlib.asynccontextmanager
async def both(options: Options) -> AsyncGenerator[tuple[Rig, Rig]]:
    """One whose commands run in sandboxes, one whose run on the host."""
    inside, outside = ground(options.directory), ground(options.directory)
    async with rig(inside, backend=BubblewrapBackend(inside.workspace)) as boxed, rig(outside) as plain:
        yield boxed, plain


async def took(made: Rig, conversation: str, command: str = TRUE) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    outcome = await made.run(command, conversation=conversation)
    seconds = time.perf_counter() - began
    end = outcome.session.end
    if end is None or end.exit_code != 0:
        raise RuntimeError(f"`{command}` ended with {end}")
    return seconds


async def command(options: Options) -> Mapping[str, Reading]:
    async with both(options) as (boxed, plain):
        ours, theirs = await alternate(
            options.samples(), lambda: took(boxed, "running"), lambda: took(plain, "running")
        )
    return {"sandbox command": Reading(measured=ms(ours), baseline=ms(theirs))}


async def burst(options: Options) -> Mapping[str, Reading]:
    rates: list[float] = []
    floor = await floor_ms(options.samples(50))
    where = ground(options.directory)
    async with rig(where, backend=BubblewrapBackend(where.workspace)) as made:
        await made.run(TRUE)
        for _ in range(3 if options.quick else 5):
            await asyncio.sleep(0.2)
            began = time.perf_counter()
            await asyncio.gather(*(took(made, CONVERSATION) for _ in range(AT_ONCE)))
            rates.append(AT_ONCE / (time.perf_counter() - began))
    return {"sandbox burst": Reading(measured=statistics.median(rates), floor=floor)}


async def cold(options: Options) -> Mapping[str, Reading]:
    names = itertools.count()
    async with both(options) as (boxed, _):
        new, old = await alternate(
            options.samples(60), lambda: took(boxed, f"new-{next(names)}"), lambda: took(boxed, "running")
        )
    return {"sandbox cold start": Reading(measured=ms(new), baseline=ms(old), note="beside it: in a running instance")}


async def many(options: Options) -> Mapping[str, Reading]:
    told = Told(SESSIONS)
    where = ground(options.directory)
    store = MemorySessionStore(sink=told)
    async with rig(where, store, backend=BubblewrapBackend(where.workspace)) as made:
        await made.run(TRUE)
        ours = await made.processes()
        before = sum(map(pss, ours))
        began = time.perf_counter()
        sessions = await asyncio.gather(*(made.launch("sleep 3600") for _ in range(SESSIONS)))
        seconds = time.perf_counter() - began
        alive = await _running(sessions)
        grown = sum(map(pss, ours)) - before
        firsts = set(procfs.children(ours[0])) - {session.pid for session in sessions}
        memory = grown + sum(map(pss, firsts))
        told.sessions.clear()
        for session in sessions:
            terminate(session.pid, session.id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                await told.enough.wait()
        await asyncio.sleep(0.2)
    # More ends than sessions would be as wrong as fewer.
    once = len(told.sessions) if len(set(told.sessions)) == len(told.sessions) else -1
    note = f"{grown / MB:.1f} MB of all in supervisor and keeper, the rest in {len(firsts)} first processes"
    return {
        "sandbox sessions": Reading(measured=alive),
        "sandbox callbacks": Reading(measured=once),
        "sandbox each": Reading(measured=ms(seconds) / SESSIONS),
        "sandbox memory": Reading(measured=memory / MB / SESSIONS, note=note),
    }


async def _running(sessions: Sequence[Session]) -> int:
    """How many run at once, each of them soon after it was said to be started."""
    until = time.monotonic() + SOON_S
    while True:
        alive = sum(map(runs, sessions))
        if alive == len(sessions) or time.monotonic() > until:
            return alive
        await asyncio.sleep(0.05)


async def tree(options: Options) -> Mapping[str, Reading]:
    left: list[int] = []
    taken: list[float] = []

    async def inside(made: Rig) -> float:
        seconds, survivors = await _killed(made)
        taken.append(seconds)
        left.append(survivors)
        return seconds

    async def outside(made: Rig) -> float:
        return (await _killed(made))[0]

    async with both(options) as (boxed, plain):
        ours, theirs = await alternate(options.samples(60), lambda: inside(boxed), lambda: outside(plain))
    note = f"longest {ms(max(taken)):.1f} ms; beside it: the same on the host"
    return {
        "sandbox kill": Reading(measured=ms(ours), baseline=ms(theirs), note=note),
        "sandbox survivors": Reading(measured=sum(left), note=f"of {len(left)} trees of {SLEEPERS} sleepers each"),
    }


async def _killed(made: Rig) -> tuple[float, int]:
    """Seconds until a tree was said to be gone, and how many of it were not."""
    name = next(_names)
    session = await made.launch(TREE.format(name=name))
    until = time.monotonic() + SOON_S
    while len(_sleepers(name)) < SLEEPERS:
        if time.monotonic() > until:
            raise TimeoutError("a tree has not grown")
        await asyncio.sleep(0.005)
    began = time.perf_counter()
    left = await made.client.kill(session.id, grace_s=limits.KILL_GRACE_S, ended_by=EndedBy.PERSON.value)
    seconds = time.perf_counter() - began
    return seconds, max(len(left), len(_sleepers(name)))


def _sleepers(name: int) -> list[int]:
    found: list[int] = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{name}\0".encode():
                found.append(int(pid))
    return found


def _bench(
    name: str, measure: Callable[[Options], Coroutine[Any, Any, Mapping[str, Reading]]], *figures: Figure
) -> Bench:
    def run(options: Options) -> Mapping[str, Reading]:
        why = refused(options)
        return absent(figures, why) if why else asyncio.run(measure(options))

    return Bench(name=name, run=run, figures=figures)


BENCHES = (
    _bench(
        "sandbox command",
        command,
        Figure(
            name="sandbox command",
            says="`true` through the engine in a running sandbox instance - the same on the host",
            compare="difference",
            limit=6.0,
        ),
    ),
    _bench(
        "sandbox burst",
        burst,
        Figure(
            name="sandbox burst",
            says=f"{AT_ONCE} times `true` at once in a running sandbox instance, to their ends",
            unit="/s",
            limit=150.0,
            at_least=True,
            scaled=True,
        ),
    ),
    _bench(
        "sandbox cold start",
        cold,
        Figure(name="sandbox cold start", says="`true` as the first command of a sandbox instance", limit=60.0),
    ),
    _bench(
        "sandbox sessions",
        many,
        Figure(
            name="sandbox sessions",
            says=f"of {SESSIONS} background sleeps in one instance, running at once",
            unit="",
            limit=SESSIONS,
            at_least=True,
        ),
        Figure(
            name="sandbox callbacks",
            says="ends of theirs that the sink was told, once each",
            unit="",
            limit=SESSIONS,
            at_least=True,
        ),
        Figure(name="sandbox each", says=f"time for each of {SESSIONS}, started at once"),
        Figure(name="sandbox memory", says="Pss for each, beside that of the command", unit="MB"),
    ),
    _bench(
        "sandbox kill",
        tree,
        Figure(
            name="sandbox kill",
            says="kill of a tree with `setsid` and double-forked children until it is known to be gone",
            limit=50.0,
        ),
        Figure(name="sandbox survivors", says="processes of these trees that were left", unit="", limit=0.0),
    ),
)
