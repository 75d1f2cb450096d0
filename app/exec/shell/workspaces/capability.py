"""Gives an agent our workspace: whatever uses `ctx.workspace` runs where the agent's commands do, under one policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart, WorkspaceRef
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.workspaces import UnavailableWorkspace, WorkspaceBackend

from shellback.exec.core.identity import Call, call_in_progress, calling, conversation_of
from shellback.exec.core.model import CallOrigin
from shellback.exec.engine.engine import Engine
from shellback.exec.files import Files
from shellback.exec.policy.policy import Policy
from shellback.exec.shell.workspaces.authority import ByCall
from shellback.exec.shell.workspaces.backend import PROVIDER, ShellbackWorkspace, workspace_id
from shellback.exec.shell.workspaces.files import guarded

CLOSED: Final = "tools have no workspace: ENABLE_EXECUTE is off"


class ClosedWorkspace(UnavailableWorkspace):
    """What a run has while the gate is off, also where its history names the workspace that it had before."""

    def __init__(self, ref: WorkspaceRef | None) -> None:
        super().__init__(CLOSED)
        self._ref = ref

    @property
    def ref(self) -> WorkspaceRef | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """What was asked for."""
        return self._ref


def nowhere() -> int:
    """The place of commands where nothing is ever replayed."""
    return 0


@dataclass(init=False)
class WorkspaceCapability(AbstractCapability[Any]):
    """Gives runs the workspace of `engine` as `ctx.workspace`.

    Commands and files are as `policy` has them: a tool call that a person approved may change the workspace, every
    other only read it. `name` is that of the workspace in references to it; without one it follows from where it is.
    `place` tells steps of a durable engine apart whose outcome is recorded, 0 outside of one. `fenced` is entered
    around each command, `made` waited for before anything is done.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        files: Files,
        *,
        enabled: bool = True,
        name: str | None = None,
        place: Callable[[], int] = nowhere,
        fenced: Callable[[], AbstractContextManager[None]] = nullcontext,
        made: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._made = made
        self.id = "shellback_workspace"
        self._engine = engine
        self._policy = policy
        self._files = files
        self._enabled = enabled
        self._name = name or workspace_id(engine)
        self._place = place
        self._fenced = fenced

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """The workspace, unless another one is asked for; one that is closed while the gate is off."""
        if ref not in {None, WorkspaceRef(provider=PROVIDER, id=self._name)}:
            return None
        if not self._open(ctx):
            return ClosedWorkspace(ref)
        scope = conversation_of(ctx)
        return ShellbackWorkspace(
            self._engine,
            ByCall(self._engine, self._policy),
            guarded(self._files, self._policy, scope),
            origin=self._names(ctx),
            scope=scope,
            name=self._name,
            ref=ref,
            # A durable engine asks at the beginning of every run: a turn goes on without a workspace, as far as it can.
            eager=self._place is nowhere,
            fenced=self._fenced,
            made=self._made,
        )

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,  # noqa: ARG002 - the hook's signature
        tool_def: ToolDefinition,  # noqa: ARG002
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Let what the tool does be known as this call's."""
        with calling(ctx):
            return await handler(args)

    def _open(self, ctx: RunContext[Any]) -> bool:
        recorded: object = getattr(ctx.deps, "gate", None)
        return recorded if isinstance(recorded, bool) else self._enabled

    def _names(self, ctx: RunContext[Any]) -> Callable[[], CallOrigin]:
        outside = Call(ctx)
        return lambda: (call_in_progress() or outside).origin(1 + self._place())
