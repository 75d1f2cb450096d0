"""`python -m tests.guards`: take each guard away in a copy of the tree and see its tests turn red.

A record that cannot be applied, tests that stay green without their guard, and a test that is red with it are failures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.guards.records import BadRecord, Guard, read, unfit, without

ROOT: Final = Path(__file__).parents[2]
LIMIT_S: Final = 300.0
CONTROL_S: Final = 1200.0
PASSED, FAILED = 0, 1
JOBS: Final = 2 * (os.cpu_count() or 1)
"""More than cores, since without its guard a test often waits for what does not come."""
_SECONDS: Final = itertools.count()
_RUNS: Final = itertools.count()
_WITHIN: Final = "take away no further guard after this time; those whose files changed last come first"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one guard; `trouble` is empty where a test noticed it."""

    guard: Guard
    seconds: float
    red: str
    trouble: str


def main(argv: Sequence[str] | None = None) -> int:
    """Check every guard; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="guards whose name has this in it")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"copies at a time ({JOBS} here)")
    parser.add_argument("--within", type=float, default=math.inf, metavar="SECONDS", help=_WITHIN)
    options = parser.parse_args(argv)
    if shutil.which("git") is None:
        print("guards: not installed: apt install git", file=sys.stderr)
        return 2
    try:
        guards = [guard for guard in read() if options.only in guard.name]
    except BadRecord as error:
        print(f"guards: {error}", file=sys.stderr)
        return 1
    if not guards:
        print(f"guards: no guard has {options.only!r} in its name", file=sys.stderr)
        return 1
    if broken := [f"{guard.name}: {trouble}" for guard in guards if (trouble := unfit(guard, ROOT))]:
        print(*(f"guards: {line}" for line in broken), sep="\n", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        copies = queue.SimpleQueue[Path]()
        for _ in range(options.jobs):
            copies.put(stack.enter_context(_copy()))
        if options.within < math.inf:
            guards = _newest_first(guards)
        return _check(guards, copies, options.jobs, options.within)


def _newest_first(guards: Sequence[Guard]) -> Sequence[Guard]:
    """By the last commit to the files that each changes."""
    log = ["git", "log", "--format=format:", "--name-only"]
    named = subprocess.run(log, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    ages = {name: age for age, name in reversed(list(enumerate(named)))}
    return sorted(guards, key=lambda guard: min(ages.get(change.file, 0) for change in guard.changes))


def _check(guards: Sequence[Guard], copies: queue.SimpleQueue[Path], jobs: int, within_s: float) -> int:
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        findings: list[Finding] = []
        for finding in pool.map(partial(_try, copies, began + within_s), guards):
            if finding is None:
                continue
            findings.append(finding)
            print(f"{len(findings)}/{len(guards)} {finding.guard.name}: {finding.trouble or 'red'}", file=sys.stderr)
    print("the tests that turned red, with every guard in place", file=sys.stderr, flush=True)
    red, complaint = _control({finding.red for finding in findings} - {""}, copies, jobs)
    findings = [replace(one, trouble=f"{one.red} is red with it too") if one.red in red else one for one in findings]
    print(_table(findings, time.monotonic() - began))
    if left := len(guards) - len(findings):
        print(f"{left} of {len(guards)} guards were left in place, because {within_s:.0f} s were over")
    for finding in findings:
        if finding.trouble:
            print(f"guards: {finding.guard.name}: {finding.trouble}", file=sys.stderr)
    if complaint:
        print(f"guards: with every guard in place:\n{complaint}", file=sys.stderr)
    return 1 if complaint or any(finding.trouble for finding in findings) else 0


@contextlib.contextmanager
def _copy() -> Generator[Path]:
    """The tree as it is, without what git ignores."""
    directory = Path(tempfile.mkdtemp(prefix="shellback-guard-"))
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name, follow_symlinks=False)
        directory.chmod(0o755)  # commands run as another uid
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _taken_away(guard: Guard, directory: Path) -> Generator[None]:
    """The copy without the guard; afterwards it is as before."""
    texts = without(guard, directory)
    before = {file: (directory / file).read_text(encoding="utf-8") for file in texts}
    try:
        _write(directory, texts)
        yield
    finally:
        _write(directory, before)


def _write(directory: Path, texts: Mapping[str, str]) -> None:
    for file, text in texts.items():
        (directory / file).write_text(text, encoding="utf-8")
        # Bytecode is kept by whole seconds and size: none may pass for that of another text.
        second = next(_SECONDS)
        os.utime(directory / file, (second, second))


def _tests(
    directory: Path, tests: Sequence[str], *options: str, limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    # Ours comes before the installed one, in this process and in those that tests start.
    environ = {**os.environ, "PYTHONPATH": str(directory), "EXEC_TESTS_STRICT": "1"}
    # Hypothesis's plugin takes as long to load as all else together, and only adds options.
    options = (*options, "-p", "no:randomly", "-p", "no:hypothesispytest")
    # A run has a directory of its own: what a test without its guard left running still writes to that of its run.
    temporary = directory.with_name(f"{directory.name}-{next(_RUNS)}")
    options = (*options, f"--basetemp={temporary}")
    # Its FAILED lines are what is read, whatever the configuration lets pytest print.
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--no-header", "--tb=line", *options]
    try:
        return subprocess.run(
            [*command, *tests], cwd=directory, env=environ, capture_output=True, text=True, timeout=limit_s, check=False
        )
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _control(tests: Set[str], copies: queue.SimpleQueue[Path], jobs: int) -> tuple[Set[str], str]:
    """Run these tests with all guards in place; those that are red, and what was printed if not all passed."""
    if not tests:
        return tests, ""
    with _taken(copies) as directory:
        try:
            # As many attempts as `make test` gives a test.
            options = ("-n", str(jobs), "--dist", "worksteal", "--reruns", "1")
            done = _tests(directory, sorted(tests), *options, limit_s=CONTROL_S)
        except subprocess.TimeoutExpired:
            return frozenset(), f"not done within {CONTROL_S:.0f} s"
    return frozenset(_red(done.stdout)), "" if done.returncode == PASSED else (done.stdout + done.stderr)[-4000:]


def _red(printed: str) -> list[str]:
    """Names of failed tests; what is in brackets may have spaces."""
    return re.findall(r"^FAILED (\S+?\[.*?\]|\S+)(?: - |$)", printed, re.MULTILINE)


def _try(copies: queue.SimpleQueue[Path], until: float, guard: Guard) -> Finding | None:
    began = time.monotonic()
    if began > until:
        return None
    red = trouble = ""
    with _taken(copies) as directory, _taken_away(guard, directory):
        try:
            done = _tests(directory, guard.tests, "-x")
        except subprocess.TimeoutExpired:
            trouble = f"its tests neither passed nor failed within {LIMIT_S:.0f} s"
        else:
            red = next(iter(_red(done.stdout)), "")
            if done.returncode == PASSED:
                trouble = f"{' '.join(guard.tests)} stayed green without it"
            elif done.returncode != FAILED or not red:
                trouble = f"its tests could not run: {(done.stdout + done.stderr)[-600:]}"
    return Finding(guard, time.monotonic() - began, red, trouble)


@contextlib.contextmanager
def _taken(copies: queue.SimpleQueue[Path]) -> Generator[Path]:
    directory = copies.get()
    try:
        yield directory
    finally:
        copies.put(directory)


def _table(findings: Sequence[Finding], took: float) -> str:
    head = ("guard taken away", "promise", "seconds", "turned red")
    lines = [
        (finding.guard.what, finding.guard.promise, f"{finding.seconds:.0f}", finding.red or "NOTHING")
        for finding in findings
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    shown = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    first = "  ".join(text.ljust(width) for text, width in zip(head, widths, strict=True)).rstrip()
    noticed = sum(not finding.trouble for finding in findings)
    return "\n".join([first, *shown, "", f"{noticed} of {len(findings)} noticed, {took:.0f} s"])


if __name__ == "__main__":
    sys.exit(main())
