"""Commands that are judged read-only, run: in the `read_only` profile, and where they could write.

    python -m tests.oracle [COUNT]    the corpus and COUNT commands made from the tables (2000)

With strace installed, the whole set also runs under it, and every program that is started and every connection that is
tried is looked at. Exit code 1 when a command changed a file, ran a program that is not the system's, or connected.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shellback.exec.core.model import READ_ONLY, WORK
from shellback.exec.policy.classify.classify import classify
from shellback.exec.policy.classify.git import GIT
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.classify.options import Kind, Program
from shellback.exec.policy.classify.programs import TABLES
from tests.filetrees import give
from tests.judged import MARK, around, cases, make_tree, trapped
from tests.sandboxes import Boxes, boxes
from tests.supervisors import WHO

TRIAL: Final = Path(__file__).parent / "programs/trial.py"
PYTHON: Final = "/usr/bin/python3"
_TRUSTED: Final = ("/usr/", "/bin/", "/sbin/", "/lib")
_VALUES: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.TEXT: ("x", "1", "hello", "a.txt", "PWNED", "%s", "name", "-", ""),
    Kind.NUMBER: ("1", "3", "10"),
    Kind.READ: ("a.txt", "src", "x.gz", "names", "."),
    Kind.LOOK: ("a.txt", "src", "."),
    Kind.LINK: ("a.txt", "src", "link"),
}
_NEVER_ENDING: Final = re.compile(r"sleep|vmstat|yes")


@dataclass(frozen=True)
class Outcome:
    """What came of running commands in one place."""

    ran: int
    changed: list[dict[str, Any]]
    index_only: int
    late: list[str]
    marked: bool


def everyday() -> list[str]:
    """The read-only commands of the corpus."""
    return [
        case.command for name in ("commands", "ours", "readers") for case in cases(name) if case.expect == "read_only"
    ]


def made(count: int, seed: int = 0) -> Iterator[str]:
    """Commands from the tables, options and operands at random."""
    chance = random.Random(seed)  # the same for each run
    tables = {name: table for name, table in TABLES.items() if isinstance(table, Program) and shutil.which(name)}
    tables |= {f"git {name}": table for name, table in GIT.items()}
    names = sorted(name for name in tables if not _NEVER_ENDING.match(name))
    for _ in range(count):
        name = chance.choice(names)
        table = tables[name]
        words = name.split()
        options = [*sorted(table.flags), *sorted(table.valued), *sorted(table.optional)]
        for option in chance.sample(options, min(len(options), chance.randint(0, 3))):
            words += _option(chance, table, option)
        kinds = [table.first] if table.first else []
        kinds += [table.operands] * chance.randint(0, 2)
        words += [chance.choice(_VALUES[kind]) for kind in kinds]
        yield shlex.join(words)


def _option(chance: random.Random, table: Program, option: str) -> list[str]:
    if option in table.flags:
        return [option]
    value = chance.choice(_VALUES[table.valued.get(option, Kind.TEXT)])
    if option in table.optional:
        return [option, f"{option}{'=' if option.startswith('--') else ''}{value}"][chance.randint(0, 1) :][:1]
    attached = f"{option}={value}" if option.startswith("--") else f"{option}{value}"
    return chance.choice([[option, value], [attached]])


def read_only(commands: Sequence[str], where: Surroundings) -> list[str]:
    """Those of them that pass by themselves."""
    return [command for command in dict.fromkeys(commands) if classify(command, where).verdict == "read_only"]


async def tried(box: Boxes, commands: Sequence[str], profile: str, *, traps: bool) -> Outcome:
    """Run commands in a sandbox of this profile, in a tree of their own."""
    tree = box.workspace
    name = f"trial-{profile}-{len(box.told)}"
    if not (tree / "a.txt").exists():
        make_tree(tree)
        if traps:
            trapped(tree)
        _to_be_tried(tree, commands)
    await box.start(name, PYTHON, "-I", "-S", str(tree / "trial.py"), str(tree / "listed.json"), str(tree),
                    profile=profile, cwd=str(tree))  # fmt: skip
    record = await box.exit(name, within=1_800)
    output = box.log(name).decode()
    if record["exit_code"] != 0:
        raise AssertionError(output[-2_000:])
    return outcome(output, (tree / MARK).exists())


def outcome(output: str, marked: bool) -> Outcome:
    """What a trial has told."""
    told = [json.loads(line) for line in output.splitlines()]
    ran = told.pop()["run"]
    changed = [one for one in told if one["changed"] and not one["index"]]
    return Outcome(
        ran=ran,
        changed=changed,
        index_only=sum(one["index"] for one in told),
        late=[one["command"] for one in told if one["late"]],
        marked=marked,
    )


def _to_be_tried(tree: Path, commands: Sequence[str]) -> None:
    shutil.copy(TRIAL, tree / "trial.py")
    (tree / "listed.json").write_text(json.dumps(list(commands)))
    give(tree)


def traced(commands: Sequence[str]) -> tuple[Outcome, list[str]]:
    """Run commands where they could write, under strace: what they changed, and what they should not have started."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        tree, told = Path(place) / "tree", Path(place) / "told"
        tree.mkdir()
        told.mkdir()
        make_tree(tree)
        _to_be_tried(tree, commands)
        give(told)
        links = (("--symlink", f"usr/{name}", f"/{name}") for name in ("bin", "sbin", "lib", "lib64"))
        command = [
            "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc",
            *itertools.chain.from_iterable(links), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
            "--bind", str(tree), str(tree), "--bind", str(told), "/told", "--chdir", str(tree), "--",
            "strace", "-f", "-qq", "-s", "200", "-e", "trace=execve,connect,sendto", "-o", "/told/trace",
            PYTHON, "-I", "-S", str(tree / "trial.py"), str(tree / "listed.json"), str(tree),
        ]  # fmt: skip
        environment = {"PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=3_000, **WHO
        )
        return outcome(done.stdout, (tree / MARK).exists()), _untrusted((told / "trace").read_text())


def _untrusted(trace: str) -> list[str]:
    found: set[str] = set()
    for line in trace.splitlines():
        started = re.search(r'execve\("([^"]*)".*= 0$', line)
        if started and not started[1].startswith(_TRUSTED):
            found.add(f"started {started[1]}")
        if re.search(r"(connect|sendto)\(.*sa_family=AF_INET", line):
            found.add(line)
    return sorted(found)


async def whole(count: int) -> int:
    """Run all of it; returns the exit code."""
    bad = 0
    with tempfile.TemporaryDirectory() as place:
        where = around(make_tree(Path(place)))
        commands = read_only([*everyday(), *made(count)], where)
    for profile, traps in ((READ_ONLY, True), (READ_ONLY, False), (WORK, False)):
        with tempfile.TemporaryDirectory() as home:
            async with boxes(Path(home)) as box:
                found = await tried(box, commands, profile, traps=traps)
        print(f"{profile}{', with git traps' if traps else ''}: {found.ran} run, {len(found.changed)} changed a file,"
              f" {found.index_only} only git's index, {len(found.late)} did not end")  # fmt: skip
        for one in () if traps else found.changed:
            print(f"  {one}")
        for one in found.late:
            print(f"  late: {one}")
        bad += (len(found.changed) if not traps else 0) + found.marked
    if shutil.which("strace"):
        found, untrusted = traced(commands)
        print(f"under strace: {found.ran} run, {len(found.changed)} changed a file, {len(untrusted)} untrusted")
        for one in (*found.changed, *untrusted):
            print(f"  {one}")
        bad += len(found.changed) + len(untrusted)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(whole(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)))
