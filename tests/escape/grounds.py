"""Where attempts are made: what a sandbox of each kind is made of, and how it is reached."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import shlex
import shutil
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from shellback.exec.backends import homes
from shellback.exec.backends.bubblewrap import BubblewrapBackend
from shellback.exec.backends.container import Container, ContainerLimits
from shellback.exec.backends.container_backend import ContainerBackend
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.base import Backend, Plan
from shellback.exec.core.model import READ_ONLY, WORK, CommandSpec, Session
from shellback.exec.core.runner import found
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.wire.hosts import Hosts
from shellback.exec.wire.sandbox import Bounds
from tests import dockers, images, sandboxes
from tests.escape.probe import Probe, Way
from tests.escape.protected import SWAPS
from tests.escape.scene import FILE_BYTES, PROCESSES, PYTHON, SCRATCH_BYTES, UID, Scene
from tests.execs import end_all, granted, origin, spec
from tests.podmans import BACKENDS, engine_of
from tests.towns import town as towns
from tests.towns.names import HOSTS, LISTED

RUN_S: Final = 240.0
TALK: Final = "talk"
_LATE: Final = ".env"
_REACHES: Final = f"import urllib.request as one; one.urlopen('http://{LISTED}/', timeout=20).read()"
"""Without it, nothing that is refused would mean anything."""
_MEMORY_BYTES: Final = 128 << 20


async def command(engine: Engine, text: str, way: Way, scope: str = TALK, *, background: bool = False) -> Session:
    """Run a command to its end, or let it go on; another conversation's is always of profile work."""
    made = spec(engine, text, pty=way == "terminal", timeout=RUN_S, background=background)
    made = replace(made, profile=READ_ONLY if way.endswith("read_only") else WORK)
    if background:
        return await engine.launch(granted(engine, made), origin(scope))
    return (await engine.run(granted(engine, made), origin(scope))).session


def hidden(made: Scene) -> tuple[Path, ...]:
    """What no sandbox is to show."""
    return (made.workspace / "hidden", made.state, made.engine_home)


def move(workspace: Path, target: str) -> None:
    """Put a symlink in place of a protected directory."""
    path = workspace / ".husky"
    if not path.is_symlink():
        path.rename(workspace / "husky-before")
        path.symlink_to(os.path.relpath(target, workspace))


@contextlib.asynccontextmanager
async def _kept(made: Scene, backend: Backend, port: Any) -> AsyncGenerator[Engine]:
    given = made.open_given()
    os.set_inheritable(given, True)
    try:
        async with Engine(MemorySessionStore(), port, backend, home=made.engine_home) as engine:
            try:
                yield engine
            finally:
                await end_all(engine)
    finally:
        os.close(given)


class Moving(BubblewrapBackend):
    """A workspace in which a directory has become a symlink when the sandbox is made that was planned for it."""

    target = "/"

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        made = await super().plan(spec, scope)
        await asyncio.to_thread(move, self.workspace, self.target)
        return made


class Boxes:
    """Bubblewrap."""

    name = "bubblewrap"
    python = PYTHON
    image = None
    """Makes the root file system of what attempts see, where it is another than the machine's."""

    def missing(self) -> str | None:
        """Why none can be had here, None where they can."""
        return sandboxes.refusal()

    def lacks(self, probe: Probe) -> bool:
        """Whether the attempt means nothing here."""
        return probe.backend not in {"", self.name} or _townless(probe)

    @contextlib.asynccontextmanager
    async def engine(self, made: Scene, probes: Sequence[Probe], way: Way) -> AsyncGenerator[Engine]:
        """An engine whose commands run in such sandboxes; nothing is left of it at the end."""
        kind = Moving if way == "moved" else BubblewrapBackend
        bounds = Bounds(processes=PROCESSES, file_bytes=FILE_BYTES) if way == "bounded" else None
        more: dict[str, Any] = {"bounds": bounds, "scratch_bytes": SCRATCH_BYTES} if bounds else {}
        backend = kind(
            made.workspace,
            exec_uid=UID,
            network=Hosts(HOSTS) if made.town else way == "read_only",
            readable=(made.code,),
            hidden=hidden(made),
            **more,
        )
        if isinstance(backend, Moving):
            backend.target = SWAPS[probes[0].name]
        with _entered(made):
            async with _kept(made, backend, SupervisorClient(made.engine_home, idle_s=0.5)) as engine:
                yield engine
        await asyncio.to_thread(_wait_for_end, made.supervisor)

    async def first(self, engine: Engine, made: Scene, way: Way) -> dict[str, Any]:
        """Find out who supervises the sandbox of the attempts; what they are told of it."""
        if not made.town:
            made.supervisor = _of_host(made)
            return {"supervisor": made.supervisor}
        proxy = await _proxy(engine, made, self.python)
        made.supervisor = _of_host(made)
        return {"supervisor": made.supervisor, "proxy": proxy}


def _townless(probe: Probe) -> bool:
    return probe.way.startswith("listed") and towns.refusal() is not None


@contextlib.contextmanager
def _entered(made: Scene) -> Generator[None]:
    """Have the host's supervisor, and so the proxy, be in the town of the scene, if it has one."""
    with pytest.MonkeyPatch.context() as patch:
        if made.town:
            made.town.entering(patch)
        yield


