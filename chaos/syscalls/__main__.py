"""`python -m chaos.syscalls`: every call of the chosen processes disturbed, one table, exit 1 naming what failed."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from chaos.options import pattern, unless_cut_off, whole
from chaos.syscalls import tracer
from chaos.syscalls.life import WRONG, Count, disturb, template, watch
from chaos.syscalls.points import ALL, PROCESSES, STORIES, THREADS, Point, points

BASELINES: Final = 2
"""Undisturbed lives whose calls are put together: what a thread calls varies a little."""
TRIES: Final = 3
"""Lives in which a point that is not reached is tried again."""
UNREACHED_MAX: Final = 0.2
"""More of the points than this unreached means that nothing was tested."""
COLUMNS: Final = ("reached", "refused", "never_started", *WRONG)


@dataclass(slots=True)
class Row:
    """What came of all points of one call of a process, killed or answered with errors."""

    process: str
    call: str
    kind: str
    points: int = 0
    runs: int = 0
    unreached: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])

    def add(self, found: Sequence[Count]) -> None:
        """Count the runs of one point."""
        self.points += 1
        self.runs += len(found)
        self.unreached += not any(count.reached for count in found)
        for count in found:
            self.counts.update({name: getattr(count, name) for name in COLUMNS})


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit code."""
    options = _options(argv)
    return unless_cut_off("chaos.syscalls", lambda: _asked_for(options))


def _asked_for(options: argparse.Namespace) -> int:
    # What the engine warns of is what is done to it here.
    logging.getLogger("shellback").setLevel(logging.CRITICAL)
    try:
        tracer.check()
    except tracer.NoTracing as error:
        print(f"chaos.syscalls: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shellback-sweep-") as folder:
        database = template(Path(folder) / "template.db")
        chosen = [point for point in _points(options, database, Path(folder)) if re.search(options.only, point.name)]
        if not chosen:
            print(f"chaos.syscalls: no point matches {options.only!r}: --list shows them", file=sys.stderr)
            return 2
        if options.list:
            print("\n".join(point.name for point in chosen))
            return 0
        found = _run(chosen, options, database)
    took = time.monotonic() - began
    rows = _rows(found)
    print(_markdown(rows, took) if options.markdown else _table(rows, took))
    if options.json:
        options.json.write_text(json.dumps(_facts(rows, found, took), indent=1) + "\n")
    return _verdict(found)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.syscalls",
        description="Live through one session's life again and again, each time with supervisor or keeper killed at "
        "another of its system calls, or one of them answered with an error, and count what was lost or done twice.",
    )
    parser.add_argument("--process", choices=PROCESSES, help="only this one")
    parser.add_argument("--story", choices=STORIES, help="only this one")
    parser.add_argument("--kills", action="store_true", help="only kills")
    parser.add_argument("--errors", action="store_true", help="only errors")
    parser.add_argument("--only", type=pattern, default="", metavar="PATTERN", help="points whose name matches")
    parser.add_argument("--every", type=whole, default=1, metavar="N", help="a sample: each N-th point (1)")
    # No multiple of the number of errors, which would take the same one at every call.
    parser.add_argument("--recovery-every", type=whole, default=6, metavar="N", help="the same for recovery (6)")
    parser.add_argument("--repeats", type=whole, default=1, help="of each point (1)")
    parser.add_argument("--jobs", type=whole, default=2, help="lives at a time (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the facts go")
    parser.add_argument("--markdown", action="store_true", help="the table for a document")
    parser.add_argument("--list", action="store_true", help="print the points and end")
    return parser.parse_args(argv)


def _points(options: argparse.Namespace, database: Path, folder: Path) -> list[Point]:
    found: list[Point] = []
    for story in STORIES if options.story is None else (options.story,):
        for process in PROCESSES if options.process is None else (options.process,):
            several = process == "supervisor" and story != "recovery"
            threads = THREADS if several else (ALL if process == "supervisor" else THREADS[0],)
            here: list[Point] = []
            for thread in threads:
                traces: list[list[tracer.Call]] = []
                for number in range(BASELINES):
                    trace = folder / f"{story}-{process}-{thread}-{number}"
                    count = watch(story, process, thread, database, trace)
                    if not count.clean:
                        sys.exit(f"chaos.syscalls: {process} undisturbed ({story}): {_said(count)}")
                    traces.append(tracer.calls(trace))
                here += points(story, process, thread, traces)
            here = [point for point in here if not (options.kills if point.error else options.errors)]
            found += here[:: options.recovery_every * options.every if story == "recovery" else options.every]
    return found


