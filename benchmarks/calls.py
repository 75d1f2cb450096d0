"""Single calls: foreground, background, many at once, and how soon an end is known."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, bare_true, floor_ms, ms, say
from benchmarks.rig import Gate, Ground, Rig, ground, rig, terminate

TRUE = "true"
AT_ONCE = 200


def foreground(options: Options) -> Mapping[str, Reading]:
    async def measure(where: Ground) -> Mapping[str, Reading]:
        async with rig(where) as made:
            argv, alike = await made.alike(TRUE)

            async def through_us() -> float:
                began = time.perf_counter()
                outcome = await made.run(TRUE)
                took = time.perf_counter() - began
                end = outcome.session.end
                if end is None or end.exit_code != 0:
                    raise RuntimeError(f"`{TRUE}` ended with {end}")
                return took

            async def bare() -> float:
                began = time.perf_counter()
                process = await asyncio.create_subprocess_exec(
                    *argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **alike
                )
                await process.wait()
                return time.perf_counter() - began

            ours, theirs = await alternate(options.samples(), through_us, bare)
            return {"foreground": Reading(measured=ms(ours), baseline=ms(theirs))}

    return asyncio.run(measure(ground(options.directory)))


def foreground_durable(options: Options) -> Mapping[str, Reading]:
    import sqlalchemy as sa
    from sqlalchemy import event

    from shellback.storage import schema
    from shellback.storage.db import Database
    from shellback.storage.sessions import SqlSessionStore

    async def measure(light: Ground, durable: Ground) -> Mapping[str, Reading]:
        file = durable.home / "shellback.db"
        url = f"sqlite:///{file}"
        schema.migrate(url)
        database = Database(url)
        counted = 0

        def committed(_conn: sa.Connection) -> None:
            nonlocal counted
            counted += 1

        try:
            async with rig(light) as without, rig(durable, SqlSessionStore(database)) as with_claim:
                await with_claim.run(TRUE)
                await asyncio.sleep(0.2)  # its end is recorded behind its answer
                event.listen(sa.Engine, "commit", committed)
                first = await _settled_commits(with_claim, lambda: counted)
                bare = BareCommits(durable.root / "bare.db", file, first)

                async def durable_call() -> float:
                    began = time.perf_counter()
                    await with_claim.run(TRUE)
                    return time.perf_counter() - began

                async def light_call() -> float:
                    began = time.perf_counter()
                    await without.run(TRUE)
                    return time.perf_counter() - began

                async def commits_alone() -> float:
                    return bare.once()

                before = counted
                samples, warm_up = options.samples(), 5
                ours, light_s, bare_s, floor_s = await alternate(
                    samples, durable_call, light_call, commits_alone, bare_true, warm_up=warm_up
                )
                await asyncio.sleep(0.2)
                each = (counted - before) / (samples + warm_up)
                bare.close()
        finally:
            if event.contains(sa.Engine, "commit", committed):
                event.remove(sa.Engine, "commit", committed)
            database.close()
        note = f"{each:g} commits for each call ({first} replayed); without database {ms(light_s):.2f} ms"
        note += f" + {first} bare commits {ms(bare_s):.2f} ms"
        if abs(each - first) > 0.05:
            raise RuntimeError(f"a call makes {each:g} commits, but {first} were replayed")
        return {
            "foreground durable": Reading(measured=ms(ours), baseline=ms(light_s + bare_s), note=note),
            "durable +": Reading(measured=ms(ours), baseline=ms(light_s), floor=ms(floor_s)),
        }

    return asyncio.run(measure(ground(options.directory), ground(options.directory)))


async def _settled_commits(made: Rig, count: Callable[[], int]) -> int:
    """Commits that one call makes, those after its answer included."""
    before = count()
    await made.run(TRUE)
    await asyncio.sleep(0.2)
    return count() - before


class BareCommits:
    """The rows of one call, written by `sqlite3` alone: the same table, indexes and values, as many commits."""

    def __init__(self, file: Path, like: Path, commits: int) -> None:
        source = sqlite3.connect(like)
        source.row_factory = sqlite3.Row
        ddl = [
            row["sql"]
            for row in source.execute("select sql from sqlite_master where tbl_name = 'sessions' and sql is not null")
        ]
        row = source.execute("select * from sessions order by created_at desc limit 1").fetchone()
        self._names = row.keys()
        self._values = dict(zip(self._names, tuple(row), strict=True))
        page = source.execute("pragma page_size").fetchone()[0]
        source.close()
        self._commits = commits
        self._numbers = itertools.count()
        self._conn = sqlite3.connect(file, isolation_level=None)
        self._conn.execute(f"pragma page_size = {page}")
        self._conn.execute("pragma journal_mode = WAL")
        self._conn.execute("pragma synchronous = FULL")
        for statement in ddl:
            self._conn.execute(statement)
        self._insert = (
            f"insert into sessions ({', '.join(self._names)}) values ({', '.join(':' + name for name in self._names)})"
        )
        self._claimed = self._values | {"state": "claimed", "delivery": "inline", "end": None, "ended_at": None}
        self._update = "update sessions set state = :state, delivery = :delivery, end = :end, ended_at = :ended_at"
        self._update += " where id = :id"

    def once(self) -> float:
        """Seconds of one call's commits."""
        key = {"id": f"bare-{next(self._numbers):026d}"}
        began = time.perf_counter()
        for number in range(self._commits):
            self._conn.execute("begin immediate")
            if number == 0:
                self._conn.execute(self._insert, self._claimed | key)
            else:
                self._conn.execute(self._update, self._values | key)
            self._conn.execute("commit")
        return time.perf_counter() - began

    def close(self) -> None:
        self._conn.close()


