"""The exec tools as one toolset: hidden while the gate is off, asked for before they change anything."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset, CombinedToolset, ToolsetTool

from app.exec.backends.secrets import is_secret, secret_paths
from app.exec.engine import Engine
from app.exec.errors import ExecError, TaskCompleted
from app.exec.exec_tool import exec_tools
from app.exec.file_tools.calls import FileCalls
from app.exec.files import Files
from app.exec.judge import Judge
from app.exec.keys import key_bytes
from app.exec.policy import Policy, Proposal, asks, asks_always
from app.exec.process_tool import process_tools
from app.exec.render import how_it_ended
from app.exec.sessions import check_input
from app.exec.tool_calls import ToolCalls, answering
from app.exec.workspace_tool import workspace_tools
from app.exec.workspaces.files import files_of

log = logging.getLogger(__name__)

_HIDDEN = {"cwd_device", "cwd_inode"}


@dataclass
class AskFirst(ApprovalRequiredToolset[Any]):
    """Asks as the table says; a call that could not run anyway is answered at once, nobody is asked."""

    check: Callable[[RunContext[Any], str, dict[str, Any]], Awaitable[None]] | None = None

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Check before asking."""
        if self.check is not None and not ctx.tool_call_approved:
            await self.check(ctx, name, tool_args)
        return await super().call_tool(name, tool_args, ctx, tool)


class ExecTools:
    """Builds the toolset of one engine, and says what a call of it would do.

    `commands` is whether the tools for commands and their processes are among them, `workspace` those for short
    commands and files; these are for `files`, and `touched` is told of the conversation whenever they are used.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policy: Policy | None = None,
        enabled: bool = False,
        commands: bool = True,
        workspace: bool = True,
        files: Files | None = None,
        touched: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        self.engine = engine
        self._enabled = enabled
        self.commands = commands
        self.workspace = workspace
        on_files = FileCalls(files or files_of(engine.backend), engine.store, touched=touched)
        self._calls = ToolCalls(engine, policy or plain_judge(engine), on_files)
        self._tools = [exec_tools(self._calls), process_tools(self._calls)] if commands else []
        if workspace:
            self._tools.append(workspace_tools(self._calls))

    @property
    def asking(self) -> str:
        """Which commands wait for a person: one sentence for the model."""
        return self._calls.policy.asking

    def gate(self, ctx: RunContext[Any]) -> bool:
        """Whether the tools are there: what the turn has recorded as `gate` in its dependencies, else the flag."""
        recorded: object = getattr(ctx.deps, "gate", None)
        return recorded if isinstance(recorded, bool) else self._enabled

    def toolset(self) -> AbstractToolset[Any]:
        """Tools, then gate, then approval."""
        tools = CombinedToolset[Any](self._tools)
        return AskFirst(tools.prepared(self._visible), _needs_approval, check=self._check)

    async def propose(self, conversation_id: str, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The digest that an approval of this call binds, and what the person is shown.

        A call that became unacceptable since it was made is shown with the reason; it will not run.
        """
        try:
            valid = self._validated(tool, args)
            _, proposal, verdict, _, look = await self._calls.weighed(conversation_id, tool, valid, approved=True)
        except (ExecError, ValidationError) as error:
            refused = Proposal(tool=tool, facts={**args, "refused": str(error)})
            return refused.digest, _shown(refused)
        shown = _shown(proposal) if look is None else look.shown
        if tool == "evaluate_python":
            shown = {"code" if name == "stdin" else name: value for name, value in shown.items()}
        return proposal.digest, {**shown, **verdict.shown}

    def _validated(self, tool: str, args: dict[str, Any]) -> dict[str, Any]:
        # The digest is over what the tool body gets: with defaults filled in and types made.
        for toolset in self._tools:
            if tool in toolset.tools:
                return toolset.tools[tool].function_schema.validator.validate_python(args)
        return args

    async def _visible(self, ctx: RunContext[Any], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
        return definitions if self.gate(ctx) else []

    async def _check(self, ctx: RunContext[Any], tool: str, args: dict[str, Any]) -> None:
        with answering():
            self._calls.check(tool, args)
            if "keys" in args:
                key_bytes(args["keys"])
            if "session_id" in args:
                session = await self._calls.sessions(ctx).get(args["session_id"])
                if session.end is not None and asks(tool):
                    raise TaskCompleted(session.id, how_it_ended(session.end))
                if tool in {"process_write", "process_send_keys"}:
                    check_input(session, terminal=tool == "process_send_keys")


def plain_judge(engine: Engine) -> Judge:
    """The policy where nobody brings another: two keys, the default denials and secrets, no rule."""
    state = engine.links.sessions.parent
    secrets = secret_paths((), home=Path.home(), state=state)
    return Judge(runs=engine.backend, secret=lambda path: is_secret(path, secrets), state=state)


def _shown(proposal: Proposal) -> dict[str, Any]:
    return {name: value for name, value in proposal.facts.items() if name not in _HIDDEN and value is not None}


def exec_toolset(engine: Engine, *, policy: Policy | None = None, enabled: bool = True) -> AbstractToolset[Any]:
    """The exec tools for any Pydantic AI agent, with approval, for an engine that the caller starts and stops."""
    return ExecTools(engine, policy=policy, enabled=enabled).toolset()


def _needs_approval(_ctx: RunContext[Any], definition: ToolDefinition, _args: dict[str, Any]) -> bool:
    return asks_always(definition.name)
