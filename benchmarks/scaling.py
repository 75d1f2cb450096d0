"""Workers of one host, and hosts with many processes, on Postgres: what a turn takes as they become more."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks.harness import Bench, Figure, Options, Reading, absent, say
from benchmarks.loop import BATCH, Stage, Waiting, stage
from benchmarks.rig import ground

if TYPE_CHECKING:
    from shellback.cli.children import WorkerChild

WORKERS: Final = (1, 2, 4, 8)
SLOTS: Final = 4
MODEL_S: Final = 2.0
ROUNDS: Final = 8
"""So many turns run one after the other in each slot."""
SETTLE_S: Final = 2.0
"""Backends of Postgres tell their counts once a second (pgstat.c)."""
PATIENCE_S: Final = 120.0
HOSTS: Final = (1, 2, 4)
PROCESSES: Final = 200
"""Of each host, asleep."""
EXITS: Final = 20
"""So many of them end at each number of hosts, one after another."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a number of workers did: `used` is the part of their slots in which turns ran."""

    workers: int
    per_s: float
    used: float
    cpu: float
    transactions: float
    wal_bytes: float


def curve(options: Options) -> Mapping[str, Reading]:
    from tests.databases import TEMPLATE, NoPostgres, serving_postgres

    try:
        with ExitStack() as stack:
            server = stack.enter_context(serving_postgres(durable=True))
            each = {"TURN_SLOTS": str(SLOTS), "WAKE_SLOTS": "1", "OFFLINE_SECONDS": str(MODEL_S), "WORKER_NAME": "w1"}
            on = stack.enter_context(stage(options, DATABASE_URL=server.url(server.create(TEMPLATE)), **each))
            points = [_point(_hired(on, stack, number), number, options) for number in WORKERS]
    except NoPostgres as error:
        return absent(FIGURES, str(error))
    first, last = points[0], points[-1]
    added = (last.workers - first.workers) * SLOTS / MODEL_S
    note = "; ".join(
        f"{one.workers}: {one.per_s:.2f}/s, {one.used:.0%} of the slots, {one.cpu:.0%} CPU" for one in points
    )
    return {
        "workers": Reading(measured=100 * (last.per_s - first.per_s) / added, note=note),
        "workers cpu": Reading(measured=100 * last.cpu),
        "workers transactions": Reading(measured=last.transactions, baseline=first.transactions),
        "workers bytes": Reading(measured=last.wal_bytes / 1024, baseline=first.wal_bytes / 1024),
    }


