"""`python -m tests.escape.outside`: how long a file is not protected that is replaced outside while a command runs.

In each round somebody outside renames another file over a protected one. A process in the sandbox tries to write it, or
to read it, without a pause: how often it gets through is counted in there. Exit 1 if a file stays unprotected.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shellback.exec.core.model import READ_ONLY, WORK
from tests.filetrees import give
from tests.sandboxes import Boxes, boxes

ROUNDS: Final = 200
_PAUSE_S: Final = 0.03
"""Between rounds, so that each begins with a file that is protected."""
_LIMIT_S: Final = 10.0
_TRY: Final = """
import os, select, sys
path, mode = sys.argv[1:]
got = 0
print("ready", flush=True)
os.set_blocking(0, False)
while True:
    for _ in range(64):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND if mode == "write" else os.O_RDONLY)
        except OSError:
            continue
        got += os.write(fd, b"#") if mode == "write" else bool(os.read(fd, 1))
        os.close(fd)
    try:
        line = os.read(0, 64)
    except BlockingIOError:
        continue
    if not line:
        break
    print(f"got {got}", flush=True)
    got = 0
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds from rename to cover, and in how many rounds the process in there got through, and how often."""

    name: str
    ms: list[float]
    through: int
    times: int

    def line(self) -> str:
        """The row of a table."""
        worst = statistics.quantiles(self.ms, n=20)[18]
        return (
            f"| {self.name} | {len(self.ms)} | {statistics.median(self.ms):.1f} | {worst:.1f} | {max(self.ms):.1f} |"
            f" {self.through} | {self.times} |"
        )


async def measured(name: str, protected: str, profile: str, mode: str, rounds: int) -> Figures:
    """Attack one file from both sides."""
    with tempfile.TemporaryDirectory(prefix="shellback-outside-") as folder:
        os.chmod(folder, 0o755)
        async with boxes(Path(folder)) as box:
            path = box.workspace / protected
            await asyncio.to_thread(_prepare, box.workspace)
            argv = ("/usr/bin/python3", "-c", _TRY, str(path), mode)
            await box.start("a", *argv, profile=profile, stdin=b"", keep_stdin_open=True, shows=b"ready")
            return await _rounds(name, box, path, rounds)


async def _rounds(name: str, box: Boxes, path: Path, rounds: int) -> Figures:
    pid = (await box.client.status("a"))["pid"]
    base, took, through, times = await asyncio.to_thread(path.read_text), list[float](), 0, 0
    table = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY)
    poller = select.poll()
    poller.register(table, select.POLLPRI)
    for number in range(rounds):
        aside = path.with_name("aside")
        _write(aside, base)
        began = time.perf_counter()
        aside.rename(path)
        await asyncio.to_thread(_covered, poller, table, path)
        took.append((time.perf_counter() - began) * 1000)
        await box.client.write("a", b"?\n")
        while box.log("a").count(b"got ") <= number:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.001)
        got = int(box.log("a").rsplit(b"got ", 1)[1])
        through, times = through + bool(got), times + got
        await asyncio.sleep(_PAUSE_S)
    os.close(table)
    return Figures(name, took, through, times)


def _covered(poller: select.poll, table: int, path: Path) -> None:
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        poller.poll(100)
        text = os.pread(table, 1 << 20, 0)
        while chunk := os.pread(table, 1 << 20, len(text)):
            text += chunk
        if any(
            words[4:5] == [os.fsencode(path)] and words[5][:2] == b"ro" for words in map(bytes.split, text.splitlines())
        ):
            return
    raise SystemExit(f"{path} stayed unprotected for {_LIMIT_S} s")


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    give(path)


def _prepare(folder: Path) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    _write(folder / ".env", "API_KEY=secret\n")
    give(folder)


@contextlib.contextmanager
def busy(count: int) -> Generator[None]:
    """Keep so many cores busy."""
    words = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


async def main(rounds: int) -> None:
    """Print a table."""
    print("| file | rounds | median ms | p95 ms | worst ms | rounds with a success | successes |")
    print("|---|---|---|---|---|---|---|")
    for cores in (0, os.cpu_count() or 1):
        with busy(cores):
            where = f", {cores} busy processes" if cores else ""
            for name, path, profile, mode in (
                ("`.git/config`, written", ".git/config", WORK, "write"),
                ("`.env`, read", ".env", READ_ONLY, "read"),
            ):
                print((await measured(name + where, path, profile, mode, rounds)).line(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.escape.outside")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asyncio.run(main(parser.parse_args().rounds))
