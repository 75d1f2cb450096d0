"""File tools beside plain Python in a thread, which is what an async program would have instead."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Figure, Options, Reading, alternate, ms
from benchmarks.rig import ground
from shellback.exec.backends.protected import Protected
from shellback.exec.core.runner import EXEC_UID
from shellback.exec.files.files import Files
from shellback.exec.files.text import replaced

TWICE: Final = 2.0
SIZE: Final = 64 * 1024
LISTED: Final = 1000
DIRECTORIES, EACH = 50, 40
MB10: Final = bytes(10_000_000)
LINE: Final = "def function_number_{0}(argument): return argument + {0}\n"
SOUGHT: Final = r"need\w+_(17|99)\b"
BACKENDS: Final = ("host", "bubblewrap", "podman")


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def beside(samples: int, ours: Callable[[], Awaitable[object]], plain: Callable[[], object]) -> Reading:
    """Our call beside the plain function in a thread, taking turns."""
    measured, baseline = await alternate(samples, lambda: timed(ours), lambda: timed(lambda: asyncio.to_thread(plain)))
    return Reading(measured=ms(measured), baseline=ms(baseline))


def given(workspace: Path) -> None:
    """A directory of many entries, and a tree of sources."""
    text = "".join(LINE.format(number) for number in range(60))
    for number in range(LISTED):
        _put(workspace / "many" / f"f{number:04}", "x")
    for directory in range(DIRECTORIES):
        for number in range(EACH):
            _put(
                workspace / "tree" / f"d{directory}" / f"f{number}.{'py' if number % 4 else 'txt'}",
                text + "needle_17\n" * (number == 0),
            )
    _put(workspace / "file", "old " + "x" * SIZE)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(workspace):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, EXEC_UID, EXEC_UID)


def tools(options: Options) -> Mapping[str, Reading]:
    workspace = ground(options.directory).workspace
    given(workspace)

    async def measure() -> Mapping[str, Reading]:
        files, data = Files(workspace), bytes(SIZE)
        texts = _turns("old ", "new "), _turns("old ", "new ")
        plain: dict[str, tuple[Callable[[], Awaitable[object]], Callable[[], object]]] = {
            "read": (lambda: files.read_bytes("file"), (workspace / "file").read_bytes),
            "write": (lambda: files.write_bytes("wrote", data), lambda: (workspace / "plain").write_bytes(data)),
            "edit": (lambda: edit(files, *texts[0]()), lambda: edited(workspace / "edited", *texts[1]())),
            "list": (lambda: files.list_dir("many"), lambda: listed(workspace / "many")),
            "glob": (lambda: files.glob("**/*.py", path="tree"), lambda: sorted((workspace / "tree").glob("**/*.py"))),
            "grep": (
                lambda: files.grep(SOUGHT, path="tree", limit=1000),
                lambda: searched(workspace / "tree", SOUGHT),
            ),
        }
        _put(workspace / "edited", "old " + "x" * SIZE)
        try:
            many = {"read": 200, "write": 200}
            return {
                f"files {name}": await beside(options.samples(many.get(name, 30)), *pair)
                for name, pair in plain.items()
            }
        finally:
            await files.close()

    return asyncio.run(measure())


async def edit(files: Files, old: str, new: str) -> None:
    data, _ = replaced("file", await files.read_bytes("file"), old, new, every=False)
    await files.write_bytes("file", data, atomic=True)


def edited(path: Path, old: str, new: str) -> None:
    """What an edit promises: the old or the new file, whatever is killed."""
    text = path.read_text()
    if text.count(old) != 1:
        raise ValueError(old)
    beside_it = path.with_name("temporary")
    with beside_it.open("w") as file:
        file.write(text.replace(old, new))
        file.flush()
        os.fsync(file.fileno())
    beside_it.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def listed(directory: Path) -> list[tuple[str, str, bool, int | None, float]]:
    found: list[tuple[str, str, bool, int | None, float]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat()
            folder = entry.is_dir()
            found.append((entry.name, entry.path, folder, None if folder else status.st_size, status.st_mtime))
    return sorted(found)


def searched(directory: Path, pattern: str) -> list[tuple[str, int, str]]:
    sought = re.compile(pattern)
    found: list[tuple[str, int, str]] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if sought.search(line):
                        found.append((path, number, line.rstrip("\n")))
                        if len(found) == 1000:
                            return found
    return found


def much(options: Options) -> Mapping[str, Reading]:
    workspace = ground(options.directory).workspace

    async def measure() -> Mapping[str, Reading]:
        readings: dict[str, Reading] = {}
        for backend in BACKENDS:
            readings |= await large(workspace, backend, options.samples(50))
        return readings

    return asyncio.run(measure())


async def large(workspace: Path, backend: str, samples: int) -> Mapping[str, Reading]:
    """A file as it is handled for one backend: its path in there, and what it holds read-only."""
    inner = "/workspace" if backend == "podman" else str(workspace)
    held = partial(Protected(workspace).forbids, inner) if backend == "bubblewrap" else None
    files = Files(workspace, inner=inner, forbidden=held)
    name, plain = f"{inner}/{backend}", workspace / "plain"
    try:
        return {
            f"files 10 MB write, {backend}": await beside(
                samples, lambda: files.write_bytes(name, MB10), lambda: plain.write_bytes(MB10)
            ),
            f"files 10 MB read, {backend}": await beside(samples, lambda: files.read_bytes(name), plain.read_bytes),
        }
    finally:
        await files.close()


def _turns(*words: str) -> Callable[[], tuple[str, ...]]:
    state = [list(words)]

    def turn() -> tuple[str, ...]:
        state[0] = state[0][::-1]
        return tuple(reversed(state[0]))

    return turn


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


SAYS: Final = {
    "read": f"a file of {SIZE // 1024} KiB",
    "write": f"a file of {SIZE // 1024} KiB, in place",
    "edit": f"a text in a file of {SIZE // 1024} KiB, on disk as a whole or not at all",
    "list": f"a directory of {LISTED} entries",
    "glob": f"`**/*.py` in a tree of {DIRECTORIES * EACH} files",
    "grep": f"a regular expression in {DIRECTORIES * EACH} files of 60 lines, in a process of its own",
}

BENCHES = (
    Bench(
        name="files",
        run=tools,
        figures=tuple(
            Figure(name=f"files {name}", says=f"{says}; beside plain Python in a thread", compare="ratio", limit=TWICE)
            for name, says in SAYS.items()
        ),
    ),
    Bench(
        name="files 10 MB",
        run=much,
        figures=tuple(
            Figure(
                name=f"files 10 MB {what}, {backend}",
                says=f"10 MB {'from' if what == 'read' else 'to'} a file; beside plain Python in a thread",
                compare="ratio",
                limit=TWICE,
            )
            for backend in BACKENDS
            for what in ("write", "read")
        ),
    ),
)
