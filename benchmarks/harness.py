"""What every benchmark shares: figures with limits, samples that take turns, and the verdict."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, Final, Literal

REPEATS: Final = 3
WARM_UP: Final = 5
FLOOR_MS: Final = 1.6
"""Absolute limits hold where asyncio takes at most this long for `true`; on a slower machine they are scaled."""
SETTLE_S: Final = 0.005
"""Between samples: what one leaves behind is not paid by the next, which is the other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number and its limit; without a limit it is only printed.

    What is held against the limit is `ratio` (measured / baseline), `difference` (measured - baseline)
    or `value` (measured alone). A `scaled` limit is that of a machine with a floor of `FLOOR_MS`.
    """

    name: str
    says: str
    unit: str = "ms"
    compare: Literal["ratio", "difference", "value"] = "value"
    limit: float | None = None
    at_least: bool = False
    scaled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One measurement of a figure, in the figure's unit; with `absent`, why it cannot be had on this machine.

    `floor` are milliseconds of `true` by asyncio in the same run, as our user: a scaled limit grows with it.
    """

    measured: float = 0.0
    baseline: float | None = None
    floor: float | None = None
    note: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How much is measured, and where: `directory` is a file system with room for a few GB."""

    quick: bool = False
    directory: Path = Path(tempfile.gettempdir())

    def samples(self, full: int = 200) -> int:
        """How many samples a median is of."""
        return max(3, full // 10) if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Something that runs once and yields readings of all its figures, within `limit_s` seconds."""

    name: str
    figures: tuple[Figure, ...]
    run: Callable[[Options], Mapping[str, Reading]]
    limit_s: float = 300.0


@dataclass(slots=True)
class Result:
    """A figure with its best reading; `all` has one for every repeat. Without any reading it is missed."""

    figure: Figure
    best: Reading | None = None
    all: list[Reading] = field(default_factory=list[Reading])

    @property
    def value(self) -> float | None:
        """What is held against the limit."""
        return None if self.best is None or self.best.absent else value_of(self.figure, self.best)

    @property
    def ok(self) -> bool:
        """Whether the figure keeps its limit."""
        return self.best is not None and keeps(self.figure, self.best)

    def take(self, reading: Reading) -> None:
        """Count one more repeat."""
        self.all.append(reading)
        if self.best is None or self.best.absent:
            self.best = reading
        if reading.absent:
            return
        sign = -1 if self.figure.at_least else 1
        if sign * value_of(self.figure, reading) < sign * value_of(self.figure, self.best):
            self.best = reading

    def to_json(self) -> dict[str, Any]:
        """Everything that is known of it."""
        return {
            **asdict(self.figure),
            "value": self.value,
            "ok": self.ok,
            "best": None if self.best is None else asdict(self.best),
            "repeats": [asdict(reading) for reading in self.all],
        }


def value_of(figure: Figure, reading: Reading) -> float:
    """What of a reading is held against the figure's limit."""
    if figure.compare == "value":
        return reading.measured
    if reading.baseline is None:
        raise ValueError(f"{figure.name} is compared with a baseline, and has none")
    if figure.compare == "difference":
        return reading.measured - reading.baseline
    return reading.measured / reading.baseline if reading.baseline else float("inf")


def keeps(figure: Figure, reading: Reading) -> bool:
    """Whether a reading is within the limit; one that cannot be had here is."""
    if figure.limit is None or reading.absent:
        return True
    value, slower = value_of(figure, reading), 1.0
    if figure.scaled:
        if reading.floor is None:
            raise ValueError(f"the limit of {figure.name} is scaled, and its reading has no floor")
        slower = max(1.0, reading.floor / FLOOR_MS)
    return value >= figure.limit / slower if figure.at_least else value <= figure.limit * slower


def judge(bench: Bench, run: Callable[[], Mapping[str, Reading]], *, repeats: int = REPEATS) -> list[Result]:
    """Run a benchmark until each of its figures has kept its limit once, at most `repeats` times."""
    results = {figure.name: Result(figure) for figure in bench.figures}
    for repeat in range(repeats):
        say(f"{bench.name}{f', repeat {repeat + 1}' if repeat else ''} ...")
        began = time.monotonic()
        try:
            readings = run()
        except Exception as error:  # noqa: BLE001 - its figures are missed, the others are still measured
            say(f"{bench.name}: {type(error).__name__}: {error}")
            continue
        for name, reading in readings.items():
            results[name].take(reading)
        say(f"{bench.name}: {time.monotonic() - began:.1f} s")
        if all(result.ok for result in results.values()):
            break
    return list(results.values())


def absent(figures: Sequence[Figure], why: str) -> dict[str, Reading]:
    """Readings that say why there are none on this machine: said in the table, and not missed."""
    return {figure.name: Reading(absent=why) for figure in figures}


def missed(results: Sequence[Result]) -> list[str]:
    """Names of the figures that did not keep their limits, or were not measured."""
    return [result.figure.name for result in results if not result.ok]


async def alternate(samples: int, *measures: Callable[[], Awaitable[float]], warm_up: int = WARM_UP) -> list[float]:
    """Median seconds of each measure, which says itself how long it took.

    They take turns, in an order that is reversed each round, so what the machine does meanwhile and
    who comes after whom is the same for all. `warm_up` rounds are not counted.
    """
    taken: list[list[float]] = [[] for _ in measures]
    for number in range(-warm_up, samples):
        order = range(len(measures)) if number % 2 else reversed(range(len(measures)))
        for place in order:
            seconds = await measures[place]()
            if number >= 0:
                taken[place].append(seconds)
            await asyncio.sleep(SETTLE_S)
    return [statistics.median(one) for one in taken]


async def bare_true() -> float:
    """Seconds of `true` by asyncio alone, without a shell and without a change of user: the floor of the machine."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec("true", stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    await process.wait()
    return time.perf_counter() - began


async def floor_ms(samples: int) -> float:
    """Milliseconds of `bare_true`."""
    return ms((await alternate(samples, bare_true))[0])


def ms(seconds: float) -> float:
    """Milliseconds."""
    return seconds * 1000


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
