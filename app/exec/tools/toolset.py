"""The exec tools as one toolset, with gate and approval."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from pydantic import ValidationError
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ToolReturn
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

from shellback.exec.core.errors import ExecError, InvalidCommand
from shellback.exec.core.identity import conversation_of
from shellback.exec.core.secrets import Secrets, secret_paths
from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.persistent import PersistentShells
from shellback.exec.policy.judge import Judge, Keys
from shellback.exec.policy.policy import Policy, Proposal
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.shell.workspaces.ground import Ground
from shellback.exec.tools.bench import Bench
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.registry import tool_named, tools
from shellback.exec.tools.shell_calls import ShellCalls
from shellback.exec.tools.tool import ExecTool, Invocation, Part, Result
from shellback.exec.tools.tool_calls import ToolCalls, answering
from shellback.exec.watching.watcher import Watcher

_HIDDEN = {"cwd_device", "cwd_inode"}
_COMMANDS: Final[frozenset[Part]] = frozenset({"sessions", "shell", "blocks", "watches"})
"""Parts that come with `commands` only."""
Carry = Callable[[RunContext[Any], ExecTool, dict[str, Any]], Awaitable[Result[Any]]]
"""Carries out a call of a tool with its validated arguments."""


class _Definite(FunctionToolset[Any]):
    """Functions whose definitions never change, so they are made once and not for each request to the model."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._made: dict[int, dict[str, ToolsetTool[Any]]] = {}

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools; their bound of retries is the agent's."""
        if ctx.max_retries not in self._made:
            made = await super().get_tools(ctx)
            # With their toolset's id, or each request would add it to copies.
            self._made[ctx.max_retries] = {
                name: replace(one, tool_def=replace(one.tool_def, toolset_id=self.id)) for name, one in made.items()
            }
        return dict(self._made[ctx.max_retries])


