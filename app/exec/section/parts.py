"""The small things between a section and what it is put together from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from shellback.exec.core.base import Backend, Plan
from shellback.exec.core.identity import call_in_progress
from shellback.exec.core.model import CommandSpec
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.policy import Grant, Policy
from shellback.exec.shell.permit import ByOperator
from shellback.exec.shell.workspaces.authority import ByCall
from shellback.exec.tools.tool_calls import answering


class Pinned:
    """A backend whose commands share one sandbox, whatever conversations they are of."""

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
    """An engine whose workspace is made and filled before it looks at it."""

    def __init__(self, fill: Callable[[], Awaitable[None]], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._fill = fill
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        async with self._starting:
            if not self.started:
                await self._fill()
                await super().start()


@dataclass
class Started(WrapperToolset[Any]):
    """Makes the sandbox at the first call of a tool; one that cannot be had is a failed result."""

    start: Callable[[], Awaitable[None]] | None = None

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if self.start is not None:
            with answering():
                await self.start()
        return await super().call_tool(name, tool_args, ctx, tool)


@dataclass(frozen=True, slots=True)
class Owners:
    """Code of the section's owner does as it likes; inside a tool call it may do what that call may."""

    engine: Engine
    policy: Policy

    async def permit(self, spec: CommandSpec, scope: str) -> tuple[CommandSpec, Grant]:
        authority = ByOperator(self.engine) if call_in_progress() is None else ByCall(self.engine, self.policy)
        return await authority.permit(spec, scope)
