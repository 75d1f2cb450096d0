"""A sandbox for one agent: the workspace tools, a shell and files, over a workspace of its own.

Agents with the same section share everything in it. `clone` makes a section that shares nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import WorkspaceRef
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_ai.workspaces import WorkspaceBackend

from shellback.exec.backends.container_engine import ContainerEngine
from shellback.exec.backends.containers import Containers
from shellback.exec.backends.mounts.hydration import Owner, forget, hydrated, overlay
from shellback.exec.backends.mounts.tree import preview
from shellback.exec.backends.podman import PodmanBackend
from shellback.exec.backends.supervisors import Supervisors
from shellback.exec.core.base import Backend, Plan
from shellback.exec.core.errors import BackendUnavailable, ExecError
from shellback.exec.core.identity import a_call, call_in_progress
from shellback.exec.core.model import WORK, CommandSpec, PodmanWorkspace, Session
from shellback.exec.core.ports import SessionStore, SessionWatch
from shellback.exec.core.runner import Runner
from shellback.exec.core.secrets import Secrets, secret_paths
from shellback.exec.core.threads import at_the_end
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.memory_store import MemorySessionStore, MemoryWorkspaceStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.log.output import both_ends
from shellback.exec.policy.policy import Grant, Policy
from shellback.exec.section.changes import DeleteEntry, EvalResult, VirtualFileSystem, WriteFile, changes, snapshot
from shellback.exec.section.config import PodmanSandboxConfig, PodmanShellParams, PodmanShellResult, SandboxConfig
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.facade import SyncFiles, SyncShell
from shellback.exec.shell.permit import ByOperator, run_permitted
from shellback.exec.shell.standalone import Made, Unlinked, end_sessions, in_container, stop_with_host
from shellback.exec.shell.workspaces.authority import ByCall, files_of, guarded
from shellback.exec.shell.workspaces.capability import WorkspaceCapability
from shellback.exec.tools.capability import ExecCapability
from shellback.exec.tools.short_commands import OUTPUT_BYTES, PYTHON, clamp_note, result, shell_spec
from shellback.exec.tools.tool_calls import answering
from shellback.exec.tools.toolset import ExecTools

log = logging.getLogger(__name__)

T = TypeVar("T")

SCOPE: Final = "section-"
"""Prefix of a generated scope; the workspace of such a section is removed with it."""
IDLE_LOOK_S: Final = 60.0
"""How often the container is checked for being idle."""
Make = Callable[[Path, Path, SupervisorClient], Made]
"""Makes the backend and supervisors from workspace, state directory and supervisor of this machine."""


@dataclass(init=False)
class SandboxSection(ExecCapability):
    """A capability with the workspace tools of one sandbox; `make` says what sandbox that is.

    Nothing is made before the first tool call, or before it is entered. `store` has the records of its calls, `watch`
    is told of its commands; each is new and its own where none is given. Without a `scope` the workspace is removed at
    the end.

    Raises:
        MountUnusable: A mount cannot be copied.
    """

    def __init__(
        self,
        make: Make,
        config: SandboxConfig,
        *,
        kind: str,
        scope: str | None = None,
        store: SessionStore | None = None,
        watch: SessionWatch | None = None,
    ) -> None:
        self.config = config
        self.scope = scope or f"{SCOPE}{uuid.uuid4().hex[:16]}"
        self._kind = kind
        self._make = make
        self._temporary = scope is None
        self._began = VirtualFileSystem()
        self._idle: asyncio.Task[None] | None = None
        self.overlay = overlay(config.cache, kind, self.scope).absolute()
        shown = preview(config.mounts, roots=config.allowed_roots, secret=_secret, workdir=self._workdir)
        self._state = Path(tempfile.mkdtemp(prefix="shellback-")).resolve()
        made = make(self.overlay, self._state, SupervisorClient(self._state))
        self._containers, self._host = made.containers, made.supervisor
        backend = cast("Backend", Pinned(made.backend, self.scope))
        self.store = store or MemorySessionStore()
        self.engine = Filled(self._fill, self.store, made.supervisor, backend, home=self._state, watch=watch)
        self.engine.links = Unlinked(backend.workspace, self.engine.links.sessions)
        policy = config.policy(self.engine)
        self._files = files_of(backend)
        self._shell = SyncShell(AsyncShell(self.engine, Owners(self.engine, policy), scope=self.scope), None)
        self.filesystem = SyncFiles(guarded(self._files, policy, self.scope, owned=True), self._started)
        self._place = WorkspaceCapability(
            self.engine, policy, self._files, enabled=config.enabled, made=self.engine.start
        )
        tools = ExecTools(
            self.engine,
            policy=policy,
            enabled=config.enabled,
            commands=False,
            files=self._files,
            touched=self._touched,
        )
        super().__init__(tools, instructions=config.instructions, preview=shown)
        self.id = f"{kind}_sandbox"
        engine = None if self._containers is None else self._containers.engine
        self._rest = at_the_end(self, _forgotten, engine, self._containers, self._state)

    @property
    def shell(self) -> SyncShell:
        """Its shell, for code in threads; `shell.asynchronous` is the one for code on the loop."""
        return self._shell

    @property
    def _workdir(self) -> str:
        return str(self.overlay)

    def clone(self, **fresh: Any) -> SandboxSection:
        """The same section anew: another workspace, filled again, and nothing that this one has.

        `fresh` is what the constructor takes besides that: `scope`, `store` and `watch`.
        """
        return SandboxSection(self._make, self.config, kind=self._kind, **fresh)

    def get_toolset(self) -> AbstractToolset[Any]:
        """The tools with gate and approval; the first call makes the sandbox."""
        return Started(super().get_toolset(), start=self.engine.start)

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The same workspace as `ctx.workspace`."""
        return self._place.get_workspace(ctx, ref=ref)

    async def wrap_tool_execute(self, ctx: RunContext[Any], **call: Any) -> Any:
        """Attribute to this call what its tool does."""
        return await self._place.wrap_tool_execute(ctx, **call)

    async def run_shell(self, params: PodmanShellParams) -> PodmanShellResult:
        """Run a short command as the owner, as `shell_execute` does for the model.

        Raises:
            InvalidCommand: An argument is not acceptable.
            BackendUnavailable: Commands cannot run.
        """
        engine = self.engine
        await engine.start()
        inner = engine.backend.inner
        spec = shell_spec(engine, {one.name: getattr(params, one.name) for one in fields(params)})
        outcome = await run_permitted(engine, ByOperator(engine), spec, self.scope, a_call(self.scope))
        said = await self._said(outcome.session, captured=params.capture_output)
        cwd = f"{inner}{outcome.session.cwd.removeprefix(str(engine.workspace))}"
        note = clamp_note(params.timeout_seconds, engine.limits)
        known = {key: said[key] for key in ("exit_code", "stdout", "stderr", "duration_ms", "timed_out")}
        return PodmanShellResult(command=tuple(params.command), cwd=cwd, note=note, **known)

    async def snapshot(self) -> VirtualFileSystem:
        """The files of its workspace as they are now; made first, if nothing was."""
        await self.engine.start()
        return await snapshot(self._files)

    async def changes(self) -> Sequence[WriteFile | DeleteEntry | EvalResult]:
        """All files written and deleted since this section began, and the results of `evaluate_python`.

        Files are compared with the filled workspace, so a file that was written and deleted again is not listed.
        """
        now = await self.snapshot()
        evaluated = [one for one in await self.store.list() if one.command == PYTHON]
        return [*changes(self._began, now), *[await self._evaluated(one) for one in evaluated]]

    async def close(self) -> None:
        """End its commands, remove container and state; without a given scope the workspace too.

        Repeating it changes nothing. A closed section is not opened again.
        """
        if not self._rest.alive:
            return
        try:
            if self.engine.started:
                await self._end()
        finally:
            await asyncio.to_thread(self._rest)
        await self._files.close()
        if self._temporary:
            await asyncio.to_thread(self._remove_overlay)

    async def __aenter__(self) -> Self:
        """Make the workspace and have commands run there; the container comes with the first."""
        await self.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def _started(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` as the shell does, once there is a workspace."""

        async def begun() -> T:
            await self.engine.start()
            return await work()

        return self._shell.run(begun)

    async def _said(self, session: Session, *, captured: bool = True) -> dict[str, Any]:
        out, err = self.engine.output(session), self.engine.output(session, err=True)
        return result(session, *await both_ends(out, err, OUTPUT_BYTES), captured=captured)

    async def _evaluated(self, session: Session) -> EvalResult:
        said = await self._said(session)
        return EvalResult(**{key: said[key] for key in ("exit_code", "stdout", "stderr", "timed_out")})

    async def _stop_idle(self, containers: Containers) -> None:
        """Stop a container that was not used for `idle_s`: there is no worker to do it."""
        assert isinstance(self._host, Supervisors)
        while True:
            await asyncio.sleep(min(containers.idle_s, IDLE_LOOK_S))
            try:
                await containers.sweep(self._host.starting)
            except ExecError as error:
                log.warning("an idle container could not be stopped: %s", error)

    async def _fill(self) -> None:
        if not self._rest.alive:
            raise BackendUnavailable("this section was closed; make another one, or clone it")
        self._shell.bind(asyncio.get_running_loop())
        uid, gid = Runner().dropped
        await hydrated(
            self.config.mounts,
            self.overlay,
            roots=self.config.allowed_roots,
            secret=_secret,
            owner=Owner(uid=uid, gid=gid, group=uid is None),
            # Podman's root mounts it; elsewhere the user of commands has to get there.
            parents=0o711 if uid is not None and self._containers is None else 0o700,
        )
        self._began = await snapshot(self._files)
        if self._containers is not None:
            self._idle = asyncio.create_task(self._stop_idle(self._containers), name=f"idle {self.scope}")

    async def _touched(self, _conversation_id: str) -> None:
        if self._containers is not None:
            await self._containers.touch(self.scope)

    async def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.gather(self._idle, return_exceptions=True)
        await end_sessions(self.engine)
        if self._containers is not None:
            for home in self._containers.homes():
                await self._containers.remove(home.name)
        await stop_with_host(self.engine, self._state)

    def _remove_overlay(self) -> None:
        if self._containers is None:
            forget(self.overlay)
        else:
            self._containers.engine.remove_tree(self.overlay)


class PodmanSandboxSection(SandboxSection):
    """A sandbox section in a container, made at the first tool call; its workspace is /workspace there.

    `more` is as for `SandboxSection`, `workspaces` has the record of its container.

    Raises:
        MountUnusable: A mount cannot be copied.
    """

    config: PodmanSandboxConfig

    def __init__(
        self,
        config: PodmanSandboxConfig | None = None,
        *,
        workspaces: MemoryWorkspaceStore | None = None,
        **more: Any,
    ) -> None:
        self.workspaces = workspaces or MemoryWorkspaceStore()
        super().__init__(self._in_podman, config or PodmanSandboxConfig(), kind="podman", **more)

    @property
    def workspace(self) -> PodmanWorkspace | None:
        """The container that it works in, None before there is one."""
        return self.workspaces.latest(self.scope, WORK)

    @property
    def _workdir(self) -> str:
        return PodmanBackend.inner

    def clone(self, **fresh: Any) -> PodmanSandboxSection:
        """The same, with another container; `fresh` may have `workspaces` too."""
        return PodmanSandboxSection(replace(self.config), **fresh)

    def _in_podman(self, workspace: Path, state: Path, host: SupervisorClient) -> Made:
        options = {name: getattr(self.config, name) for name in ("image", "network", "limits", "env")}
        podman = self.config.podman
        return in_container(PodmanBackend, lambda: podman, workspace, state, host, log=self.workspaces, **options)


def _secret(path: Path) -> bool:
    return Secrets(secret_paths((), home=Path.home(), state=Path("/nonexistent")))(path)


def _forgotten(engine: ContainerEngine | None, containers: Containers | None, state: Path) -> None:
    """Remove containers and state of a section that was not closed."""
    for home in [] if containers is None else containers.homes():
        with contextlib.suppress(ExecError):
            assert engine is not None
            engine.remove(home.name)
    shutil.rmtree(state, ignore_errors=True)


class Pinned:
    """A backend whose commands share one sandbox across conversations."""

    def __init__(self, backend: Backend, scope: str) -> None:
        self._backend = backend
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def private_home(self, scope: str) -> str:  # noqa: ARG002
        return self._backend.private_home(self._scope)

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:  # noqa: ARG002
        return await self._backend.plan(spec, self._scope)


class Filled(Engine):
    """An engine that fills its workspace before it starts."""

    def __init__(self, fill: Callable[[], Awaitable[None]], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._fill = fill
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._fill()
                await super().start()


@dataclass(kw_only=True)
class Started(WrapperToolset[Any]):
    """Makes the sandbox at the first tool call; if that fails, the call has a failed result."""

    start: Callable[[], Awaitable[None]]

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        with answering():
            await self.start()
        return await super().call_tool(name, tool_args, ctx, tool)


@dataclass(frozen=True, slots=True)
class Owners:
    """Permits all commands of the owner's code; inside a tool call, those that the call may run."""

    engine: Engine
    policy: Policy

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        authority = ByOperator(self.engine) if call_in_progress() is None else ByCall(self.engine, self.policy)
        return await authority.permit(spec, scope)
