"""Calls of the exec tools as a model makes them and a person approves them, without a model and without a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from shellback.exec.core.identity import call_key, origin_of
from shellback.exec.core.model import CallKey
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.policy import Approval, Policy
from shellback.exec.policy.rules.matching import Rules, Tiers
from shellback.exec.policy.rules.rule import Rule
from shellback.exec.tools.toolset import ExecTools, plain_judge
from tests.execs import running_engine
from tests.shells import hung_up


@dataclass
class Deps:
    conversation_id: str = "talk"
    turn_id: str = ""
    epoch: int = 0
    approvals: dict[CallKey, Approval] = field(default_factory=dict[CallKey, Approval])

    def approval_for(self, key: CallKey) -> Approval | None:
        return self.approvals.get(key)


class Said(NamedTuple):
    """What a call returned."""

    value: Any
    metadata: dict[str, Any]


@dataclass
class Desk:
    """One conversation with an engine. `standing` are the sessions whose input is approved until they end."""

    engine: Engine
    tools: ExecTools
    deps: Deps = field(default_factory=Deps)
    rules: list[Rule] = field(default_factory=list[Rule])
    standing: dict[str, str] = field(default_factory=dict[str, str])
    tiers: Tiers = field(default_factory=Tiers)
    count: int = 0

    @property
    def workspace(self) -> Path:
        return self.engine.workspace

    def put(self, name: str, text: str) -> Path:
        """A file that commands may read."""
        file = self.workspace / name
        file.write_text(text)
        return file

    async def call(self, tool: str, *, again: bool = False, approved: bool = False, **args: Any) -> Said:
        """Make a call that is a new one, or with `again` the last one once more.

        Raises:
            ApprovalRequired: A person would be asked.
            ToolFailed: It came to nothing.
        """
        self.count += not again
        ctx = self._ctx(tool, approved=approved)
        toolset = self.tools.toolset()
        known = (await toolset.get_tools(ctx))[tool]
        valid = known.args_validator.validate_python(args)
        made = cast("ToolReturn[Any]", await toolset.call_tool(tool, valid, ctx, known))
        return Said(made.return_value, cast("dict[str, Any]", made.metadata))

    async def seen(self, tool: str, **args: Any) -> dict[str, Any]:
        """Let a person see and approve the next call; what they see."""
        digest, shown = await self.tools.propose(self.deps.conversation_id, tool, args)
        self.count += 1
        self.deps.approvals[call_key(origin_of(self._ctx(tool, approved=True)))] = Approval("a1", digest)
        return shown

    async def approved(self, tool: str, **args: Any) -> Said:
        """A call that a person has seen and let go on."""
        await self.seen(tool, **args)
        return await self.call(tool, again=True, approved=True, **args)

    async def asks(self, tool: str, **args: Any) -> bool:
        """Whether a person would be asked; if not, the call has been made."""
        try:
            await self.call(tool, **args)
        except ApprovalRequired:
            return True
        return False

    def _ctx(self, tool: str, *, approved: bool) -> RunContext[Any]:
        return context_of(self.deps, tool, self.count, approved=approved)


def context_of(deps: object, tool: str, number: int, *, approved: bool) -> RunContext[Any]:
    """The context of a call of `tool`; of the same call for the same `number`."""
    part = ToolCallPart(tool, {}, tool_call_id="call_1")
    moment = datetime(2026, 1, 2, microsecond=number, tzinfo=UTC)
    return RunContext(
        deps=deps,
        model=TestModel(),
        usage=RunUsage(),
        messages=[ModelResponse(parts=[part], timestamp=moment, run_id="r")],
        tool_call_id="call_1",
        tool_name=tool,
        tool_call_approved=approved,
    )


@asynccontextmanager
async def desk(tmp_path: Path, **tools: Any) -> AsyncGenerator[Desk]:
    """A desk at which the policy of this program judges; `tools` are the parameters of `ExecTools`."""
    async with running_engine(tmp_path) as engine, desk_of(engine, **tools) as here:
        yield here


@pytest.fixture
async def here(engine: Engine) -> AsyncGenerator[Desk]:
    async with desk_of(engine, shell=True) as made:
        yield made


@asynccontextmanager
async def desk_of(engine: Engine, **tools: Any) -> AsyncGenerator[Desk]:
    """A desk over this engine, whose shells end with it."""

    async def of(_conversation_id: str) -> Rules:
        return Rules(rules=tuple(here.rules), tiers=here.tiers)

    async def stands(_conversation_id: str, session_id: str) -> str | None:
        return here.standing.get(session_id)

    policy: Policy = replace(plain_judge(engine), rules=of, standing=stands)
    here = Desk(engine, ExecTools(engine, policy=policy, enabled=True, **tools))
    yield here
    await hung_up(engine)
