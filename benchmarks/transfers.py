"""10 MB through a command of every backend: a file printed into the log, and a file written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import podman, sandbox
from benchmarks.harness import Bench, Figure, Options, Reading, absent, alternate, ms
from benchmarks.rig import CONVERSATION, Ground, Rig, ground, rig
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.core.runner import EXEC_UID

BYTES: Final = 10_000_000
COMMANDS: Final = {"read": "cat given", "write": f"head -c {BYTES} /dev/zero > written"}
BACKENDS: Final = ("host", "bubblewrap", "podman")


def run(options: Options) -> Mapping[str, Reading]:
    found: dict[str, Reading] = {}
    for backend, figures in FIGURES.items():
        why = _refused(backend, options)
        found |= absent(figures, why) if why else asyncio.run(_measured(backend, options))
    return found


def _refused(backend: str, options: Options) -> str:
    if backend == "host":
        return ""
    return podman.refused() if backend == "podman" else sandbox.refused(options)


async def _measured(backend: str, options: Options) -> Mapping[str, Reading]:
    where = ground(options.directory)
    given = where.workspace / "given"
    given.write_bytes(bytes(BYTES))
    if os.geteuid() == 0:
        os.chown(given, EXEC_UID, EXEC_UID)
    readings: dict[str, Reading] = {}
    async with _rig(backend, where) as made:
        for what, command in COMMANDS.items():
            ours, plain = await alternate(
                options.samples(20),
                lambda command=command: sandbox.took(made, CONVERSATION, command),
                lambda command=command: _plain(where, command),
            )
            readings[f"10 MB {what}, {backend}"] = Reading(measured=ms(ours), baseline=ms(plain))
        logs = [path.stat().st_size for path in (where.home / "sessions").glob("*/log")]
    sizes = (max(logs, default=-1), (where.workspace / "written").stat().st_size)
    if sizes != (BYTES, BYTES):
        raise RuntimeError(f"not {BYTES} bytes but {sizes}")
    return readings


@contextlib.asynccontextmanager
async def _rig(backend: str, where: Ground) -> AsyncGenerator[Rig]:
    if backend == "podman":
        async with podman.contained(where, podman.image()) as (made, _):
            yield made
    else:
        async with rig(where, backend=BubblewrapBackend(where.workspace) if backend == "bubblewrap" else None) as made:
            yield made


async def _plain(where: Ground, command: str) -> float:
    """Seconds of the same command by subprocess, its output in a file too."""
    began = time.perf_counter()
    await asyncio.to_thread(_ran, where, command)
    return time.perf_counter() - began


def _ran(where: Ground, command: str) -> None:
    who: dict[str, Any] = {} if os.geteuid() else {"user": EXEC_UID, "group": EXEC_UID, "extra_groups": []}
    with Path(where.root, "plain").open("wb") as file:
        argv = ["/bin/bash", "--noprofile", "--norc", "-c", command]
        subprocess.run(argv, stdout=file, cwd=where.workspace, check=True, **who)


FIGURES: Final = {
    backend: tuple(
        Figure(
            name=f"10 MB {what}, {backend}",
            says=f"`{command}` through the engine; beside the same by subprocess on the host",
        )
        for what, command in COMMANDS.items()
    )
    for backend in BACKENDS
}
BENCHES: Final = (
    Bench(name="10 MB", run=run, figures=tuple(figure for figures in FIGURES.values() for figure in figures)),
)
