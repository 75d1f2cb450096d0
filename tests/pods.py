"""What tests of containers share: engines over real ones, whatever is killed in them, and nothing left at the end."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from shellback.exec.backends.containers import Containers
from shellback.exec.backends.podman import Podman, PodmanBackend
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.ports import SessionStore
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.placements import Placements
from tests import images
from tests.execs import Told, end_all
from tests.sandboxes import writable
from tests.stage import Stage


class Pod:
    """One state directory and one workspace, whose commands run in containers."""

    def __init__(self, root: Path, **environ: str) -> None:
        root.chmod(0o755)
        self.root = root
        self.state, self.workspace = root / "state", root / "workspace"
        self.crash = root / "crash"
        for path in (self.state, self.crash):
            path.mkdir(mode=0o700)
        writable(self.workspace)
        self.environ = environ
        self.told = Told()
        self.store = MemorySessionStore(sink=self.told)
        self.ports: list[Supervisors] = []

    def containers(self) -> Containers:
        return Containers(self.state / "containers", Podman(environ=self.environ), crash_dir=self.crash)

    def engine(self, store: SessionStore | None = None, **more: Any) -> Engine:
        """An engine as a worker has one, with containers and supervisors of its own."""
        containers = self.containers()
        port = Supervisors(
            SupervisorClient(self.state, idle_s=0.5), self.state, containers=containers, host_needed=False
        )
        self.ports.append(port)
        backend = PodmanBackend(self.workspace, containers, image=str(images.test_rootfs()))
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

    async def remove(self) -> None:
        for home in Placements(self.state).homes():
            with suppress(subprocess.CalledProcessError):
                podman("rm", "--force", "--time", "0", home.name)


@contextmanager
def emptied(made: Stage) -> Generator[None]:
    """At the end the stage has neither a worker nor a container."""
    try:
        yield
    finally:
        for worker in made.workers:
            worker.kill()
        for home in Placements(made.home).homes():
            with suppress(subprocess.CalledProcessError):
                podman("rm", "--force", "--time", "0", home.name)


def podman(*words: str) -> str:
    """What podman says, whoever else uses it."""
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True, timeout=100).stdout.strip()


@asynccontextmanager
async def pod(**environ: str) -> AsyncGenerator[Pod]:
    """A pod that leaves neither a process nor a container behind."""
    images.needed()
    made = Pod(Path(tempfile.mkdtemp(prefix="shellback-pod-")), **environ)
    try:
        yield made
    finally:
        await made.remove()
        await asyncio.to_thread(shutil.rmtree, made.root, ignore_errors=True)


@asynccontextmanager
async def in_pod(**more: Any) -> AsyncGenerator[tuple[Pod, Engine]]:
    """A pod with a started engine."""
    async with pod() as made:
        engine = made.engine(**more)
        async with engine:
            try:
                yield made, engine
            finally:
                with suppress(Exception):
                    await end_all(engine)
