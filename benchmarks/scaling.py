"""Turns per second of 1, 2, 4 and 8 workers on a model that takes its time, on Postgres."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.harness import Bench, Figure, Options, Reading, absent, say
from benchmarks.loop import Stage, stage

WORKERS: Final = (1, 2, 4, 8)
SLOTS: Final = 4
MODEL_S: Final = 2.0
ROUNDS: Final = 8
"""So many turns run one after the other in each slot."""
SETTLE_S: Final = 2.0
"""Backends of Postgres tell their counts once a second (pgstat.c)."""
PATIENCE_S: Final = 120.0


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
            points = [_point(on, stack, number, options) for number in WORKERS]
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


def _point(on: Stage, stack: ExitStack, number: int, options: Options) -> Point:
    from shellback.cli.children import WorkerChild

    for one in range(_hired(on), number):
        worker = WorkerChild(on.place, {**on.environ, "WORKER_NAME": f"w{one + 1}"})
        stack.callback(worker.stop)
        worker.wait_ready()
    turns = number * SLOTS * options.samples(ROUNDS)
    time.sleep(SETTLE_S)
    before, cpu = on.read(_counts), _cpu()
    began = time.monotonic()
    items = [on.send(f"w{number}-{one}", "hello", waiting=False) for one in range(turns)]

    def ended() -> Any:
        rows = on.turns(*items).values()
        return rows if all(row.outcome for row in rows) else None

    rows = on.until("all turns have ended", ended, every_s=0.2, patience_s=PATIENCE_S)
    busy = (_cpu() - cpu) / (time.monotonic() - began)
    time.sleep(SETTLE_S)
    after = on.read(_counts)
    took = max(row.ended_at for row in rows) - min(row.started_at for row in rows)
    used = turns * MODEL_S / (number * SLOTS * took)
    say(f"workers: {number} ran {turns / took:.2f} turns per second, {used:.0%} of their slots, {busy:.0%} of the CPU")
    transactions, wal = ((late - early) / turns for early, late in zip(before, after, strict=True))
    return Point(number, turns / took, used, busy, transactions, wal)


def _hired(on: Stage) -> int:
    from shellback.work.hosts import roster

    return len(on.read(roster.there, on.place.host_id))


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

BENCHES = (Bench(name="workers", run=curve, figures=FIGURES, limit_s=600),)
