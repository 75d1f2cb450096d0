"""`python -m benchmarks`: every benchmark in a process of its own, one table, exit 1 when a figure misses."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from benchmarks import report
from benchmarks.harness import Bench, Options, Reading, Result, judge, missed

RESULTS = Path(__file__).parent / "results" / "latest.json"
TO_CLEAN_UP_S = 60


def benches() -> tuple[Bench, ...]:
    """All of them; imported here, because each process needs its own only."""
    from benchmarks import (
        bulk,
        calls,
        classification,
        console,
        files,
        following,
        growth,
        imports,
        loop,
        masking,
        mcp,
        network,
        pages,
        people,
        podman,
        sandbox,
        scaling,
        sessions,
        terminals,
        transfers,
        turns,
        watches,
        window,
    )

    return (
        *imports.BENCHES,
        *people.BENCHES,
        *calls.BENCHES,
        *bulk.BENCHES,
        *sandbox.BENCHES,
        *podman.BENCHES,
        *files.BENCHES,
        *transfers.BENCHES,
        *terminals.BENCHES,
        *console.BENCHES,
        *pages.BENCHES,
        *sessions.BENCHES,
        *classification.BENCHES,
        *window.BENCHES,
        *network.BENCHES,
        *loop.BENCHES,
        *turns.BENCHES,
        *scaling.BENCHES,
        *watches.BENCHES,
        *following.BENCHES,
        *growth.BENCHES,
        *masking.BENCHES,
        *mcp.BENCHES,
    )


def chosen(everything: Sequence[Bench], names: Sequence[str]) -> list[Bench]:
    """The benchmarks that have one of the names, or a figure of it; all without names.

    Raises:
        SystemExit: A name is unknown.
    """
    known = {name for bench in everything for name in (bench.name, *(figure.name for figure in bench.figures))}
    for name in names:
        if name not in known:
            sys.exit(f"benchmarks: there is no {name!r}; --list shows what there is")
    return [
        bench
        for bench in everything
        if not names or {bench.name, *(figure.name for figure in bench.figures)} & set(names)
    ]


def in_process_of_its_own(bench: Bench, options: Options) -> Mapping[str, Reading]:
    """Run a benchmark where no other has left memory, threads or imports.

    Raises:
        RuntimeError: It failed; what it said is on stderr.
        TimeoutError: It took longer than it may.
    """
    argv = [sys.executable, "-m", "benchmarks", "--child", bench.name]
    argv += ["--directory", str(options.directory), *(["--quick"] if options.quick else [])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            out, _ = child.communicate(timeout=bench.limit_s)
        except subprocess.TimeoutExpired:
            _end(child)
            raise TimeoutError(f"not done after {bench.limit_s:.0f} s") from None
        except BaseException:
            _end(child)
            raise
    if child.returncode != 0:
        raise RuntimeError(f"ended with {child.returncode}")
    return {name: Reading(**reading) for name, reading in json.loads(out.splitlines()[-1]).items()}


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.communicate(timeout=TO_CLEAN_UP_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _stopped(number: int, _frame: object) -> NoReturn:
    # Once: what is cleaned up now is not stopped half-way.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 when every figure keeps its limit, 1 when one misses."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a benchmark or figure; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that it works, not for the record")
    parser.add_argument("--list", action="store_true", help="name the figures and their limits")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where to write (%(default)s)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where to measure; needs 3 GB (%(default)s)",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    options = Options(quick=given.quick, directory=given.directory)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _stopped)
    if given.child:
        return run_here(given.child, options)
    selected = chosen(benches(), given.only)
    if given.list:
        for figure in (figure for bench in selected for figure in bench.figures):
            print(f"{figure.name:20} {report.limit_of(figure):12} {figure.says}")
        return 0
    with scratch(given.directory) as directory:
        inside = replace(options, directory=directory)
        results = [
            result
            for bench in selected
            for result in judge(bench, lambda bench=bench: in_process_of_its_own(bench, inside))
        ]
    return finish(results, options, given.json)


def run_here(name: str, options: Options) -> int:
    """Run one benchmark in this process and print its readings as one line of JSON."""
    bench = next(bench for bench in benches() if bench.name == name)
    try:
        readings = bench.run(options)
    except Exception:  # noqa: BLE001 - whatever it was, the parent counts it as missed
        traceback.print_exc(limit=-3)
        return 1
    print(json.dumps({figure: asdict(reading) for figure, reading in readings.items()}))
    return 0


@contextlib.contextmanager
def scratch(parent: Path) -> Generator[Path]:
    """A directory for all benchmarks that is removed at the end; commands may pass through it."""
    made = Path(tempfile.mkdtemp(prefix="shellback-bench-", dir=parent))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def finish(results: Sequence[Result], options: Options, file: Path) -> int:
    """Print the table, write the JSON and name what missed."""
    around, noted = report.surroundings(options), report.notes(options)
    print(report.table(results))
    print()
    for line in [*noted, report.summary(around)]:
        print(line)
    report.write_json(file, around, results, noted)
    names = missed(results)
    for name in names:
        print(f"MISSED: {name}", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
