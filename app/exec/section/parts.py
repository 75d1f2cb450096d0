"""The small things between a section and what it is put together from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from app.exec.backends.base import Backend, Plan
from app.exec.engine import Engine
from app.exec.identity import call_in_progress
from app.exec.model import CommandSpec
from app.exec.permit import ByOperator
from app.exec.policy import Grant, Policy
from app.exec.tool_calls import answering
from app.exec.workspaces.authority import ByCall


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
