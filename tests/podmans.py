"""Containers of a test's own: what runs in them, and nothing left of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.docker import Docker, DockerBackend
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import WORK
from shellback.exec.link.client import SupervisorClient
from shellback.exec.policy.commands import command_spec
from shellback.exec.wire.protocol import ExitRecord, StartRequest
from tests import dockers, images
from tests.sandboxes import writable
from tests.supervisors import SOON

_NUMBERS = itertools.count(1)
BACKENDS: dict[str, type[ContainerBackend]] = {"podman": PodmanBackend, "docker": DockerBackend}


def engine_of(kind: str = "podman") -> ContainerEngine:
    """The engine of this name that tests use."""
    return Podman() if kind == "podman" else Docker(host=dockers.host())


def needed(kind: str) -> None:
    """Skip, or fail where nothing may be skipped, without this engine."""
    images.needed() if kind == "podman" else dockers.needed()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it printed."""

    exit_code: int | None
    signal: int | None
    output: str


class Yard:
    """A workspace that commands of containers may write, and where the containers of this place keep their state."""

    def __init__(self, base: Path, *, kind: str = "podman", **options: Any) -> None:
        self.base = base
        self.kind = kind
        self.workspace = base / "ws"
        writable(self.workspace)
        self.options: dict[str, Any] = {"image": str(images.test_rootfs()), **options}

    def containers(self, **options: Any) -> Containers:
        """As another process would have them."""
        return Containers(self.base / "state" / "containers", engine_of(self.kind), **options)

    def backend(self, containers: Containers | None = None, **options: Any) -> ContainerBackend:
        """As another process would have it; docker has an image of what is a directory for podman."""
        made = {**self.options, **options}
        if self.kind == "docker" and os.path.isdir(f"{made['image']}/usr"):
            made["image"] = dockers.image(Path(made["image"]))
        return BACKENDS[self.kind](self.workspace, containers or self.containers(), **made)

    async def run(
        self,
        command: str,
        *,
        profile: str = WORK,
        backend: ContainerBackend | None = None,
        scope: str = "talk",
        **more: Any,
    ) -> Ended:
        """Run a command to its end in the container of this scope and profile."""
        backend = backend or self.backend()
        spec = replace(
            command_spec(command=command, workspace=self.workspace, limits=Limits(), **more), profile=profile
        )
        plan = await backend.plan(spec, scope)
        assert plan.home is not None
        name = f"t{os.getpid()}n{next(_NUMBERS)}"
        ended: asyncio.Future[ExitRecord] = asyncio.get_running_loop().create_future()

        def told(record: ExitRecord) -> None:
            if record["session_id"] == name and not ended.done():
                ended.set_result(record)

        client = SupervisorClient(plan.home, spawn=False, wait_s=SOON, on_exit=told)
        try:
            boot_id = (await client.connect())["boot_id"]
            place = os.stat(spec.cwd)
            answer = await client.start(
                StartRequest(
                    session_id=name,
                    argv=plan.argv,
                    env=plan.env,
                    cwd=plan.cwd,
                    boot_id=boot_id,
                    uid=plan.uid,
                    gid=plan.gid,
                    umask=plan.umask,
                    place=(place.st_dev, place.st_ino),
                )
            )
            assert answer["outcome"] == "started", answer
            record = await asyncio.wait_for(ended, SOON)
            output = (plan.home / "sessions" / name / "log").read_text("utf-8", "replace")
            await client.ack(name)
        finally:
            await client.close()
        return Ended(record["exit_code"], record["signal"], output)

    def clear(self) -> None:
        """Take away every container that was made here."""
        containers = self.containers()
        for home in containers.homes():
            containers.engine.remove(home.name)


@contextlib.contextmanager
def yard(kind: str = "podman", **options: Any) -> Generator[Yard]:
    """A place for containers, which are gone at the end; skipped where their engine does not work."""
    needed(kind)
    base = Path(tempfile.mkdtemp(prefix="shellback-podman-")).resolve()
    base.chmod(0o755)
    made = Yard(base, kind=kind, **options)
    try:
        yield made
    finally:
        made.clear()
        shutil.rmtree(base, ignore_errors=True)
