"""`python -m chaos`: every cell, as often as asked, one table, exit 1 when anything was lost or doubled."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.cells import Cell, cells, quick_cells
from chaos.story import Count, live_through
from tests.databases import TEMPLATE, NoPostgres, serving_postgres

RESULTS: Final = Path(__file__).parent / "results" / "latest.json"
COLUMNS: Final = ("lost", "doubled", "double_starts", "wrong_status", "unreached")


@dataclass(slots=True)
class Row:
    """What came of all runs of a cell on one database."""

    cell: Cell
    database: str
    kills: int = 0
    wrong: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])

    def add(self, count: Count) -> None:
        """Count one run."""
        self.kills += 1
        self.wrong.update({name: getattr(count, name) for name in COLUMNS})
        if count.note:
            self.notes[count.note] += 1

    @property
    def clean(self) -> bool:
        """Nothing went wrong in any run."""
        return not self.wrong.total()


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit code."""
    options = _options(argv)
    chosen = [cell for cell in (quick_cells() if options.quick else cells()) if options.only in cell.name]
    if options.list:
        print("\n".join(cell.name for cell in chosen))
        return 0
    plan = {"sqlite": options.repeats or (1 if options.quick else 25), "postgres": options.repeats or 5}
    if options.quick or options.database:
        plan = {name: times for name, times in plan.items() if name == (options.database or "sqlite")}
    began = time.monotonic()
    rows: list[Row] = []
    for database, repeats in plan.items():
        with _urls(database) as new_url:
            rows += _run(chosen, database, repeats, new_url, options.jobs)
    took = time.monotonic() - began
    print(_table(rows, took))
    _write(options.json, rows, took)
    failed = [row for row in rows if not row.clean]
    for row in failed:
        print(f"chaos: {row.cell.name} on {row.database}: {_said(row.wrong)}", file=sys.stderr)
    return 1 if failed or not rows else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Kill worker, supervisor and keeper with kill -9 at every named point of the loop, and count what "
        "was lost or done twice: from outside, in the command's own file, in the queue's table and in the answers.",
    )
    parser.add_argument("--quick", action="store_true", help="a part of the cells, once each, on SQLite")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells whose name has this in it")
    parser.add_argument("--database", choices=("sqlite", "postgres"), help="only on this one")
    parser.add_argument("--repeats", type=int, help="of each cell (25 on SQLite, 5 on Postgres)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--json", type=Path, default=RESULTS, help=f"where the facts go ({RESULTS.parent.name}/...)")
    parser.add_argument("--list", action="store_true", help="print the cells and end")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _urls(database: str) -> Generator[Callable[[], str | None]]:
    if database == "sqlite":
        yield lambda: None
        return
    try:
        with serving_postgres() as server:
            yield lambda: server.url(server.create(TEMPLATE))
    except NoPostgres as error:
        sys.exit(f"chaos: {error}; --database sqlite goes without")


def _run(
    chosen: Sequence[Cell], database: str, repeats: int, new_url: Callable[[], str | None], jobs: int
) -> list[Row]:
    rows = [Row(cell, database) for cell in chosen]
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[Count], Row] = {
            pool.submit(live_through, row.cell, new_url()): row for row in rows for _ in range(repeats)
        }
        for number, done in enumerate(as_completed(running), 1):
            row = running[done]
            row.add(done.result())
            mark = "" if row.clean else f"  {_said(row.wrong)}"
            print(f"{number}/{len(running)} {database}: {row.cell.name}{mark}", file=sys.stderr, flush=True)
    return rows


def _said(wrong: Counter[str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in wrong.items() if number)


def _table(rows: Sequence[Row], took: float) -> str:
    head = ("cell", "database", "kills", *(name.replace("_", " ") for name in COLUMNS), "ended otherwise, as it may")
    lines = [
        (row.cell.name, row.database, str(row.kills), *(str(row.wrong[name]) for name in COLUMNS), _noted(row))
        for row in rows
    ]
    total = tuple(str(sum(row.wrong[name] for row in rows)) for name in COLUMNS)
    lines.append(("all", "", str(sum(row.kills for row in rows)), *total, ""))
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    first = "  ".join(text.ljust(width) for text, width in zip(head, widths, strict=True)).rstrip()
    return "\n".join([first, *shown, "", f"{took / 60:.1f} minutes, {platform.platform()}"])


def _noted(row: Row) -> str:
    return ", ".join(f"{number} {note}" for note, number in row.notes.items())


def _write(path: Path, rows: Sequence[Row], took: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = [
        {"cell": row.cell.name, "database": row.database, "kills": row.kills}
        | {name: row.wrong[name] for name in COLUMNS}
        | {"notes": dict(row.notes)}
        for row in rows
    ]
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    path.write_text(json.dumps({"at": time.time(), "seconds": took, **machine, "cells": facts}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
