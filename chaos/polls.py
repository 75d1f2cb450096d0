# ruff: noqa: S311 - pauses are random, not secret
"""`python -m chaos.polls`: how soon an item of the `wakes` queue has its turn while many enqueue.

A thread of DBOS in each worker looks at each ring, and looks less often after a conflict with another transaction.
What it asks is read from the log of Postgres, not from the product.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from chaos.options import seconds, unless_cut_off, whole
from chaos.soak.figures import Figure, judged, machine, markdown, table
from shellback.settings import Settings
from shellback.storage.tables import turns
from shellback.wiring import wiring
from shellback.work.approvals import sending
from shellback.work.queue.queues import wakes_queue
from tests.databases import TEMPLATE, NoPostgres, PostgresServer, serving_postgres
from tests.stage import Stage, stage

RESULTS: Final = Path(__file__).parent / "results" / "polls.json"
LATE_S: Final = 0.3
SETTLE_S: Final = 3.0
ROLE: Final = "worker"
CONVERSATIONS: Final = 5
PREFIX: Final = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) UTC \[(\d+)\] (\w+):  (.*)")


@dataclass(slots=True)
class Looks:
    """Times at which the worker's thread for one queue asked Postgres something, in wall-clock seconds."""

    rounds: list[float] = field(default_factory=list[float])
    claims: list[float] = field(default_factory=list[float])
    conflicts: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    options = _options(argv)
    return unless_cut_off("polls", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    # Forked before anything is opened: twenty starts of Python would be most of what is measured.
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(options.enqueuers)]
    children = [
        fork.Process(target=_enqueue, args=(theirs, number, options), daemon=True)
        for number, (_, theirs) in enumerate(pipes)
    ]
    for child in children:
        child.start()
    try:
        with serving_postgres(durable=True) as server:
            figures = _measure(server, [ours for ours, _ in pipes], options)
    except NoPostgres as error:
        sys.exit(f"polls: {error}")
    finally:
        for child in children:
            child.kill()
    print(markdown(figures) if options.markdown else table(figures))
    print(f"\n{options.seconds:.0f} s, {machine()}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    facts = {"at": time.time(), "seconds": options.seconds, "figures": [figure.facts() for figure in figures]}
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return judged("polls", figures)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.polls",
        description="Processes that send messages, for which a person waits, to one living worker on a private "
        "Postgres; then the longest gap between two looks of the worker at its wakes queue.",
    )
    parser.add_argument("--enqueuers", type=whole, default=20, help="processes that send (20)")
    parser.add_argument("--seconds", type=seconds, default=60.0, help="how long (60)")
    parser.add_argument("--rate", type=float, default=0.5, help="messages a second of each (0.5); 0: no pause")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"where the facts go ({RESULTS.parent.name}/...)")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    return parser.parse_args(argv)


def _enqueue(told: Connection, number: int, options: argparse.Namespace) -> None:
    """Send until the time is over; says how many were sent."""
    environ: dict[str, str] = told.recv()
    rng, sent = random.Random(number), 0
    with wiring.place(Settings.load(environ)) as where, wiring.enqueuing(where) as enqueuer:
        told.send("ready")
        told.recv()
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            name = f"polls-{number}-{rng.randrange(CONVERSATIONS)}"
            where.database.write_now(sending.send, enqueuer, name, "hello", host_id=where.host_id, by="polls")
            sent += 1
            if options.rate:
                time.sleep(rng.expovariate(options.rate))
    told.send(sent)


