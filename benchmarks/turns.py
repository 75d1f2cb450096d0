"""Turns of many conversations beside the same agent in a bare DBOS workflow; and a message to an idle worker."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Bench, Figure, Options, Reading, absent, ms
from benchmarks.loop import PATIENCE_S, Stage, cpu_s, stage
from benchmarks.rig import Ground, ground

if TYPE_CHECKING:
    from dbos import EnqueueOptions

CONVERSATIONS: Final = 200
ROUNDS: Final = 3
MESSAGES: Final = 60
TEXT: Final = "hello"


@dataclass(frozen=True, slots=True)
class Rate:
    """Turns per second, from the first item to the last answer; and milliseconds of the worker's CPU for each."""

    per_s: float
    cpu_ms: float


class Bare:
    """The baseline's worker, with a client that enqueues its items."""

    def __init__(self, url: str) -> None:
        from dbos import DBOSClient

        self._worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare_worker", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._worker.stdout is not None
        if self._worker.stdout.readline() != "ready\n":
            raise RuntimeError("the bare worker did not start")
        self._client = DBOSClient(system_database_url=url, application_name="bare")

    def rate(self, number: int) -> Rate:
        from benchmarks.bare_worker import QUEUE, WORKFLOW

        before, began = cpu_s(self._worker.pid), time.time()
        what: EnqueueOptions = {"workflow_name": WORKFLOW, "queue_name": QUEUE}
        items = [self._client.enqueue(what, TEXT).workflow_id for _ in range(number)]
        while True:
            time.sleep(0.1)
            found = self._client.list_workflows(workflow_ids=items, load_input=False, load_output=False)
            ended = [one.completed_at for one in found if one.status == "SUCCESS" and one.completed_at is not None]
            if len(ended) == number:
                break
        return Rate(number / (max(ended) / 1000 - began), ms(cpu_s(self._worker.pid) - before) / number)

    def close(self) -> None:
        self._client.destroy()
        self._worker.communicate(timeout=PATIENCE_S)


def ours(on: Stage, number: int, round_: int) -> Rate:
    before, began = cpu_s(on.worker.process.pid), time.time()
    items = [on.send(f"c{round_}-{one}", TEXT, waiting=False) for one in range(number)]

    def ended() -> list[float] | None:
        rows = on.turns(*items).values()
        return [row.ended_at for row in rows] if all(row.outcome for row in rows) else None

    last = max(on.until("all turns have ended", ended, every_s=0.1, patience_s=300))
    return Rate(number / (last - began), ms(cpu_s(on.worker.process.pid) - before) / number)


@contextmanager
def both(options: Options, database: str) -> Generator[tuple[Stage, Bare]]:
    """Our worker and the bare one, each with a database of its own on the same kind of server."""
    from tests.databases import TEMPLATE, serving_postgres

    with ExitStack() as stack:
        where: Ground = ground(options.directory)
        url, environ = f"sqlite:///{where.home}/bare.db", dict[str, str]()
        if database == "Postgres":
            server = stack.enter_context(serving_postgres(durable=True))
            url, environ = server.url(server.create()), {"DATABASE_URL": server.url(server.create(TEMPLATE))}
        on = stack.enter_context(stage(options, **environ))
        bare = Bare(url)
        stack.callback(bare.close)
        yield on, bare


def throughput(database: str) -> Callable[[Options], Mapping[str, Reading]]:
    def run(options: Options) -> Mapping[str, Reading]:
        from tests.databases import NoPostgres

        number = options.samples(CONVERSATIONS)
        try:
            return _measure(options, database, number)
        except NoPostgres as error:
            return absent(_figures(database), str(error))

    return run


def _measure(options: Options, database: str, number: int) -> Mapping[str, Reading]:
    with both(options, database) as (on, bare):
        pairs = [(ours(on, number, round_), bare.rate(number)) for round_ in range(ROUNDS + 1)][1:]
    rate, floor = (statistics.median(one.per_s for one in side) for side in zip(*pairs, strict=True))
    cpu, least = (statistics.median(one.cpu_ms for one in side) for side in zip(*pairs, strict=True))
    return {
        f"turns {database}": Reading(measured=rate, baseline=floor, note=f"{number} conversations"),
        f"turn cpu {database}": Reading(measured=cpu, baseline=least),
    }


def message_starts(options: Options) -> Mapping[str, Reading]:
    with stage(options) as on:
        taken: list[float] = []
        for number in range(options.samples(MESSAGES)):
            began = time.time()
            item = on.send(f"c{number}", TEXT, waiting=False)

            def ended(item: str = item) -> Any:
                row = on.turns(item).get(item)
                return row if row is not None and row.outcome else None

            taken.append(on.until("the turn has ended", ended, every_s=0.01).started_at - began)
    late = statistics.quantiles(taken, n=20)[-1]
    note = f"of {len(taken)} messages"
    return {
        "message starts": Reading(measured=ms(statistics.median(taken)), note=note),
        "message starts p95": Reading(measured=ms(late), note=note),
    }


def _figures(database: str) -> tuple[Figure, ...]:
    beside = f"of {CONVERSATIONS} conversations with a message each, {database} / the same agent in a bare workflow"
    return (
        Figure(name=f"turns {database}", says=f"turns {beside}", unit="/s", compare="ratio", limit=0.6, at_least=True),
        Figure(name=f"turn cpu {database}", says=f"CPU of a turn {beside}", compare="ratio", limit=2.0),
    )


BENCHES = (
    Bench(name="turns SQLite", run=throughput("SQLite"), figures=_figures("SQLite"), limit_s=600),
    Bench(name="turns Postgres", run=throughput("Postgres"), figures=_figures("Postgres"), limit_s=600),
    Bench(
        name="message starts",
        run=message_starts,
        figures=(
            Figure(
                name="message starts", says="message to an idle worker, for which nobody waits, to its turn", limit=30.0
            ),
            Figure(name="message starts p95", says="the same, 95th percentile", limit=80.0),
        ),
    ),
)
