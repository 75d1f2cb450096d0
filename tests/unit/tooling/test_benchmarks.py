"""The harness of the benchmarks: who takes turns, what counts, and what is named when it misses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.harness import Bench, Figure, Options, Reading, Result, judge, missed

QUICK = Figure(name="quick", says="how quick", compare="ratio", limit=1.5)
MANY = Figure(name="many", says="how many", unit="/s", limit=400.0, at_least=True)
SHOWN = Figure(name="shown", says="only printed")


def bench(*figures: Figure) -> Bench:
    def run(_: Options) -> Mapping[str, Reading]:
        raise NotImplementedError

    return Bench(name="bench", figures=figures, run=run)


def readings_of(*given: Mapping[str, Reading]) -> Callable[[], Mapping[str, Reading]]:
    return iter(given).__next__


@pytest.mark.parametrize(
    ("figure", "reading", "ok"),
    [
        (QUICK, Reading(measured=3.0, baseline=2.0), True),
        (QUICK, Reading(measured=3.1, baseline=2.0), False),
        (MANY, Reading(measured=400.0), True),
        (MANY, Reading(measured=399.0), False),
        (Figure(name="late", says="", compare="difference", limit=1.0), Reading(measured=6.0, baseline=5.0), True),
        (Figure(name="late", says="", compare="difference", limit=1.0), Reading(measured=6.5, baseline=5.0), False),
        (SHOWN, Reading(measured=1e9), True),
    ],
)
def test_a_reading_keeps_its_limit_or_not(figure: Figure, reading: Reading, ok: bool) -> None:
    result = Result(figure)
    result.take(reading)
    assert result.ok is ok


def test_the_best_of_three_repeats_decides() -> None:
    slow, slower = Reading(measured=1.8, baseline=1.0), Reading(measured=2.0, baseline=1.0)
    (result,) = judge(bench(QUICK), readings_of({"quick": slower}, {"quick": slow}, {"quick": slower}))
    assert (result.best, result.all) == (slow, [slower, slow, slower])
    assert missed([result]) == ["quick"]


def test_a_benchmark_that_fails_misses_all_its_figures() -> None:
    def fail() -> Mapping[str, Reading]:
        raise RuntimeError("no room")

    assert missed(judge(bench(QUICK, SHOWN), fail)) == ["quick", "shown"]


def test_a_figure_that_was_not_measured_is_named_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = Result(MANY)
    fine.take(Reading(measured=500.0))
    file = tmp_path / "new" / "results.json"
    assert program.finish([fine, Result(QUICK)], Options(quick=True), file) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == ["MISSED: quick"]
    assert "QUICK" in said.out
    written = json.loads(file.read_text())
    assert (written["missed"], written["quick"], len(written["figures"])) == (["quick"], True, 2)
