"""`python -m tests.escape [--backend all]`: ways out of sandboxes, each tried, and tried without one.

An attempt counts when it succeeds without the sandbox: as an unprivileged user in a mount namespace of its own, on
decoys made for it. Exit 1 when one succeeds in the sandbox, was not made at all, or fewer than 40 count; 2 when a
program that they need is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shellback.exec.core.runner import found
from tests.escape.grounds import GROUNDS, Ground
from tests.escape.inside import PROBES
from tests.escape.runs import Verdict, run

ENOUGH: Final = 40
QUIET: Final = frozenset({"read_inherited"})
"""These say nothing when they have seen nothing."""
PROGRAMS: Final = ("python3", "git", "setpriv", "nsenter", "setsid")


def main(argv: Sequence[str] | None = None) -> int:
    """Make the attempts; returns the exit code."""
    options = _options(argv)
    grounds = [ground for name, ground in GROUNDS.items() if options.backend in {name, "all"}]
    if lacking := missing(grounds):
        print(f"escape: {lacking}", file=sys.stderr)
        return 2
    chosen = [probe for probe in PROBES if options.only in f"{probe.group} {probe.name} {probe.way}"]
    verdicts = run(chosen, lambda text: print(f"escape: {text}", file=sys.stderr, flush=True), grounds)
    print(markdown(verdicts) if options.markdown else plain(verdicts))
    if options.json:
        options.json.write_text(json.dumps([_facts(one) for one in verdicts], indent=1))
    escaped = [one for one in verdicts if one.inside]
    for one in escaped:
        print(f"escape: {one.probe.name} succeeded in {one.backend}: {one.probe.attempts}: {one.said}", file=sys.stderr)
    silent = unheard(verdicts)
    for name in silent:
        print(f"escape: {name} was not tried", file=sys.stderr)
    counted = min(sum(one.without is True for one in verdicts if one.backend == ground.name) for ground in grounds)
    return 1 if escaped or silent or (counted < ENOUGH and not options.only) else 0


def missing(grounds: Sequence[Ground]) -> str | None:
    """Why no attempt can be made here, None where they can."""
    lacking = [name for name in PROGRAMS if found(name) is None]
    if lacking:
        return f"not installed: {' '.join(lacking)} (setpriv, nsenter and setsid are of util-linux)"
    return next(filter(None, (ground.missing() for ground in grounds)), None)


def unheard(verdicts: Sequence[Verdict]) -> list[str]:
    """Attempts that said nothing in the sandbox, and so were not made."""
    return [f"{one.probe.name} in {one.backend}" for one in verdicts if not one.said and one.probe.name not in QUIET]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.escape", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--backend", default="bubblewrap", choices=[*GROUNDS, "all"], help="which sandbox")
    parser.add_argument("--only", default="", metavar="TEXT", help="probes with this in group, name or way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the facts go")
    parser.add_argument("--markdown", action="store_true", help="print the tables for a document")
    return parser.parse_args(argv)


def plain(verdicts: Sequence[Verdict]) -> str:
    """One line for each attempt."""
    lines = [f"{'without':8} {'inside':8} {'backend':10} {'probe':34} said inside / without"]
    for one in verdicts:
        without = {True: "ESCAPES", False: "blocked", None: "-"}[one.without]
        inside = "ESCAPES" if one.inside else "blocked"
        lines.append(
            f"{without:8} {inside:8} {one.backend:10} {one.probe.name:34} {one.said[:60]!r} / {one.said_without[:60]!r}"
        )
    return "\n".join([*lines, "", *_summary(verdicts)])


def markdown(verdicts: Sequence[Verdict]) -> str:
    """A row for each group, and below it one for each attempt."""
    lines = [
        *_summary(verdicts),
        "",
        "Every attempt:",
        "",
        "| In | Group | Attempt | Without | In the sandbox |",
        "|---|---|---|---|---|",
    ]
    for one in verdicts:
        without = {True: "escapes", False: "blocked already", None: "not tried"}[one.without]
        inside = "**escapes**" if one.inside else "blocked"
        lines.append(f"| {one.backend} | {one.probe.group} | {one.probe.attempts} | {without} | {inside} |")
    return "\n".join(lines)


def _summary(verdicts: Sequence[Verdict]) -> list[str]:
    lines = [
        "| In | Group | Attempts | Escape without a sandbox | Escape in it | Blocked already, or not tried without |",
        "|---|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys((one.backend, one.probe.group) for one in verdicts))
    totals = [(backend, "") for backend in dict.fromkeys(one.backend for one in verdicts)]
    for backend, name in [*kinds, *totals]:
        rows = [one for one in verdicts if one.backend == backend and name in {one.probe.group, ""}]
        out, inside = sum(one.without is True for one in rows), sum(one.inside for one in rows)
        cells = [backend, name or "**All**", *map(str, (len(rows), out, inside, len(rows) - out))]
        lines.append(f"| {' | '.join(cells)} |")
    programs = [{"bubblewrap": "bwrap"}.get(name, name) for name in dict.fromkeys(one.backend for one in verdicts)]
    said = [subprocess.run([name, "--version"], capture_output=True, text=True, check=False) for name in programs]
    made = ", ".join(one.stdout.strip() for one in said)
    who = "root, commands as an unprivileged user" if os.geteuid() == 0 else "an unprivileged user"
    return [f"{time.strftime('%Y-%m-%d')}, {made}, Linux {os.uname().release}, as {who}.", "", *lines]


def _facts(one: Verdict) -> dict[str, object]:
    return {
        "probe": one.probe.name, "backend": one.backend,
        "group": one.probe.group, "attempts": one.probe.attempts, "way": one.probe.way,
        "inside": one.inside, "said": one.said, "without": one.without, "said_without": one.said_without,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
