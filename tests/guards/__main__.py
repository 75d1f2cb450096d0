"""`python -m tests.guards`: take each guard away in a copy of the tree and see its tests turn red.

A patch begins with lines for people and for this program, then the difference, by paths below `app`::

    guard: what is taken away
    promise: G1
    tests: tests/some/test_file.py::test_name tests/...

A patch that no longer applies, tests that stay green without their guard, and tests that are red with it are failures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LIMIT_S: Final = 300.0
CONTROL_S: Final = 1200.0
PASSED, FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Guard:
    """One patch."""

    path: Path
    what: str
    promise: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one patch; `trouble` is empty where a test noticed it."""

    guard: Guard
    seconds: float
    red: str
    trouble: str


class BadPatch(Exception):
    """Raised for a patch whose first lines do not say what it is."""


def read(path: Path) -> Guard:
    """The patch with its header.

    Raises:
        BadPatch: A line of the header is missing.
    """
    head: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith(("diff ", "--- ")):
            break
        name, _, value = line.partition(": ")
        head[name] = f"{head[name]} {value}" if name in head else value
    try:
        return Guard(path, head["guard"], head["promise"], tuple(head["tests"].split()))
    except KeyError as missing:
        raise BadPatch(f"{path.name} has no line `{missing.args[0]}: ...`") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Check every guard; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="patches whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="copies at a time (2)")
    options = parser.parse_args(argv)
    if lacking := [name for name in ("git", "patch") if shutil.which(name) is None]:
        print(f"guards: not installed: apt install {' '.join(lacking)}", file=sys.stderr)
        return 2
    try:
        guards = [read(path) for path in sorted(HERE.glob("*.patch")) if options.only in path.name]
    except BadPatch as error:
        print(f"guards: {error}", file=sys.stderr)
        return 1
    if not guards:
        print(f"guards: no patch in {HERE.name} has {options.only!r} in its name", file=sys.stderr)
        return 1
    print(f"all tests of {len(guards)} guards first, with every guard in place", file=sys.stderr, flush=True)
    if complaint := _control(guards, options.jobs):
        print(f"guards: red although every guard is in place:\n{complaint}", file=sys.stderr)
        return 1
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        findings: list[Finding] = []
        for finding in pool.map(_without, guards):
            findings.append(finding)
            print(
                f"{len(findings)}/{len(guards)} {finding.guard.path.stem}: {finding.trouble or 'red'}", file=sys.stderr
            )
    print(_table(findings, time.monotonic() - began))
    for finding in findings:
        if finding.trouble:
            print(f"guards: {finding.guard.path.name}: {finding.trouble}", file=sys.stderr)
    return 1 if any(finding.trouble for finding in findings) else 0


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
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)
        directory.chmod(0o755)  # commands run as another uid
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _tests(
    directory: Path, tests: Sequence[str], *options: str, limit_s: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    # Ours comes before the installed one, in this process and in those that tests start.
    environ = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1", "EXEC_TESTS_STRICT": "1"}
    # Hypothesis's plugin takes as long to load as all else together, and only adds options.
    plugins = ["-p", "no:randomly", "-p", "no:hypothesispytest"]
    # Its FAILED lines are what is read, whatever the configuration lets pytest print.
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "--no-header", "--tb=line", *plugins, *options]
    return subprocess.run(
        [*command, *tests], cwd=directory, env=environ, capture_output=True, text=True, timeout=limit_s, check=False
    )


def _control(guards: Sequence[Guard], jobs: int) -> str:
    """Run every test that is named, with all guards in place; what went wrong, or nothing."""
    tests = sorted({test for guard in guards for test in guard.tests})
    with _copy() as directory:
        try:
            done = _tests(directory, tests, "-n", str(jobs), limit_s=CONTROL_S)
        except subprocess.TimeoutExpired:
            return f"not done within {CONTROL_S:.0f} s"
    return "" if done.returncode == PASSED else (done.stdout + done.stderr)[-4000:]


def _without(guard: Guard) -> Finding:
    began = time.monotonic()
    red = trouble = ""
    with _copy() as directory:
        # Not `git apply`: the copy is no repository.
        applied = subprocess.run(
            ["patch", "--batch", "--forward", "--fuzz=1", "-p0", "-i", str(guard.path)],
            cwd=directory / "app",
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode:
            trouble = f"does not apply any more: {applied.stdout.strip().splitlines()[-1:]}"
        else:
            try:
                done = _tests(directory, guard.tests)
            except subprocess.TimeoutExpired:
                trouble = f"its tests neither passed nor failed within {LIMIT_S:.0f} s"
            else:
                failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
                red = failed[0].removeprefix("FAILED ").partition(" - ")[0] if failed else ""
                if done.returncode == PASSED:
                    trouble = f"{' '.join(guard.tests)} stayed green without it"
                elif done.returncode != FAILED or not red:
                    trouble = f"its tests could not run: {(done.stdout + done.stderr)[-600:]}"
    return Finding(guard, time.monotonic() - began, red, trouble)


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