def _measure(server: PostgresServer, pipes: Sequence[Connection], options: argparse.Namespace) -> list[Figure]:
    url = server.url(server.create(TEMPLATE))
    # What the worker asks is logged, what the others send is not: it would be most of the work.
    server.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER")
    server.execute(f"ALTER ROLE {ROLE} SET log_statement = 'all'")
    server.execute("ALTER SYSTEM SET log_line_prefix = '%m [%p] '")
    server.execute("SELECT pg_reload_conf()")
    with stage(url, LOG_LEVEL="WARNING") as made:
        made.hire(DATABASE_URL=url.replace("//postgres@", f"//{ROLE}@"))
        for pipe in pipes:
            pipe.send(made.environ)
        for pipe in pipes:
            pipe.recv()
        time.sleep(SETTLE_S)
        began = time.time()
        for pipe in pipes:
            pipe.send("go")
        sent = sum(pipe.recv() for pipe in pipes)
        ended = time.time()
        looks = read_log(server.directory / "log", wakes_queue(made.where.host_id), began, ended)
        return _figures(made, looks, sent, options)


def _figures(made: Stage, looks: Looks, sent: int, options: argparse.Namespace) -> list[Figure]:
    items, late = made.read(_items)
    said = (made.home / "worker.log").read_text()
    rounds, claims = gaps(looks.rounds), gaps(looks.claims)
    return [
        Figure(name="enqueuers", value=options.enqueuers),
        Figure(name="messages sent", value=sent, note=f"{items} items on the queue, the rest joined one"),
        Figure(name="polls", value=len(looks.rounds)),
        Figure(name="longest gap between polls", value=rounds[-1] * 1e3, unit="ms"),
        Figure(name="gap between polls, p99", value=rounds[int(len(rounds) * 0.99)] * 1e3, unit="ms"),
        Figure(name="gap between polls, median", value=rounds[len(rounds) // 2] * 1e3, unit="ms"),
        Figure(name="polls that claim", value=len(looks.claims), note="the others found every slot taken"),
        Figure(name="longest gap between claims", value=claims[-1] * 1e3, unit="ms", note="slots included"),
        Figure(name="conflicts in Postgres", value=looks.conflicts),
        Figure(name="back-offs that DBOS told", value=said.count("Contention detected"), limit=0),
        Figure(
            name="item to turn, p50", value=_at(late, 0.5) * 1e3, unit="ms", limit=LATE_S * 1e3, note="slots included"
        ),
        Figure(name="item to turn, p99", value=_at(late, 0.99) * 1e3, unit="ms"),
    ]


def _items(conn: sa.Connection) -> tuple[int, list[float]]:
    """How many DBOS was given, and how long each that has started had waited."""
    waited = sa.select(turns.c.started_at - turns.c.created_at).where(turns.c.executions > 0)
    items = sa.select(sa.func.count()).select_from(sa.table("workflow_status", schema="dbos"))
    return conn.execute(items).scalar_one(), sorted(conn.execute(waited).scalars())


def read_log(log: Path, queue: str, began: float, ended: float) -> Looks:
    """What the log has of the rounds of the queue's thread: it reads its row, then claims what there is."""
    looks = Looks()
    for at, statement in statements(log):
        if not began <= at <= ended:
            continue
        if "could not serialize" in statement:
            looks.conflicts += 1
        if queue not in statement:
            continue
        if "dbos.queues" in statement:
            looks.rounds.append(at)
        elif "SKIP LOCKED" in statement:
            looks.claims.append(at)
    return looks


def statements(log: Path) -> Iterator[tuple[float, str]]:
    """Each statement with its parameters."""
    at, parts = 0.0, list[str]()
    for line in log.read_text(errors="replace").splitlines():
        found = PREFIX.match(line)
        if found is None:
            parts.append(line)
        elif found[3] == "DETAIL":
            parts.append(found[4])
        else:
            if parts:
                yield at, " ".join(parts)
            at = datetime.fromisoformat(f"{found[1]}+00:00").timestamp()
            parts = [found[4]]
    if parts:
        yield at, " ".join(parts)


def gaps(moments: Sequence[float]) -> list[float]:
    return sorted(later - earlier for earlier, later in itertools.pairwise(moments)) or [float("inf")]


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


if __name__ == "__main__":
    sys.exit(main())
