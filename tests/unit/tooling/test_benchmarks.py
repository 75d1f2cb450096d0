"""The harness of the benchmarks: who takes turns, what counts, and what is named when it misses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import harness, report, sandbox
from benchmarks.harness import Bench, Figure, Options, Reading, Result, alternate, judge, missed
from shellback.exec.backends.probe import Found

QUICK = Figure(name="quick", says="how quick", compare="ratio", limit=1.5)
MANY = Figure(name="many", says="how many", unit="/s", limit=400.0, at_least=True)
SHOWN = Figure(name="shown", says="only printed")


def bench(*figures: Figure) -> Bench:
    def run(_: Options) -> Mapping[str, Reading]:
        raise NotImplementedError

    return Bench(name="bench", figures=figures, run=run)


def readings_of(*given: Mapping[str, Reading]) -> Callable[[], Mapping[str, Reading]]:
    return iter(given).__next__


def test_measures_take_turns_in_an_order_that_is_reversed_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SETTLE_S", 0)
    order: list[str] = []

    def measure(name: str) -> Callable[[], Awaitable[float]]:
        async def once() -> float:
            order.append(name)
            return 0.0

        return once

    asyncio.run(alternate(3, measure("a"), measure("b"), warm_up=1))
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_the_median_counts_and_warming_up_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SETTLE_S", 0)
    ours, theirs = iter([50.0, 1.0, 100.0, 3.0]), iter([60.0, 2.0, 2.0, 2.0])

    async def first() -> float:
        return next(ours)

    async def second() -> float:
        return next(theirs)

    assert asyncio.run(alternate(3, first, second, warm_up=1)) == [3.0, 2.0]


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


def test_what_keeps_its_limits_is_not_repeated() -> None:
    (result,) = judge(bench(QUICK), readings_of({"quick": Reading(measured=1.0, baseline=1.0)}))
    assert len(result.all) == 1
    assert missed([result]) == []


def test_a_figure_may_keep_its_limit_in_another_repeat_than_its_neighbour() -> None:
    good, bad = Reading(measured=1.0, baseline=1.0), Reading(measured=9.0, baseline=1.0)
    few, many = Reading(measured=1.0), Reading(measured=500.0)
    results = judge(bench(QUICK, MANY), readings_of({"quick": good, "many": few}, {"quick": bad, "many": many}))
    assert missed(results) == []


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


def test_without_a_miss_the_exit_code_is_0(tmp_path: Path) -> None:
    fine = Result(SHOWN)
    fine.take(Reading(measured=500.0))
    assert program.finish([fine], Options(), tmp_path / "results.json") == 0


def test_the_table_has_a_line_for_each_figure() -> None:
    result = Result(QUICK)
    result.take(Reading(measured=3.0, baseline=2.5, note="on a quiet machine"))
    line, told = (text for text in report.table([result]).splitlines() if text.startswith("quick"))
    assert line.split() == ["quick", "3", "ms", "2.50", "ms", "1.20x", "<=", "1.50x", "ok"]
    assert told == "quick: how quick (on a quiet machine)"


def test_what_cannot_be_had_on_a_machine_is_said_and_not_missed() -> None:
    results = judge(bench(QUICK, MANY), readings_of(harness.absent([QUICK, MANY], "no sandboxes here")))
    assert missed(results) == []
    text = report.table(results)
    assert text.count("not here") == 2
    assert "quick: how quick (no sandboxes here)" in text
    assert results[0].to_json()["value"] is None


def test_what_was_measured_in_one_repeat_counts_more_than_that_it_was_absent_in_another() -> None:
    slow = Reading(measured=3.0, baseline=1.0)
    for first, second in ((Reading(absent="gone"), slow), (slow, Reading(absent="gone"))):
        result = Result(QUICK)
        result.take(first)
        result.take(second)
        assert (result.best, result.ok) == (slow, False)


def found(why: str, *, passing: bool = False) -> Callable[[object], Found]:
    def probe(_: object) -> Found:
        return Found(ok=False, why=why, passing=passing)

    return probe


def test_sandboxes_that_cannot_be_made_are_said_by_each_of_their_benchmarks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sandbox, "probe", found("no user namespaces"))
    for each in sandbox.BENCHES:
        readings = each.run(Options(directory=tmp_path))
        assert {figure.name for figure in each.figures} == set(readings)
        assert {reading.absent for reading in readings.values()} == {"no user namespaces"}


def test_a_probe_of_sandboxes_that_may_go_well_next_time_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sandbox, "probe", found("out of memory", passing=True))
    with pytest.raises(RuntimeError, match="out of memory"):
        sandbox.refused(Options(directory=tmp_path))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SystemExit, match="'nothing'"):
        program.chosen([bench(QUICK)], ["nothing"])


def test_every_figure_has_a_name_of_its_own() -> None:
    names = [figure.name for each in program.benches() for figure in each.figures]
    assert len(names) == len(set(names))
