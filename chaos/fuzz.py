"""`python -m chaos.fuzz`: property tests for as long as asked, one table, exit 1 on any failure."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, core, settings
from hypothesis.stateful import run_state_machine_as_test

from chaos.display import display
from chaos.grammar import grammar
from chaos.options import seconds, unless_cut_off
from shellback.storage import schema
from tests.databases import TEMPLATE, NoPostgres, serving_postgres
from tests.model import interleaved
from tests.model.loop import Loop, machine, set_up

EXAMPLES_AT_ONCE: Final = 50


@dataclass(slots=True)
class Tally:
    """What one part has done so far."""

    examples: int = 0
    steps: int = 0
    failures: int = 0

    def failed(self, what: str, error: BaseException) -> None:
        """Count a failure and say how to see it again."""
        self.failures += 1
        notes: list[str] = getattr(error, "__notes__", [])
        lines = traceback.format_exception_only(error)
        cause = error.__cause__
        while cause is not None:
            lines += ["because of", *traceback.format_exception_only(cause)]
            cause = cause.__cause__
        print(f"fuzz: {what}", *lines, *notes, sep="\n", file=sys.stderr, flush=True)


Part = Callable[[float, int, Tally], None]
"""Runs until a moment of `time.monotonic`, from this seed on."""


def loop_model(until: float, seed: int, tally: Tally) -> None:
    """The state machine over the loop, on SQLite."""
    profile: Any = settings(
        max_examples=EXAMPLES_AT_ONCE,
        stateful_step_count=60,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/model.db"
        schema.migrate(url)
        with set_up(url, Path(directory)) as bench:
            while time.monotonic() < until:
                Loop.steps = 0
                core.global_force_seed = seed
                try:
                    run_state_machine_as_test(machine(bench), settings=profile)
                except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - counted
                    tally.failed(f"the loop model with seed {seed}", error)
                tally.examples += EXAMPLES_AT_ONCE
                tally.steps += Loop.steps
                seed += 1


def interleavings(until: float, seed: int, tally: Tally) -> None:
    """Transactions that take turns statement by statement, on Postgres."""
    with serving_postgres() as server:
        while time.monotonic() < until:
            for name, scenario in interleaved.SCENARIOS.items():
                database = server.create(TEMPLATE)
                try:
                    with interleaved.set_up(server.url(database)) as stage:
                        scenario(stage, seed)
                        tally.steps += stage.steps
                except AssertionError as error:
                    tally.failed(f"{name} with seed {seed}", error)
                server.drop(database)
                tally.examples += 1
            seed += 1


PARTS: Final[dict[str, Part]] = {
    "loop model": loop_model,
    "interleavings": interleavings,
    "display": display,
    "grammar": grammar,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=seconds, default=600.0, help="for all parts together (600)")
    parser.add_argument("--seed", type=int, help="where to begin; another one each time unless given")
    parser.add_argument("--only", default="", metavar="TEXT", help="parts whose name has this in it")
    options = parser.parse_args(argv)
    seed = int(time.time()) if options.seed is None else options.seed
    chosen = {name: part for name, part in PARTS.items() if options.only in name}
    if not chosen:
        print(f"fuzz: no part has {options.only!r} in its name: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    return unless_cut_off("fuzz", lambda: _run(chosen, options.seconds, seed))


def _run(chosen: dict[str, Part], lasting: float, seed: int) -> int:
    print(f"{'part':<16}{'seed':>12}{'examples':>10}{'steps':>10}{'failures':>10}{'seconds':>9}")
    failures = 0
    for name, part in chosen.items():
        tally, began = Tally(), time.monotonic()
        try:
            part(began + lasting / len(chosen), seed, tally)
        except NoPostgres as error:
            sys.exit(f"fuzz: {error}; --only 'loop' goes without")
        took = time.monotonic() - began
        print(f"{name:<16}{seed:>12}{tally.examples:>10}{tally.steps:>10}{tally.failures:>10}{took:>9.0f}", flush=True)
        failures += tally.failures
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
