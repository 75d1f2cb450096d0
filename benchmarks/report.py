"""The table, and the same as JSON with what is needed to read it later."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import FLOOR_MS, Figure, Options, Result, missed

ROOT = Path(__file__).resolve().parents[1]


def table(results: Sequence[Result]) -> str:
    """One line for each figure, then what is noted about them."""
    rows = [("figure", "measured", "baseline", "result", "limit", "ok")]
    rows += [_row(result) for result in results]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.append("")
    lines += [f"{result.figure.name}: {result.figure.says}{_noted(result)}" for result in results]
    return "\n".join(lines)


def _noted(result: Result) -> str:
    said = "" if result.best is None else result.best.absent or result.best.note
    return f" ({said})" if said else ""


def _row(result: Result) -> tuple[str, ...]:
    figure, best, value, limit = result.figure, result.best, result.value, limit_of(result.figure)
    if best is not None and best.absent:
        return (figure.name, "-", "-", "-", limit, "not here")
    if best is None or value is None:
        return (figure.name, "-", "-", "-", limit, "MISSED")
    compared = {"ratio": f"{value:.2f}x", "difference": f"{value:+.2f} {figure.unit}", "value": ""}[figure.compare]
    return (
        figure.name,
        f"{_shown(best.measured)} {figure.unit}".rstrip(),
        "" if best.baseline is None else f"{_shown(best.baseline)} {figure.unit}".rstrip(),
        compared,
        limit,
        "ok" if result.ok else "MISSED",
    )


def limit_of(figure: Figure) -> str:
    """The limit as people read it."""
    if figure.limit is None:
        return "printed"
    unit = "x" if figure.compare == "ratio" else f" {figure.unit}".rstrip()
    return f"{'>=' if figure.at_least else '<='} {_shown(figure.limit)}{unit}{' *' if figure.scaled else ''}"


def _shown(number: float) -> str:
    return f"{number:.0f}" if number == round(number) else f"{number:.2f}" if abs(number) < 100 else f"{number:.1f}"


def notes(options: Options) -> list[str]:
    """What has to be known to read the table."""
    found = [
        f"medians of {options.samples()}, taking turns with their baseline; a figure that misses is measured again, "
        "at most three times, and the best counts",
        f"* where asyncio runs `true` within {FLOOR_MS:g} ms, as our user; on a slower machine in proportion",
    ]
    if options.quick:
        found.append("QUICK: fewer samples, 128 MB instead of 1 GB, 15 s instead of 60 s; not for the record")
    if os.geteuid() == 0:
        found.append(
            "as root, commands run as uid 65534, and so does every baseline process, with the same argv "
            "(bash --noprofile --norc -c ...), environment and directory; Python forks for a change of user "
            "where it would vfork otherwise"
        )
    else:
        found.append("baseline processes have the same argv (bash --noprofile --norc -c ...), environment, directory")
    return found


def surroundings(options: Options) -> dict[str, Any]:
    """Date, commit and machine."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
        },
        "quick": options.quick,
    }


def summary(around: dict[str, Any]) -> str:
    """`surroundings` in one line."""
    machine = around["machine"]
    return (
        f"{around['date']}, commit {around['commit']}, {machine['cores']} cores of {machine['cpu']}, "
        f"Linux {machine['kernel']}, Python {machine['python']}, load at the end {machine['load'][0]:.1f}"
    )


def write_json(file: Path, around: dict[str, Any], results: Sequence[Result], noted: Sequence[str]) -> None:
    """Write everything to a file, replacing it as a whole."""
    document = {
        **around,
        "notes": list(noted),
        "missed": missed(results),
        "figures": [result.to_json() for result in results],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + ".new")
    draft.write_text(json.dumps(document, indent=2) + "\n")
    draft.replace(file)


def _commit() -> str:
    git = ["git", "-C", str(ROOT)]
    try:
        named = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return named.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
