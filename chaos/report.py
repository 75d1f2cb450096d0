"""What all runs came to: a table for a terminal, one for a document, and JSON."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.cells import TRUE, Cell
from chaos.story import Count

COLUMNS: Final = ("lost", "doubled", "double_starts", "wrong_status", "unreached")
_SHOWN: Final = tuple(name.replace("_", " ") for name in COLUMNS)


@dataclass(slots=True)
class Row:
    """What came of all runs of a cell on one database."""

    cell: Cell
    database: str
    kills: int = 0
    wrong: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])
    kept: list[str] = field(default_factory=list[str])

    def add(self, count: Count, kept: Path | None = None) -> None:
        """Count one run, and where what is left of it can be studied."""
        self.kills += 1
        self.wrong.update({name: getattr(count, name) for name in COLUMNS})
        if count.note:
            self.notes[count.note] += 1
        if kept is not None:
            self.kept.append(str(kept))

    @property
    def clean(self) -> bool:
        """Nothing went wrong in any run."""
        return not self.wrong.total()

    @property
    def victims(self) -> str:
        """As in the table: a SQLite file has no process that could be killed."""
        if self.cell.victims == ("database",) and self.database == "sqlite":
            return "database held"
        return " + ".join(self.cell.victims)

    @property
    def kind(self) -> str:
        """Victims, and the backend where it is not the host."""
        if self.cell.elsewhere:
            return f"{self.victims}, with a worker elsewhere"
        return self.victims if self.cell.backend == "host" else f"{self.victims}, in {self.cell.backend}"

    @property
    def name(self) -> str:
        """Victims and point."""
        return f"{self.victims} at {self.cell.place}"

    @property
    def said(self) -> str:
        """The figures that are not zero."""
        return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in self.wrong.items() if number)


@dataclass(frozen=True, slots=True)
class Report:
    """Rows, what was left out and why, and how long it took."""

    rows: Sequence[Row]
    left_out: Sequence[str]
    took: float
    whole: bool

    def table(self) -> str:
        """A line for each cell."""
        head = ("cell", "database", "kills", *_SHOWN, f"ended otherwise than {TRUE}, as it may")
        lines: list[tuple[str, ...]] = [
            (row.name, row.database, str(row.kills), *(str(row.wrong[name]) for name in COLUMNS), _noted(row))
            for row in self.rows
        ]
        lines.append(("all", "", *_totals(self.rows), ""))
        widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
        shown = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in (head, *lines)
        ]
        return "\n".join([*shown, "", *self._ends()])

    def markdown(self) -> str:
        """A line for each kind of victim and database."""
        names = ("Killed", "Database", "Points", "Kills", *(name.capitalize() for name in _SHOWN[:-1]))
        lines: list[tuple[str, ...]] = [names, tuple("---" for _ in names)]
        groups = dict.fromkeys((row.kind, row.database) for row in self.rows)
        for kind, database in groups:
            rows = [row for row in self.rows if (row.kind, row.database) == (kind, database)]
            lines.append((kind, database, str(len(rows)), *_totals(rows)[:-1]))
        lines.append(("**all**", "", "", *_totals(self.rows)[:-1]))
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join([" ".join(self._ends()), table])

    def _ends(self) -> list[str]:
        facts = self.facts()
        cut = [] if self.whole else ["Cut off before its end."]
        return [
            f"{time.strftime('%Y-%m-%d', time.localtime(facts['at']))}, commit {facts['commit']},"
            f" {facts['machine']}, Python {facts['python']}; {self.took / 60:.1f} minutes.",
            *cut,
            *(f"Not run: {what}." for what in self.left_out),
        ]

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "at": time.time(),
            "commit": _commit(),
            "machine": _machine(),
            "python": platform.python_version(),
            "seconds": round(self.took, 1),
            "whole": self.whole,
            "left_out": list(self.left_out),
            "cells": [
                {"cell": row.name, "database": row.database, "kills": row.kills}
                | {name: row.wrong[name] for name in COLUMNS}
                | {"notes": dict(row.notes), "kept": row.kept}
                for row in self.rows
            ],
        }

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(self.facts(), indent=1) + "\n")
        draft.replace(path)


def _totals(rows: Sequence[Row]) -> tuple[str, ...]:
    return str(sum(row.kills for row in rows)), *(str(sum(row.wrong[name] for row in rows)) for name in COLUMNS)


def _noted(row: Row) -> str:
    return ", ".join(f"{number} {note}" for note, number in sorted(row.notes.items()))


def _commit() -> str:
    said = [
        subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parent).stdout
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    return (said[0].strip() or "unknown") + (" with changes" if said[1].strip() else "")


def _machine() -> str:
    cores, model = 0, platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        cores += name.strip() == "processor"
        model = value.strip() if name.strip() == "model name" else model
    return f"{cores} cores of {model}, Linux {platform.release()}"