class Tools:
    """The exec tools of some `parts` as a toolset, behind a gate; `carry` carries out their calls."""

    def __init__(self, parts: Collection[Part], carry: Carry, *, enabled: bool = False) -> None:
        self.parts: frozenset[Part] = frozenset(one for one in parts if one not in _COMMANDS or "commands" in parts)
        self._enabled = enabled
        self._tools = _Definite(id="exec", docstring_format="google", require_parameter_descriptions=True)
        for tool in tools().values():
            if tool.part in self.parts:
                self._tools.add_function(_function(tool, carry), takes_ctx=True, metadata=tool.metadata)

    def gate(self, ctx: RunContext[Any]) -> bool:
        """Whether the gate is open: `gate` of the turn's dependencies, else `enabled`."""
        recorded: object = getattr(ctx.deps, "gate", None)
        return recorded if isinstance(recorded, bool) else self._enabled

    def toolset(self) -> AbstractToolset[Any]:
        """The tools, behind the gate; a call waits for approval if it needs one."""
        return self._tools.prepared(self._visible)

    def validated(self, tool: str, args: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the tool gets them, with defaults and converted types.

        Raises:
            InvalidCommand: The tool is switched off.
            ValidationError: They are not those of the tool.
        """
        found = self._tools.tools.get(tool)
        if found is None and tool in tools():
            raise InvalidCommand(f"{tool} is switched off here")
        return args if found is None else found.function_schema.validator.validate_python(args)

    async def _visible(self, ctx: RunContext[Any], definitions: list[ToolDefinition]) -> list[ToolDefinition]:
        return definitions if self.gate(ctx) else []


class ExecTools(Tools):
    """Builds the toolset for an engine of this process, and says what a call would do.

    Switches: `commands` for commands and processes, `sessions` for persistent shells (in `shells`), `shell` for the
    tool `shell`, `blocks` for `process_pin`, `workspace` for the workspace tools on `files`, `watcher` for
    `process_watch`. `touched` is called with the conversation at each use of a file tool. `calls_in` finds what carries
    out the calls of a conversation, in its workspace; without it all work in that of `engine`.
    """

    def __init__(  # noqa: PLR0913 - what an operator chooses
        self,
        engine: Engine,
        *,
        policy: Policy | None = None,
        enabled: bool = False,
        commands: bool = True,
        sessions: bool = True,
        shell: bool = False,
        shells: PersistentShells | None = None,
        blocks: bool = False,
        workspace: bool = True,
        files: Files | None = None,
        touched: Callable[[str], Awaitable[object]] | None = None,
        watcher: Watcher | None = None,
        calls_in: Callable[[str], Awaitable[ToolCalls]] | None = None,
    ) -> None:
        self.engine = engine
        self._other_calls = calls_in
        on_files = FileCalls(files or files_of(engine.backend), engine.store, touched)
        on_shells = ShellCalls(engine, shells or PersistentShells(engine))
        self._calls = ToolCalls(engine, policy or plain_judge(engine), on_files, on_shells, watcher)
        parts: dict[Part, bool] = {
            "commands": commands,
            "sessions": sessions,
            "shell": shell,
            "blocks": blocks,
            "watches": watcher is not None,
            "workspace": workspace,
        }
        super().__init__([part for part, on in parts.items() if on], self.carry, enabled=enabled)

    def asking(self, ground: Ground | None) -> str:
        """One sentence for the model: which commands need approval in a workspace."""
        return (ground or self._calls).policy.asking

    async def calls_of(self, ctx: RunContext[Any]) -> ToolCalls:
        """What carries out a call: of the workspace that its turn began with, else of its conversation's.

        Raises:
            ExecError: The conversation is not there any more.
        """
        ground: object = getattr(ctx.deps, "ground", None)
        return ground.calls if isinstance(ground, Bench) else await self._calls_in(conversation_of(ctx))

    async def _calls_in(self, conversation_id: str) -> ToolCalls:
        return self._calls if self._other_calls is None else await self._other_calls(conversation_id)

    async def carry(self, ctx: RunContext[Any], tool: ExecTool, args: dict[str, Any]) -> Result[Any]:
        """Carry out a call.

        Raises:
            ApprovalRequired: A person has to be asked first.
            ToolFailed: It was refused, or cannot be done.
        """
        with answering(tool.worded):
            calls = await self.calls_of(ctx)
            call = Invocation(calls, ctx, tool, args)
            if not ctx.tool_call_approved:
                # A call that could not run fails at once; no person is asked.
                await calls.ready(call)
                await calls.heed(args)
                if tool.approval == "ask":
                    raise ApprovalRequired
            return await calls.run(call)

    async def propose(self, conversation_id: str, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The digest for the approval of this call, and what the person is shown.

        The digest covers what the tool's body gets.

        A call that became invalid is shown with the reason; it will not run.
        """
        try:
            valid, calls = self.validated(tool, args), await self._calls_in(conversation_id)
            weighed = await calls.weighed(conversation_id, tool_named(tool), valid, approved=True)
        except (ExecError, ValidationError) as error:
            refused = Proposal(tool=tool, facts={**args, "refused": str(error)})
            return refused.digest, _shown(refused)
        renamed, look = tool_named(tool).renamed, weighed.look
        shown = _shown(weighed.proposal) if look is None else {**look.shown, **calls.where}
        named = {renamed.get(name, name): value for name, value in shown.items()}
        return weighed.proposal.digest, {**named, **weighed.verdict.shown}


def _function(tool: ExecTool, carry: Carry) -> Callable[..., Awaitable[ToolReturn[Any]]]:
    """The function of a tool for the agent framework."""

    async def function(ctx: RunContext[Any], **args: Any) -> ToolReturn[Any]:
        done = await carry(ctx, tool, args)
        return ToolReturn(done.value, metadata=done.metadata)

    first, *parameters = inspect.signature(tool.run).parameters.values()
    hints = get_type_hints(tool.run)
    del hints[first.name]
    (value,) = get_args(hints.pop("return"))
    hints = {"ctx": RunContext[Any], **hints, "return": ToolReturn[value]}
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([context, *parameters])
    function.__annotations__, function.__doc__, function.__name__ = hints, tool.run.__doc__, tool.name
    return function


def plain_judge(engine: Engine) -> Judge:
    """The default policy: two keys, the default denials and secrets, no rule."""
    state = engine.links.sessions.parent
    secrets = secret_paths((), home=Path.home(), state=state)
    keys = Keys(timeout_s=engine.limits.unattended_timeout_s)
    return Judge(runs=engine.backend, secret=Secrets(secrets), state=state, keys=keys)


def _shown(proposal: Proposal) -> dict[str, Any]:
    return {name: value for name, value in proposal.facts.items() if name not in _HIDDEN and value is not None}


def exec_toolset(
    engine: Engine, *, policy: Policy | None = None, enabled: bool = True, watcher: Watcher | None = None
) -> AbstractToolset[Any]:
    """The exec tools with approval, for any Pydantic AI agent; the caller starts and stops the engine."""
    return ExecTools(engine, policy=policy, enabled=enabled, watcher=watcher).toolset()