def hosts(options: Options) -> Mapping[str, Reading]:
    from tests.databases import TEMPLATE, NoPostgres, serving_postgres

    processes, exits = (BATCH, 4) if options.quick else (PROCESSES, EXITS)
    points: list[Point] = []
    latencies: dict[int, list[float]] = {}
    try:
        with ExitStack() as stack:
            server = stack.enter_context(serving_postgres(durable=True, connections=200))
            each = {"TURN_SLOTS": str(SLOTS), "OFFLINE_SECONDS": str(MODEL_S)}
            url = server.url(server.create(TEMPLATE))
            stages: list[Stage] = []
            sleeping: list[list[Waiting]] = []
            for number in HOSTS:
                while len(stages) < number:
                    stages.append(Stage(ground(options.directory), DATABASE_URL=url, **each))
                    stack.callback(stages[-1].close)
                    first = len(stages) * processes
                    sleeping.append(
                        [Waiting(stages[-1], range(at, at + BATCH)) for at in range(first, first + processes, BATCH)]
                    )
                    say(f"hosts: {len(stages)} with {processes} processes each")
                points.append(_point(stages, number, options))
                ends = [group[0].each(_nothing, exits // number) for group in sleeping]
                latencies[number] = sorted(1000 * one for group in ends for one in group)
    except NoPostgres as error:
        return absent(OF_HOSTS, str(error))
    first, last = points[0], points[-1]
    spread = "; ".join(
        f"{number}: {took[len(took) // 2]:.0f} ms, {took[-1]:.0f} at most" for number, took in latencies.items()
    )
    return {
        "hosts transactions": Reading(measured=last.transactions, baseline=first.transactions),
        "hosts bytes": Reading(measured=last.wal_bytes / 1024, baseline=first.wal_bytes / 1024),
        "hosts exit to turn": Reading(measured=latencies[HOSTS[-1]][len(latencies[HOSTS[-1]]) // 2], note=spread),
    }


def elsewhere(options: Options) -> Mapping[str, Reading]:
    """Ends of processes of a host whose turns run elsewhere, and of one that runs its own."""
    from tests.databases import TEMPLATE, NoPostgres, serving_postgres
    from tests.machines import free_port

    try:
        with ExitStack() as stack:
            server = stack.enter_context(serving_postgres(durable=True))
            url = server.url(server.create(TEMPLATE))
            own = Stage(ground(options.directory), DATABASE_URL=url)
            stack.callback(own.close)
            far = Stage(ground(options.directory), "host", DATABASE_URL=url, LISTEN=f"127.0.0.1:{free_port()}")
            stack.callback(far.close)
            stack.callback(_away(far, options).stop)
            took = {
                name: sorted(1000 * one for one in _ended(on, name)) for name, on in {"own": own, "far": far}.items()
            }
    except NoPostgres as error:
        return absent(OF_ELSEWHERE, str(error))
    here, there = took["own"], took["far"]
    note = f"{there[-1]:.0f} ms at most; a host with its own worker: {here[-1]:.0f} ms at most"
    middle = len(there) // 2
    return {"elsewhere exit to turn": Reading(measured=there[middle], baseline=here[middle], note=note)}


def _ended(on: Stage, name: str) -> list[float]:
    say(f"elsewhere: {BATCH} processes end, {name}")
    first = 0 if name == "own" else BATCH
    return Waiting(on, range(first, first + BATCH)).each(_nothing)


def _away(host: Stage, options: Options) -> WorkerChild:
    """A worker elsewhere for the turns of this host, ready."""
    from shellback.cli.children import WorkerChild
    from shellback.storage import members
    from shellback.work.elsewhere.certificates import fingerprint_of, of_machine

    away = ground(options.directory)
    text, _ = host.write(members.invite, host.place.host_id, "away")
    certificate = of_machine(away.home)[1]
    host.write(members.join, text, certificate, fingerprint_of(certificate))
    environ = {**host.environ, "SHELLBACK_HOME": str(away.home), "WORKSPACE_ROOT": str(away.workspace), "LISTEN": ""}
    words = [sys.executable, "-m", "shellback", "worker", "--for", host.place.host_id]
    made = WorkerChild(host.place, environ, words)
    made.wait_ready()
    return made


def _nothing() -> None:
    pass


def _hired(on: Stage, stack: ExitStack, number: int) -> list[Stage]:
    """A host with so many workers."""
    from shellback.cli.children import WorkerChild
    from shellback.work.hosts import roster

    for one in range(len(on.read(roster.there, on.place.host_id)), number):
        worker = WorkerChild(on.place, {**on.environ, "WORKER_NAME": f"w{one + 1}"})
        stack.callback(worker.stop)
        worker.wait_ready()
    return [on]


def _point(stages: Sequence[Stage], number: int, options: Options) -> Point:
    on = stages[0]
    turns = number * SLOTS * options.samples(ROUNDS)
    time.sleep(SETTLE_S)
    before, cpu = on.read(_counts), _cpu()
    began = time.monotonic()
    at = [stages[one % len(stages)] for one in range(turns)]
    items = [there.send(f"w{number}-{one}", "hello", waiting=False) for one, there in enumerate(at)]

    def ended() -> Any:
        rows = on.turns(*items).values()
        return rows if all(row.outcome for row in rows) else None

    rows = on.until("all turns have ended", ended, every_s=0.2, patience_s=PATIENCE_S)
    busy = (_cpu() - cpu) / (time.monotonic() - began)
    time.sleep(SETTLE_S)
    after = on.read(_counts)
    took = max(row.ended_at for row in rows) - min(row.started_at for row in rows)
    used = turns * MODEL_S / (number * SLOTS * took)
    name = "hosts" if len(stages) > 1 else "workers"
    say(f"{name}: {number} ran {turns / took:.2f} turns per second, {used:.0%} of their slots, {busy:.0%} of the CPU")
    transactions, wal = ((late - early) / turns for early, late in zip(before, after, strict=True))
    return Point(number, turns / took, used, busy, transactions, wal)


def _counts(conn: sa.Connection) -> tuple[float, float]:
    """Transactions that were committed, and bytes of the write-ahead log."""
    query = "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') FROM pg_stat_database"
    row = conn.execute(sa.text(f"{query} WHERE datname = current_database()")).one()
    return float(row[0]), float(row[1])


def _cpu() -> float:
    """Seconds that all processors were busy since the boot, divided by their number (proc_stat(5))."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)


FIGURES: Final = (
    Figure(
        name="workers",
        says=f"slots used of those that 7 more workers add to one, {SLOTS} each, a model of {MODEL_S:g} s, Postgres",
        unit="%",
        limit=90.0,
        at_least=True,
    ),
    Figure(name="workers cpu", says="of all processors, meanwhile, with 8 workers", unit="%", limit=60.0),
    Figure(
        name="workers transactions",
        says="transactions of a turn, of 8 workers / of one",
        unit="",
        compare="ratio",
        limit=1.1,
    ),
    Figure(name="workers bytes", says="write-ahead log of a turn, the same", unit="KiB", compare="ratio", limit=1.1),
)

OF_HOSTS: Final = (
    Figure(
        name="hosts transactions",
        says=f"transactions of a turn, of 4 hosts with {PROCESSES} processes each / of one, Postgres",
        unit="",
        compare="ratio",
        limit=1.1,
    ),
    Figure(name="hosts bytes", says="write-ahead log of a turn, the same", unit="KiB", compare="ratio", limit=1.1),
    Figure(name="hosts exit to turn", says="process exit to its turn's start, 4 such hosts at rest", limit=100.0),
)

OF_ELSEWHERE: Final = (
    Figure(
        name="elsewhere exit to turn",
        says="process exit to its turn's start at a worker elsewhere, at rest / at the host's own, Postgres",
        limit=100.0,
    ),
)

BENCHES = (
    Bench(name="elsewhere", run=elsewhere, figures=OF_ELSEWHERE, limit_s=300),
    Bench(name="workers", run=curve, figures=FIGURES, limit_s=600),
    Bench(name="hosts", run=hosts, figures=OF_HOSTS, limit_s=900),
)
