"""The workspaces of our backends keep the contract that Pydantic AI publishes: its own suite, unchanged."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from shellback.exec.engine.engine import Engine
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.shell.workspaces.capability import ShellbackWorkspace, workspace_id
from tests import execs, images, podmans, sandboxes

# Of the module, so that the tests of a backend share an engine.
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Surroundings:
    """Engines with a workspace each: one that the tests of a backend share, and others that may be destroyed."""

    def __init__(self, kind: str, root: Path, stack: AsyncExitStack) -> None:
        self._kind = kind
        self._root = root
        self._stack = stack
        self._engines: dict[str, Engine] = {}

    async def engine(self) -> Engine:
        """Another one, which starts with its first command."""
        if self._kind == "podman":
            engine = (await self._stack.enter_async_context(podmans.pod())).engine()
        else:
            here = self._root / str(len(self._engines))
            here.mkdir()
            workspace, home = execs.places(here)
            backend = execs.backend_of(self._kind, workspace)
            engine = Engine(execs.MemorySessionStore(), execs.SupervisorClient(home, idle_s=0.5), backend, home=home)
        self._engines[workspace_id(engine)] = engine
        self._stack.push_async_callback(_stopped, engine)
        return engine

    def workspace(self, engine: Engine, ref: WorkspaceRef | None = None) -> ShellbackWorkspace:
        """The workspace of an engine, whose commands run by the grant of whoever makes it."""
        files = files_of(engine.backend)
        self._stack.push_async_callback(files.close)
        return ShellbackWorkspace(
            engine, ByOperator(engine), files, origin=lambda: execs.origin("talk"), scope="talk", ref=ref
        )

    def attached(self, ref: WorkspaceRef) -> ShellbackWorkspace:
        """A second workspace of the environment that `ref` names."""
        return self.workspace(self._engines[ref.id], ref)


async def destroyed(backend: WorkspaceBackend) -> None:
    """Take the environment away."""
    assert isinstance(backend, ShellbackWorkspace)
    # By its name first: what is still going on in there may put something into it.
    away = backend.engine.workspace.rename(backend.engine.workspace.with_name("away"))
    await asyncio.to_thread(shutil.rmtree, away, ignore_errors=True)


async def _stopped(engine: Engine) -> None:
    if engine.started:
        await execs.end_all(engine)
        await engine.stop()


@pytest.fixture(scope="class")
async def around(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Surroundings]:
    kind: str = cast("Any", request).cls.kind
    {"bubblewrap": sandboxes.needed, "podman": images.needed}.get(kind, lambda: None)()
    async with AsyncExitStack() as stack:
        yield Surroundings(kind, tmp_path_factory.mktemp("workspaces"), stack)


@pytest.fixture(scope="class")
async def shared(around: Surroundings) -> Engine:
    return await around.engine()


@pytest.fixture
async def spare(around: Surroundings) -> Engine:
    return await around.engine()


class Ours(WorkspaceBackendSuite):
    """The suite with everything that it has for a backend, so that no rule is left out."""

    kind = "host"

    @pytest.fixture
    def backend(self, around: Surroundings, shared: Engine) -> WorkspaceBackend:
        return around.workspace(shared)

    @pytest.fixture
    def fresh_backend(self, around: Surroundings, shared: Engine) -> Callable[[], WorkspaceBackend]:
        return lambda: around.workspace(shared)

    @pytest.fixture
    def destructive_backend(self, around: Surroundings, spare: Engine) -> Callable[[], WorkspaceBackend]:
        return lambda: around.workspace(spare)

    @pytest.fixture
    def attach_backend(self, around: Surroundings) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return around.attached

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        return destroyed


class TestHost(Ours):
    """Plain processes."""


class TestBubblewrap(Ours):
    """Sandboxes of namespaces."""

    kind = "bubblewrap"


class TestPodman(Ours):
    """Containers."""

    kind = "podman"

    @pytest.fixture
    def filesystem_honors_shell_permissions(self) -> bool:
        """A command in a rootless container has another user id than who writes, and cannot change a file's mode."""
        return os.geteuid() == 0