def started(argv: Sequence[str], alike: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A process without us."""
    return subprocess.Popen[bytes](argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **alike)


def background(options: Options) -> Mapping[str, Reading]:
    async def measure(where: Ground) -> Mapping[str, Reading]:
        async with rig(where) as made:
            argv, alike = await made.alike(TRUE)

            async def through_us() -> float:
                began = time.perf_counter()
                session = await made.launch(TRUE)
                took = time.perf_counter() - began
                await made.engine.wait(session.id, up_to=10)
                return took

            async def bare() -> float:
                began = time.perf_counter()
                process = started(argv, alike)
                took = time.perf_counter() - began
                process.wait()
                return took

            ours, theirs = await alternate(options.samples(), through_us, bare)
            return {"background": Reading(measured=ms(ours), baseline=ms(theirs))}

    return asyncio.run(measure(ground(options.directory)))


def burst(options: Options) -> Mapping[str, Reading]:
    from shellback.storage import schema
    from shellback.storage.db import Database
    from shellback.storage.sessions import SqlSessionStore

    async def at_once(made: Rig) -> tuple[float, int, int]:
        """Median rate, and the most descriptors and threads that came with one burst."""
        await made.run(TRUE)
        rates: list[float] = []
        more: list[tuple[int, int]] = []
        for _ in range(3 if options.quick else 5):
            await asyncio.sleep(0.2)
            descriptors, threads = _descriptors(), _threads()
            began = time.perf_counter()
            sessions = await asyncio.gather(*(made.launch("sleep 600") for _ in range(AT_ONCE)))
            rates.append(AT_ONCE / (time.perf_counter() - began))
            await asyncio.sleep(0.2)
            more.append((_descriptors() - descriptors, _threads() - threads))
            for session in sessions:
                terminate(session.pid, session.id)
            for session in sessions:
                await made.engine.wait(session.id, up_to=30)
        return statistics.median(rates), max(fds for fds, _ in more), max(tasks for _, tasks in more)

    async def without_us(made: Rig) -> float:
        argv, alike = await made.alike("sleep 600")
        began = time.perf_counter()
        processes = [started(argv, alike) for _ in range(AT_ONCE)]
        rate = AT_ONCE / (time.perf_counter() - began)
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        return rate

    async def measure(light: Ground, durable: Ground) -> Mapping[str, Reading]:
        url = f"sqlite:///{durable.home / 'shellback.db'}"
        floor = await floor_ms(options.samples(50))
        async with rig(light) as made:
            rate, descriptors, threads = await at_once(made)
            bare = await without_us(made)
        schema.migrate(url)
        database = Database(url)
        try:
            async with rig(durable, SqlSessionStore(database)) as made:
                with_database, _, _ = await at_once(made)
        finally:
            database.close()
        return {
            "burst": Reading(
                measured=rate, baseline=bare, floor=floor, note="beside it: subprocess.Popen, one after the other"
            ),
            "burst descriptors": Reading(measured=descriptors),
            "burst threads": Reading(measured=threads),
            "burst durable": Reading(measured=with_database, floor=floor),
        }

    return asyncio.run(measure(ground(options.directory), ground(options.directory)))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def exits(options: Options) -> Mapping[str, Reading]:
    async def measure(where: Ground) -> Mapping[str, Reading]:
        async with rig(where) as made:
            names = itertools.count()

            async def through_us() -> float:
                return await exit_through(made, f"gate-{next(names)}")

            async def blocking() -> float:
                gate = Gate(where.workspace, f"gate-{next(names)}")
                process = started(*await made.alike(gate.command))
                await gate.reached()
                began = time.perf_counter()
                gate.open()
                process.wait()
                took = time.perf_counter() - began
                gate.remove()
                return took

            ours, theirs = await alternate(options.samples(), through_us, blocking)
            return {"exit known": Reading(measured=ms(ours), baseline=ms(theirs))}

    return asyncio.run(measure(ground(options.directory)))


async def exit_through(made: Rig, name: str) -> float:
    """Seconds from letting a background command end until the engine knows."""
    gate = Gate(made.where.workspace, name)
    session = await made.launch(gate.command)
    waiting = asyncio.create_task(made.engine.wait(session.id, up_to=30))
    await gate.reached()
    began = time.perf_counter()
    gate.open()
    ended = await waiting
    took = time.perf_counter() - began
    gate.remove()
    if ended.end is None:
        say(f"{session.id} has not ended")
        raise TimeoutError("an end did not come within 30 s")
    return took


BENCHES = (
    Bench(
        name="foreground",
        run=foreground,
        figures=(
            Figure(
                name="foreground",
                says="`true` through the engine, no database / asyncio with the same bash, user and session",
                compare="ratio",
                limit=1.25,
            ),
        ),
    ),
    Bench(
        name="foreground durable",
        run=foreground_durable,
        figures=(
            Figure(
                name="foreground durable",
                says="`true` with the durable claim / (engine without database + as many bare commits)",
                compare="ratio",
                limit=1.25,
            ),
            Figure(
                name="durable +",
                says="`true` with the durable claim - the engine without database",
                compare="difference",
                limit=1.5,
                scaled=True,
            ),
        ),
    ),
    Bench(
        name="background",
        run=background,
        figures=(
            Figure(
                name="background",
                says="background call to session, no database / subprocess.Popen",
                compare="ratio",
                limit=5.0,
            ),
        ),
    ),
    Bench(
        name="burst",
        run=burst,
        figures=(
            Figure(
                name="burst",
                says=f"{AT_ONCE} background starts at once, no database",
                unit="/s",
                limit=450.0,
                at_least=True,
                scaled=True,
            ),
            Figure(name="burst descriptors", says=f"descriptors more in the worker for {AT_ONCE}", unit="", limit=0.0),
            Figure(name="burst threads", says=f"threads more in the worker for {AT_ONCE}", unit="", limit=0.0),
            Figure(
                name="burst durable",
                says=f"{AT_ONCE} background starts at once, SQLite",
                unit="/s",
                limit=300.0,
                at_least=True,
                scaled=True,
            ),
        ),
    ),
    Bench(
        name="exit known",
        run=exits,
        figures=(
            Figure(
                name="exit known",
                says="process let go to engine knows - the same with a blocking waitpid",
                compare="difference",
                limit=1.0,
            ),
        ),
    ),
)
