# ruff: noqa: S311 - kills and sleeps are random, not secret
"""`python -m chaos.soak`: a crowd of processes, random kills, one table; exit 1 names the figure that falls short."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final
from unittest import mock

import pytest
from dbos import DBOSClient

from chaos.options import seconds, unless_cut_off, whole
from chaos.soak import ENVIRON, figures, verdict
from chaos.soak.crowd import Crowd, at_rest, make_tasks, rows
from chaos.soak.gauges import Gauges, descendants
from chaos.soak.staff import Staff, town
from shellback.exec.log.links import LogLinks
from shellback.exec.log.logs import remove_session
from shellback.exec.wire import layout
from shellback.work.queue import stream
from shellback.work.worker.retention import Ages, Retention
from shellback.work.worker.services import HEARTBEAT_S
from tests.databases import TEMPLATE, NoPostgres, pooling, serving_postgres
from tests.stage import Stage

RESULTS: Final = Path(__file__).parents[1] / "results" / "soak.json"
TICK_S: Final = 0.2
SAY_S: Final = 10.0
STALL_S: Final = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    options = _options(argv)
    return unless_cut_off("soak", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    try:
        with (
            serving_postgres(durable=True, connections=40 * options.hosts + 60) as server,
            pooling(server, workers=_programs(options)) if options.pooler else nullcontext() as pooler,
            town(
                server,
                server.create(TEMPLATE),
                options.hosts,
                options.workers,
                pooler,
                options.machines,
                options.elsewhere,
                **ENVIRON,
            ) as hosts,
            Staff(
                hosts,
                server,
                random.Random(options.seed),
                every=tuple(options.every),
                pooler=pooler,
                upgrades=options.upgrades,
            ) as staff,
        ):
            run = Soak(hosts[0].stage, staff, options)
            found = run.run()
    except (NoPostgres, pytest.skip.Exception) as error:
        sys.exit(f"soak: {error}")
    said = figures.markdown(found) if options.markdown else figures.table(found)
    print(said)
    print(f"\n{run.took / 60:.1f} minutes, seed {options.seed}, {figures.machine()}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "at": time.time(),
        "seconds": run.took,
        "seed": options.seed,
        "hosts": options.hosts,
        "workers": options.workers,
        "pooler": options.pooler,
        "machines": options.machines,
        "elsewhere": options.elsewhere,
        "upgrades": options.upgrades,
        "at_rest": options.at_rest,
        "processes": options.processes,
        "at_once": options.at_once,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "figures": [figure.facts() for figure in found],
        "outages": [[o.victim, o.gone_at, o.back_at, o.wanted] for o in run.staff.outages],
        "notes": run.notes,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    code = figures.judged("soak", found)
    for note in run.notes[:20]:
        print(f"soak: {note}", file=sys.stderr)
    return code


def _programs(options: argparse.Namespace) -> int:
    """How many have a pool of their own each: workers, and hosts without any."""
    return options.hosts + options.elsewhere if options.elsewhere else options.hosts * options.workers


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.soak",
        description="Background processes started through turns of two workers on a private Postgres, while workers, "
        "supervisor and Postgres are killed with kill -9 at random; then everything is counted from outside. With more "
        "hosts, workers are paused too, and the link of a host to the database is cut, falls silent or gets slow.",
    )
    parser.add_argument("--processes", type=whole, default=2000, help="how many in all (2000)")
    parser.add_argument("--at-once", type=whole, default=100, help="asked for and not ended, at most (100)")
    parser.add_argument("--batch", type=whole, default=5, help="commands in one message (5)")
    parser.add_argument("--hosts", type=int, choices=range(1, 9), default=1, help="how many (1)")
    parser.add_argument("--workers", type=whole, default=2, help="of each host (2)")
    parser.add_argument(
        "--pooler", action="store_true", help="pgbouncer between workers and Postgres; it is killed, too"
    )
    parser.add_argument(
        "--upgrades", action="store_true", help="workers end one after another, and come back as another version"
    )
    parser.add_argument(
        "--machines",
        action="store_true",
        help="each host, and the database, in a network namespace; hosts are unplugged, too (root, no --upgrades)",
    )
    parser.add_argument(
        "--elsewhere",
        type=int,
        default=0,
        metavar="N",
        help="workers of all hosts on a machine of their own, which hosts have none of (0)",
    )
    parser.add_argument("--conversations", type=whole, default=100, help="how many share the work (100)")
    parser.add_argument("--at-rest", type=int, default=0, metavar="N", help="conversations beside them (0)")
    parser.add_argument("--sleep", type=seconds, nargs=2, default=(5.0, 30.0), metavar="S", help="of a command (5 30)")
    parser.add_argument("--every", type=seconds, nargs=2, default=(5.0, 40.0), metavar="S", help="between kills (5 40)")
    parser.add_argument("--warm-up", type=int, default=100, metavar="N", help="processes before it counts (100)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of kills and sleeps")
    parser.add_argument("--calm", action="store_true", help="kill nobody")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"where the facts go ({RESULTS.parent.name}/...)")
    parser.add_argument("--markdown", action="store_true", help="a table for a document")
    options = parser.parse_args(argv)
    if options.machines and (options.hosts == 1 or options.upgrades):
        parser.error("--machines needs two --hosts or more, and workers of one version")
    return options


class Stalled(Exception):
    """Raised when nothing ends any more."""


class Soak:
    """One run."""

    def __init__(self, stage: Stage, staff: Staff, options: argparse.Namespace) -> None:
        self.stage = stage
        self.staff = staff
        self.options = options
        self.gauges = Gauges(staff)
        self.took = 0.0
        self.notes: list[str] = []
        self._rng = random.Random(options.seed + 1)

    def run(self) -> list[figures.Figure]:
        """Warm up, prune and count, run, count, prune and count."""
        options, began = self.options, time.monotonic()
        warm = self._crowd(options.warm_up, first=0)
        self._live_through(warm, "warm-up")
        before = self._rest()
        self._prune()
        self._add_at_rest()
        rows_before = self.stage.read(rows)
        crowd = self._crowd(options.processes, first=options.warm_up)
        self.gauges.samples.clear()
        if not options.calm:
            self.staff.arm()
        started = time.monotonic()
        try:
            self._live_through(crowd, "soak")
        except Stalled as error:
            self.notes.append(str(error))
        lasted = time.monotonic() - started
        self.staff.disarm()
        self._recover()
        samples = list(self.gauges.samples)
        after = self._rest()
        judged = verdict.judge(self.stage, crowd.tasks, self.staff.outages)
        delays = verdict.delays(self.stage)
        starts = verdict.starts(self.stage)
        callbacks = len(self.stage.callbacks())
        self._prune()
        rows_after = self.stage.read(rows)
        self.took = time.monotonic() - began
        self.notes += judged.notes
        self.notes += [f"asked again: {task.number}" for task in crowd.asked_again]
        self.notes += [
            f"{one.session}: ended at {one.ended_at:.1f}, told {one.seconds:.1f} s later, and nobody was gone"
            for one in figures.quiet(delays, self.staff.outages)
            if one.seconds > figures.P99_S
        ]
        return [
            *figures.of_verdict(judged, options.processes, callbacks),
            *figures.of_run(self.staff, crowd, lasted),
            *figures.of_delays(delays, self.staff.outages),
            *figures.of_starts(starts, self.staff.outages),
            *figures.of_samples(samples, before, after),
            *figures.of_rows(rows_before, rows_after),
        ]

    def _add_at_rest(self) -> None:
        hosts = [host.stage.where.host_id for host in self.staff.hosts]
        for first in range(0, self.options.at_rest, 1000):
            self.stage.write(at_rest, hosts, range(first, min(first + 1000, self.options.at_rest)))

    def _crowd(self, count: int, *, first: int) -> Crowd:
        options = self.options
        tasks = make_tasks(self._rng, count, first=first, seconds=tuple(options.sleep))
        stages = [host.stage for host in self.staff.hosts]
        return Crowd(stages, tasks, at_once=options.at_once, batch=options.batch, conversations=options.conversations)

    def _live_through(self, crowd: Crowd, name: str) -> None:
        began = said = moved = time.monotonic()
        ended = 0
        while not crowd.step():
            self.staff.step()
            self.gauges.step(full=crowd.in_flight >= 0.9 * self.options.at_once)
            now = time.monotonic()
            if crowd.ended > ended:
                ended, moved = crowd.ended, now
            if ended >= len(crowd.tasks):
                self.staff.disarm()  # what is left is to be heard in peace
            if now - moved > STALL_S:
                raise Stalled(f"{name}: nothing ended for {STALL_S:.0f} s, {crowd.ended} of {len(crowd.tasks)} had")
            if now - said > SAY_S:
                said = now
                rate = crowd.ended / (now - began)
                left = f"{(len(crowd.tasks) - crowd.ended) / rate:.0f} s left" if rate else "none yet"
                print(
                    f"{name}: {crowd.ended}/{len(crowd.tasks)} ended, {crowd.in_flight} in flight, {rate:.1f}/s,"
                    f" {left}, {len(self.staff.outages)} outages",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(TICK_S)

    def _recover(self) -> None:
        def whole() -> bool:
            self.staff.step()
            return self.staff.whole and self.stage.at_rest()

        self.stage.until("everybody serves again", whole)

    def _rest(self) -> dict[str, tuple[int, int]]:
        """Descriptors and threads of each at rest, and the processes below the keeper."""

        def all_warm() -> dict[str, tuple[int, int]] | None:
            samples = self.gauges.now()
            all_of_them = len(self.staff.posts) + 2 * len(self.staff.hosts)
            found = {one.role: (one.descriptors, one.threads) for one in samples}
            return found if len(found) == all_of_them else None

        found = self.stage.until("everybody is warm", all_warm)
        return found | {"processes": (sum(descendants(host.keeper) for host in self.staff.hosts), 0)}

    def _prune(self) -> None:
        for host in self.staff.hosts:
            self._prune_on(host.stage)
        with mock.patch.object(stream, "KEEP_S", 0.0):
            while self.stage.write(stream.prune):
                pass
        # Living workers went too, being older than that; their hearts bring them back.
        time.sleep(HEARTBEAT_S + 1)

    def _prune_on(self, stage: Stage) -> None:
        where = stage.where
        links = LogLinks(stage.settings.workspace_root, where.home / layout.SESSIONS)
        client = DBOSClient(system_database_url=stage.settings.database_url, application_name="shellback")
        try:
            retention = Retention(
                where.database,
                client,
                lambda name: remove_session(links, name),
                where.host_id,
                Ages(rows=1e-3, logs=1e-3, conversations=1e-3),
            )
            time.sleep(0.01)
            asyncio.run(retention.once())
        finally:
            client.destroy()


if __name__ == "__main__":
    sys.exit(main())
