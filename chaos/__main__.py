"""`python -m chaos`: every cell, as often as asked, one table, exit 1 when anything was lost or doubled."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chaos.cells import (
    Cell,
    cells,
    client_cells,
    connected_cells,
    contained_cells,
    elsewhere_cells,
    foreground_cells,
    quick_cells,
    sandboxed_cells,
    watched_cells,
)
from chaos.options import whole
from chaos.report import Report, Row
from chaos.runs import Runs
from tests import images, sandboxes
from tests.databases import NoPostgres, pgbouncer
from tests.nursery import NoNursery, probe_machines

RESULTS: Final = Path(__file__).parent / "results" / "latest.json"
REPEATS: Final = {"sqlite": 25, "postgres": 5}
SANDBOXED: Final = 2
"""Repeats of a cell in a sandbox, on one database, SQLite unless told: what differs there has to do with none."""
SAY_S: Final = 10.0
SAVE_S: Final = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit code."""
    options = _options(argv)
    rows, left_out = _rows(options)
    if not rows:
        print(f"chaos: no cell has {options.only!r} in its name: --list shows them", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{row.name} ({row.database})" for row in rows))
        return 0
    began = time.monotonic()
    ended = 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        until = math.inf if options.within is None else began + options.within
        with Runs(options.jobs, options.kept, until) as runs:
            _follow(runs, rows, options, left_out, began)
            if runs.skipped:
                left_out.append(f"{runs.skipped} runs (no time was left for them)")
    except NoPostgres as error:
        ended = 2
        print(f"chaos: {error}; --database sqlite goes without", file=sys.stderr)
    except KeyboardInterrupt:
        ended = 130
        print("chaos: cut off", file=sys.stderr)
    report = Report([row for row in rows if row.kills], left_out, time.monotonic() - began, whole=not ended)
    print(report.markdown() if options.markdown else report.table())
    report.write(options.json)
    failed = [row for row in rows if not row.clean]
    for row in failed:
        where = f"; see {', '.join(row.kept)}" if row.kept else ""
        print(f"chaos: {row.name} on {row.database}: {row.said}{where}", file=sys.stderr)
    return ended or (1 if failed else 0)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Kill worker, its host elsewhere, supervisor, keeper, proxy, database, pgbouncer, machine with "
        "kill -9, or cut the link to Postgres, at every named point of the loop, and count what was lost or done "
        "twice: from outside, in the command's own file, in the queue's table and in the answers.",
    )
    parser.add_argument("--quick", action="store_true", help="a part of the cells, once each")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this in it")
    parser.add_argument("--database", choices=tuple(REPEATS), help="only on this one")
    parser.add_argument("--repeats", type=whole, help="of each cell (25 on SQLite, 5 on Postgres)")
    parser.add_argument(
        "--jobs", type=whole, default=5 * (os.cpu_count() or 1), help="runs at a time (5 for each core)"
    )
    parser.add_argument(
        "--within", type=whole, metavar="S", help="begin no run after so many seconds, and say how many were left out"
    )
    parser.add_argument("--forked", action="store_true", help="no worker from scratch, which one repeat on SQLite has")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"where the facts go ({RESULTS.parent.name}/...)")
    parser.add_argument("--kept", type=Path, help="where what is left of runs that went wrong is put (a new directory)")
    parser.add_argument("--markdown", action="store_true", help="print the short table, for a document")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    return parser.parse_args(argv)


def _rows(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    rows = [
        Row(cell, database)
        for database in ([options.database] if options.database else REPEATS)
        for cell in (quick_cells if options.quick else cells)(database)
    ]
    rows += [
        Row(cell, database)
        for part, every in ((watched_cells(), 2), (foreground_cells(), 2), (client_cells(), 4))
        for number, database in enumerate([options.database] if options.database else REPEATS)
        for cell in part[number :: every if options.quick else 1]
    ]
    one = options.database or "sqlite"
    rows += [Row(cell, one) for cell in sandboxed_cells()[:: 2 if options.quick else 1]]
    rows += [Row(cell, one) for cell in connected_cells()[:: 3 if options.quick else 1]]
    rows += [Row(cell, one) for cell in contained_cells()[:: 4 if options.quick else 1]]
    if options.database != "sqlite":
        rows += [Row(cell, "postgres") for cell in elsewhere_cells()[:: 13 if options.quick else 1]]
    rows = [row for row in rows if options.only in row.name]
    left_out: list[str] = []
    for what, lacks, why_not in _CONDITIONS:
        if any(lacks(row.cell) for row in rows) and (why := why_not()):
            left_out.append(f"the cells {what} ({why})")
            rows = [row for row in rows if not lacks(row.cell)]
    return rows, left_out


def _no_machine() -> str | None:
    try:
        probe_machines()
    except NoNursery as error:
        return str(error)
    return None


_CONDITIONS: Final[Sequence[tuple[str, Callable[[Cell], bool], Callable[[], str | None]]]] = (
    ("in bubblewrap", lambda cell: cell.backend == "bubblewrap", sandboxes.refusal),
    (
        "of connections",
        lambda cell: cell.is_connected,
        lambda: None if shutil.which("curl") else "curl is not installed",
    ),
    ("in podman", lambda cell: cell.backend == "podman", images.refusal),
    (
        "of pgbouncer",
        lambda cell: cell.victims == ("pgbouncer",),
        lambda: "it is not installed" if pgbouncer() is None else None,
    ),
    ("of the machine", lambda cell: cell.victims == ("machine",), _no_machine),
)
"""Cells that need what a machine may lack: which they are, and why it is not there."""


def _follow(runs: Runs, rows: Sequence[Row], options: argparse.Namespace, left_out: list[str], began: float) -> None:
    given = options.repeats or (1 if options.quick else None)
    repeats = {id(row): given or (REPEATS[row.database] if row.cell.backend == "host" else SANDBOXED) for row in rows}
    todo: list[tuple[Row, bool]] = []
    # Each cell once, then each again: what is cut off has seen all of them as often. Mixed, since the slow ones,
    # those that wait and those that need a server of their own stand side by side.
    for number in range(max(repeats.values())):
        executed = number == 0 and not (options.quick or options.forked)
        some = [(row, executed and row.database == "sqlite") for row in rows if number < repeats[id(row)]]
        random.Random(number).shuffle(some)  # noqa: S311 - an order, not a secret
        todo += some
    said = saved = began
    for number, (row, count, kept) in enumerate(runs.of(todo), 1):
        row.add(count, kept)
        now = time.monotonic()
        if not count.clean:
            print(f"{row.name} on {row.database}: {row.said}; {count.note} {kept or ''}", file=sys.stderr, flush=True)
        if now - said > SAY_S or number == len(todo):
            said = now
            left = (now - began) / number * (len(todo) - number)
            wrong = sum(not each.clean for each in rows)
            print(
                f"{number}/{len(todo)} runs, {wrong} cells not clean, {number / (now - began) * 60:.0f} a minute, "
                f"about {left / 60:.1f} minutes left",
                file=sys.stderr,
                flush=True,
            )
        if now - saved > SAVE_S:
            saved = now
            with contextlib.suppress(OSError):
                Report([each for each in rows if each.kills], left_out, now - began, whole=False).write(options.json)


if __name__ == "__main__":
    sys.exit(main())
