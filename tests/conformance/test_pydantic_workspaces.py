"""The workspaces of our backends keep the contract that Pydantic AI publishes: its own suite, unchanged."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from shellback.exec.core.identity import Call, calling
from shellback.exec.engine.engine import Engine
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.shell.workspaces.capability import PROVIDER, ShellbackWorkspace, workspace_id
from shellback.work.elsewhere.code import Code, WorkspaceElsewhere
from tests import execs, images, podmans, sandboxes
from tests.far import AsOperator, Far, far

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
        self._of: dict[int, tuple[WorkspaceBackend, Engine]] = {}

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

    def workspace(self, engine: Engine, ref: WorkspaceRef | None = None) -> WorkspaceBackend:
        """The workspace of an engine, whose commands run by the grant of whoever makes it."""
        made = self.made(engine, ref)
        self._of[id(made)] = made, engine
        return made

    def made(self, engine: Engine, ref: WorkspaceRef | None) -> WorkspaceBackend:
        files = files_of(engine.backend)
        self._stack.push_async_callback(files.close)
        return ShellbackWorkspace(
            engine, ByOperator(engine), files, origin=lambda: execs.origin("talk"), scope="talk", ref=ref
        )

    def attached(self, ref: WorkspaceRef) -> WorkspaceBackend:
        """A second workspace of the environment that `ref` names."""
        return self.workspace(self._engines[ref.id], ref)

    async def destroyed(self, backend: WorkspaceBackend) -> None:
        """Take the environment away."""
        place = self._of[id(backend)][1].workspace
        # By its name first: what is still going on in there may put something into it.
        away = place.rename(place.with_name("away"))
        await asyncio.to_thread(shutil.rmtree, away, ignore_errors=True)


async def _stopped(engine: Engine) -> None:
    if engine.started:
        await execs.end_all(engine)
        await engine.stop()


class Elsewhere(Surroundings):
    """The same for turns on another machine, in a call of a tool that was approved."""

    def __init__(self, template: Path, root: Path, stack: AsyncExitStack) -> None:
        super().__init__("host", root, stack)
        self._template = template
        self._far: dict[str, Far] = {}

    async def engine(self) -> Engine:
        """Another one, and a turn elsewhere that works in its workspace."""
        engine = await super().engine()
        name = workspace_id(engine)
        turn = far(engine, engine.workspace.parent, self._template, AsOperator(engine))
        self._far[name] = made = await self._stack.enter_async_context(turn)
        made.approve(made.context())
        return engine

    def made(self, engine: Engine, ref: WorkspaceRef | None) -> WorkspaceBackend:
        turn, own = self._far[workspace_id(engine)], WorkspaceRef(provider=PROVIDER, id=workspace_id(engine))

        def call() -> Call:
            return Call(turn.context(call=uuid.uuid4().hex))

        return WorkspaceElsewhere(InCall(turn.link, turn.deps, turn), engine.backend.inner, call, own, ref)


@dataclass(frozen=True)
class InCall(Code):
    """Asks as the code of a call that was approved, whichever task that is in."""

    turn: Far

    async def ask(self, operation: str, *args: Any, **more: Any) -> Any:
        with calling(self.turn.context()):
            return await super().ask(operation, *args, **more)

    async def run(self, operation: str, call: Call | None, *args: Any, **more: Any) -> Any:
        with calling(self.turn.context()):
            return await super().run(operation, call, *args, **more)


@pytest.fixture(scope="class")
async def around(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path
) -> AsyncGenerator[Surroundings]:
    kind: str = cast("Any", request).cls.kind
    {"bubblewrap": sandboxes.needed, "podman": images.needed}.get(kind, lambda: None)()
    async with AsyncExitStack() as stack:
        root = tmp_path_factory.mktemp("workspaces")
        yield Elsewhere(sqlite_template, root, stack) if kind == "elsewhere" else Surroundings(kind, root, stack)


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
    def destroy_environment(self, around: Surroundings) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        return around.destroyed


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


class TestElsewhere(Ours):
    """Turns on another machine."""

    kind = "elsewhere"

    async def test_attaching_to_a_destroyed_environment_raises_unavailable(
        self,
        destructive_backend: Callable[[], WorkspaceBackend] | None,
        attach_backend: Callable[[WorkspaceRef], WorkspaceBackend] | None,
        destroy_environment: Callable[[WorkspaceBackend], Awaitable[None]] | None,
    ) -> None:
        """Its first use raises it, and not `working_dir`: a turn also begins without its workspace."""
        assert destructive_backend is not None
        assert attach_backend is not None
        assert destroy_environment is not None
        backend = destructive_backend()
        await backend.working_dir()
        assert backend.ref is not None
        await destroy_environment(backend)
        attached = attach_backend(backend.ref)
        assert isinstance(attached, WorkspaceElsewhere)
        with pytest.raises(WorkspaceUnavailableError):
            await attached.exists(await attached.working_dir())