async def _proxy(engine: Engine, made: Scene, python: str) -> int:
    """The process of the proxy, by which a listed host was reached."""
    reached = await command(engine, f"{python} -c {shlex.quote(_REACHES)}", "listed", "another talk")
    if reached.end is None or reached.end.exit_code:
        raise RuntimeError(f"a listed host is not reached: {reached.end}")
    (proxy,) = towns.proxies(made.engine_home)
    return proxy


def _of_host(made: Scene) -> int:
    """The supervisor outside of containers, 0 where none was started."""
    with contextlib.suppress(FileNotFoundError):
        text = (made.engine_home / "supervisor" / "supervisor.log").read_text()
        return int((re.findall(r"supervisor\[(\d+)\] ready", text) or ["0"])[-1])
    return 0


def _wait_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [], 60)


def drifting(backend: ContainerBackend, target: str) -> None:
    """As `Moving`: between the look at the workspace and the engine's own."""
    plain = backend.container

    def container(profile: str, scope: str) -> Container:
        made = plain(profile, scope)
        move(backend.workspace, target)
        return made

    backend.container = container


class Pods:
    """Containers of an engine, over a root file system made of this machine's programs."""

    python = "python3"

    def __init__(self, name: str) -> None:
        self.name = name

    OTHERWISE: Final = {
        "keep_bounding_set": "that of the container's root; without new privileges nobody gets from it",
        "see_files_of_sys": "a container sees its own groups, read-only; open_files_of_sys is tried",
    }
    """What is not tried, because it is no promise of containers."""
    UNBOUNDED: Final = {"fork_bomb": "without root there are no bounds of cgroups of version 1, and the probe says so"}

    def missing(self) -> str | None:
        return (images if self.name == "podman" else dockers).refusal()

    def lacks(self, probe: Probe) -> bool:
        unbounded = os.geteuid() != 0 and not Path("/sys/fs/cgroup/cgroup.controllers").exists()
        return (
            probe.backend not in {"", "podman"}
            or probe.name in self.OTHERWISE
            or _townless(probe)
            or (unbounded and probe.name in self.UNBOUNDED)
        )

    @staticmethod
    def image(root: Path) -> None:
        """The tests' root file system without a copy of it, git and curl."""
        shutil.copytree(images.test_rootfs(), root, symlinks=True, copy_function=_linked)
        for path in filter(None, map(found, ("git", "curl"))):
            shutil.copy(path, root / "usr/bin")
            images.libraries(root, [path])

    @contextlib.asynccontextmanager
    async def engine(self, made: Scene, probes: Sequence[Probe], way: Way) -> AsyncGenerator[Engine]:
        limits = ContainerLimits()
        if way == "bounded":
            limits = ContainerLimits(
                processes=PROCESSES, file_bytes=FILE_BYTES, scratch_bytes=SCRATCH_BYTES, memory_bytes=_MEMORY_BYTES
            )
        if os.geteuid():
            for folder, _names, _files in os.walk(made.workspace):
                os.chmod(folder, 0o775)
        containers = Containers(made.engine_home / "containers", engine_of(self.name))
        assert made.image is not None
        image = dockers.image(made.image) if self.name == "docker" else str(made.image)
        backend = BACKENDS[self.name](
            made.workspace,
            containers,
            image=image,
            exec_uid=UID,
            network=Hosts(HOSTS) if made.town else way == "read_only",
            hidden=hidden(made),
            limits=limits,
        )
        if way == "moved":
            drifting(backend, SWAPS[probes[0].name])
        home = SupervisorClient(made.engine_home, idle_s=0.5)
        try:
            port = Supervisors(home, made.engine_home, containers=containers, host_needed=False)
            with _entered(made):
                async with _kept(made, backend, port) as engine:
                    yield engine
        finally:
            for one in containers.homes():
                await containers.remove(one.name)
            if host := _of_host(made):  # who writes down what was never started
                await asyncio.to_thread(_wait_for_end, host)
            if self.name == "docker":
                dockers.remove_image(image)

    async def first(self, engine: Engine, made: Scene, way: Way) -> dict[str, Any]:
        if way == "moved":
            return {}
        await command(engine, "true", way)
        if way == "read_only":  # a container is there already when this comes
            late = made.workspace / "late"
            late.mkdir()
            (late / _LATE).write_text(made.secret)
            await command(engine, "true", way)
        backend = engine.backend
        assert isinstance(backend, ContainerBackend)
        profile = READ_ONLY if way.endswith("read_only") else WORK
        home = backend.containers.home(backend.container(profile, TALK))
        made.supervisor = homes.peer(home)
        status = await asyncio.to_thread(Path(f"/proc/{made.supervisor}/status").read_text)
        (numbers,) = re.findall(r"NSpid:(.+)", status)
        facts = {"supervisor": int(numbers.split()[-1]), "supervisor_state": "/run/shellback/home"}
        return {**facts, "proxy": await _proxy(engine, made, self.python)} if made.town else facts


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


Ground = Boxes | Pods
"""A kind of sandbox."""
GROUNDS: Final[dict[str, Ground]] = {"bubblewrap": Boxes(), "podman": Pods("podman"), "docker": Pods("docker")}