def _run(chosen: Sequence[Point], options: argparse.Namespace, database: Path) -> dict[Point, list[Count]]:
    found: dict[Point, list[Count]] = {point: [] for point in chosen}
    todo = [point for point in chosen for _ in range(options.repeats)]
    # In no order, so that what the machine does meanwhile spreads over all.
    random.shuffle(todo)
    with ThreadPoolExecutor(options.jobs) as pool:
        running: dict[Future[Count], Point] = {pool.submit(_disturbed, point, database): point for point in todo}
        try:
            for number, done in enumerate(as_completed(running), 1):
                point, count = running[done], done.result()
                found[point].append(count)
                if not count.clean or number % 50 == 0:
                    print(f"{number}/{len(todo)} {point.name}  {_said(count)}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            # What has begun clears away what it started, and the table has what there is.
            pool.shutdown(cancel_futures=True)
    return {point: counts for point, counts in found.items() if counts}


def _disturbed(point: Point, database: Path) -> Count:
    """A run that reached the point, if one of a few does; one that went wrong whether or not it did."""
    with tempfile.TemporaryDirectory(prefix="shellback-trace-") as folder:
        for _ in range(TRIES - 1):
            count = disturb(point, database, Path(folder) / "trace")
            if count.reached or not count.clean:
                return count
        return disturb(point, database, Path(folder) / "trace")


def _rows(found: dict[Point, list[Count]]) -> list[Row]:
    rows: dict[tuple[str, str, str], Row] = {}
    for point, counts in found.items():
        key = point.process, point.call, "errors" if point.error else "kills"
        rows.setdefault(key, Row(*key)).add(counts)
    return [rows[key] for key in sorted(rows, key=lambda key: (key[0] != "supervisor", key[2], key[1]))]


def _cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    names = (name.replace("_", " ") for name in COLUMNS[1:])
    lines: list[tuple[str, ...]] = [("process", "call", "with", "points", "runs", "unreached", *names)]
    total = Row("all", "", "")
    for row in rows:
        lines.append(_cell(row))
        total.points += row.points
        total.runs += row.runs
        total.unreached += row.unreached
        total.counts += row.counts
    return [*lines, _cell(total)]


def _cell(row: Row) -> tuple[str, ...]:
    numbers = (row.points, row.runs, row.unreached, *(row.counts[name] for name in COLUMNS[1:]))
    return row.process, row.call, row.kind, *map(str, numbers)


def _table(rows: Iterable[Row], took: float) -> str:
    cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join([*lines, "", _footer(took)])


def _markdown(rows: Iterable[Row], took: float) -> str:
    head, *lines = _cells(rows)
    shown = [" | ".join(line) for line in (head, ["---"] * len(head), *lines)]
    return "\n".join([*(f"| {line} |" for line in shown), "", _footer(took)])


def _footer(took: float) -> str:
    return f"{took / 60:.1f} minutes, {platform.platform()}, Python {platform.python_version()}"


def _facts(rows: Sequence[Row], found: dict[Point, list[Count]], took: float) -> dict[str, object]:
    return {
        "at": time.time(),
        "seconds": took,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "calls": [dict(zip(_cells([])[0], _cell(row), strict=True)) for row in rows],
        "failed": [
            {"point": point.name, **asdict(count)}
            for point, counts in found.items()
            for count in counts
            if not count.clean
        ],
    }


def _verdict(found: dict[Point, list[Count]]) -> int:
    failed = [(point, count) for point, counts in found.items() for count in counts if not count.clean]
    for point, count in failed:
        print(f"chaos.syscalls: {point.name}: {_said(count)}", file=sys.stderr)
    unreached = sum(not any(count.reached for count in counts) for counts in found.values())
    if unreached > UNREACHED_MAX * len(found) + 3:
        print(f"chaos.syscalls: {unreached} of {len(found)} points were not reached", file=sys.stderr)
        return 1
    return 1 if failed or not found else 0


def _said(count: Count) -> str:
    wrong = [f"{name.replace('_', ' ')} {getattr(count, name)}" for name in WRONG if getattr(count, name)]
    return "; ".join([*wrong, *([count.note] if count.note else [])])


if __name__ == "__main__":
    sys.exit(main())
