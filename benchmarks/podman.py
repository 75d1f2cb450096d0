"""Commands in containers of podman: what one costs over the host, the first of a scope, and what a container holds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.bulk import MB, pss
from benchmarks.harness import Bench, Figure, Options, Reading, absent, alternate, ms
from benchmarks.rig import CONVERSATION, Ground, Rig, ground, rig
from benchmarks.sandbox import took
from shellback.exec.backends import homes
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable
from shellback.exec.link.client import SupervisorClient

IMAGE: Final = "docker.io/library/python:3.12-bookworm"
TRUE: Final = "/bin/true"


def image() -> str:
    """The usual image where it is here; else a root file system of this machine's programs.

    Raises:
        BackendUnavailable: Podman is not here, or runs no container.
    """
    podman = Podman()
    podman.check()
    try:
        podman.image(IMAGE)
    except BackendUnavailable:
        from tests import images

        why = images.refusal()
        if why is not None:
            raise BackendUnavailable(why) from None
        return str(images.test_rootfs())
    return IMAGE


@contextlib.asynccontextmanager
async def contained(where: Ground, root: str) -> AsyncGenerator[tuple[Rig, PodmanBackend]]:
    """A rig whose commands run in containers, none of which is left."""
    if os.geteuid():
        where.workspace.chmod(0o2775)
    containers = Containers(where.home / "containers", Podman())
    backend = PodmanBackend(where.workspace, containers, image=root)
    port = Supervisors(SupervisorClient(where.home, idle_s=600), where.home, containers=containers, host_needed=False)
    try:
        async with rig(where, backend=backend, port=port) as made:
            yield made, backend
    finally:
        for home in containers.homes():
            await asyncio.to_thread(containers.engine.remove, home.name)
        shutil.rmtree(where.home / "containers", ignore_errors=True)


def refused() -> str:
    """Why no command can run in a container on this machine, "" where they can."""
    try:
        image()
    except (BackendUnavailable, WorkspaceUnusable) as error:
        return str(error)
    return ""


async def measured(options: Options) -> Mapping[str, Reading]:
    root = image()
    inside, outside = ground(options.directory), ground(options.directory)
    names = itertools.count()
    async with contained(inside, root) as (boxed, backend), rig(outside) as plain:
        await took(boxed, CONVERSATION, TRUE)
        (home,) = backend.containers.homes()
        ours, theirs = await alternate(
            options.samples(), lambda: took(boxed, CONVERSATION, TRUE), lambda: took(plain, CONVERSATION, TRUE)
        )
        execs, again = await alternate(
            options.samples(20), lambda: executed(home.name), lambda: took(boxed, CONVERSATION, TRUE)
        )
        new, old = await alternate(
            options.samples(10),
            lambda: took(boxed, f"new-{next(names)}", TRUE),
            lambda: took(boxed, CONVERSATION, TRUE),
            warm_up=1,
        )
        supervisor = homes.peer(home)
        pair = (supervisor, of_status(supervisor, "PPid"))
        shared = " + ".join(f"{pss(pid) / MB:.1f}" for pid in pair)
        resident = sum(of_status(pid, "VmRSS") for pid in pair) / 1024
    what = "the usual image" if root == IMAGE else "a root file system of this machine's programs"
    return {
        "podman command": Reading(measured=ms(ours), baseline=ms(theirs), note=what),
        "podman exec": Reading(measured=ms(execs), baseline=ms(again), note="beside it: through the engine"),
        "podman cold start": Reading(measured=ms(new), baseline=ms(old), note="beside it: in a running container"),
        "podman memory": Reading(measured=resident, note=f"Pss {shared} MB"),
    }


async def executed(name: str) -> float:
    """Seconds of podman's own way to run something in a container."""
    began = time.perf_counter()
    await asyncio.to_thread(
        subprocess.run, ["podman", "exec", name, TRUE], check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    return time.perf_counter() - began


def of_status(pid: int, name: str) -> int:
    """A number that the kernel says of a process; sizes are in KiB, with what is shared with others."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


def run(options: Options) -> Mapping[str, Reading]:
    why = refused()
    return absent(BENCHES[0].figures, why) if why else asyncio.run(measured(options))


BENCHES: Final = (
    Bench(
        name="podman",
        run=run,
        figures=(
            Figure(
                name="podman command",
                says=f"`{TRUE}` through the engine in a running container - the same on the host",
                compare="difference",
                limit=15.0,
            ),
            Figure(name="podman exec", says=f"`podman exec CONTAINER {TRUE}` in the same container, in the same run"),
            Figure(name="podman cold start", says=f"`{TRUE}` as the first command of a scope: its container is made"),
            Figure(name="podman memory", says="Rss of supervisor and keeper in the container", unit="MB"),
        ),
    ),
)
