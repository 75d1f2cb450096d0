"""Containers of a test's own: engines over real ones, what runs and is killed in them, and nothing left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.docker import Docker, DockerBackend
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import WORK
from shellback.exec.core.ports import SessionStore
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.placements import Placements
from shellback.exec.policy.commands import command_spec
from tests import dockers, images, sandboxes
from tests.execs import Told, end_all
from tests.sandboxes import writable
from tests.stage import Stage, stage
from tests.supervisors import SOON, Rig

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
        name, place = f"t{os.getpid()}n{next(_NUMBERS)}", os.stat(spec.cwd)
        user: dict[str, Any] = {"uid": plan.uid, "gid": plan.gid, "umask": plan.umask}
        inode = (place.st_dev, place.st_ino)
        async with inside(plan.home) as rig:
            answer = await rig.start(name, *plan.argv, env=plan.env, cwd=plan.cwd, place=inode, **user)
            assert answer["outcome"] == "started", answer
            record = await rig.exit(name)
            await rig.client.ack(name)
            return Ended(record["exit_code"], record["signal"], rig.log(name).decode(errors="replace"))

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


def yards(*kinds: str, scope: Any = "function") -> Any:
    """A fixture: a yard of each of these kinds of engine."""

    @pytest.fixture(scope=scope, params=kinds)
    def made(request: pytest.FixtureRequest) -> Generator[Yard]:
        with yard(request.param) as one:
            yield one

    return made


@contextlib.asynccontextmanager
async def inside(home: Path) -> AsyncGenerator[Rig]:
    """A client of the supervisor in a container, which stays as it is."""
    made = Rig(home, lent=True, spawn=False, wait_s=SOON)
    try:
        made.boot_id = (await made.client.connect())["boot_id"]
        yield made
    finally:
        await made.client.close()


class Pod:
    """One state directory and one workspace, whose commands run in containers."""

    def __init__(self, root: Path, kind: str = "podman", **environ: str) -> None:
        root.chmod(0o755)
        self.root = root
        self.state, self.workspace = root / "state", root / "workspace"
        self.crash = root / "crash"
        for path in (self.state, self.crash):
            path.mkdir(mode=0o700)
        writable(self.workspace)
        self.kind = kind
        self.environ = environ
        self.told = Told()
        self.store = MemorySessionStore(sink=self.told)
        self.ports: list[Supervisors] = []
        self.options: dict[str, Any] = {}
        """Of its backends."""
        self.lends: dict[str, str] = {}

    def containers(self) -> Containers:
        engine = Podman(environ=self.environ) if self.kind == "podman" else engine_of(self.kind)
        return Containers(self.state / "containers", engine, crash_dir=self.crash)

    def engine(self, store: SessionStore | None = None, **more: Any) -> Engine:
        """An engine as a worker has one, with containers and supervisors of its own."""
        containers = self.containers()
        host = SupervisorClient(self.state, idle_s=0.5, lends=self.lends)
        port = Supervisors(host, self.state, containers=containers, host_needed=False)
        self.ports.append(port)
        options: dict[str, Any] = {"image": str(images.test_rootfs()), **self.options}
        backend = BACKENDS[self.kind](self.workspace, containers, **options)
        return Engine(store or self.store, port, backend, home=self.state, **more)

    @property
    def home(self) -> Path:
        """The home of the only container."""
        (home,) = Placements(self.state).homes()
        return home

    def pids(self) -> tuple[int, int]:
        """Supervisor and keeper of the only container, as this machine numbers them."""
        keeper = int(podman("inspect", "--format", "{{.State.Pid}}", self.home.name))
        for one in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            if Path(f"/proc/{one}/comm").read_text().strip() == "shellback-sup":
                return int(one), keeper
        raise AssertionError("the keeper has no supervisor")


@contextlib.contextmanager
def emptied(made: Stage) -> Generator[None]:
    """At the end the stage has neither a worker nor a container."""
    try:
        yield
    finally:
        for worker in made.workers:
            worker.kill()
        _clear(made.home, engine_of())


@contextlib.contextmanager
def contained(kind: str, database_url: str | None = None, **environ: str) -> Generator[Stage]:
    """A stage whose commands run in a backend of this kind, skipped without it, and emptied at the end."""
    if kind == "podman":
        images.needed()
        environ["PODMAN_IMAGE"] = str(images.with_programs("curl") if "NETWORK" in environ else images.test_rootfs())
    elif kind == "bubblewrap":
        sandboxes.needed()
    with stage(database_url, BACKEND=kind, **environ) as made, emptied(made):
        made.workspace.chmod(0o775)
        yield made


def _clear(state: Path, engine: ContainerEngine) -> None:
    for home in Placements(state).homes():
        with contextlib.suppress(BackendUnavailable):
            engine.remove(home.name)


def podman(*words: str) -> str:
    """What podman says, whoever else uses it."""
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True, timeout=100).stdout.strip()


@contextlib.asynccontextmanager
async def pod(kind: str = "podman", **environ: str) -> AsyncGenerator[Pod]:
    """A pod that leaves neither a process nor a container behind."""
    needed(kind)
    made = Pod(Path(tempfile.mkdtemp(prefix="shellback-pod-")), kind, **environ)
    try:
        yield made
    finally:
        await asyncio.to_thread(_clear, made.state, engine_of(kind))
        await asyncio.to_thread(shutil.rmtree, made.root, ignore_errors=True)


@contextlib.asynccontextmanager
async def in_pod(**more: Any) -> AsyncGenerator[tuple[Pod, Engine]]:
    """A pod with a started engine."""
    async with pod() as made:
        engine = made.engine(**more)
        async with engine:
            try:
                yield made, engine
            finally:
                with contextlib.suppress(Exception):
                    await end_all(engine)
