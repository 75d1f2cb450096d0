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

from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import ExecError, PasswordWanted, TaskCompleted
from shellback.exec.core.identity import call_key, conversation_of, origin_of
from shellback.exec.core.model import Session, WindowSize
from shellback.exec.core.secrets import Secrets, secret_paths
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import check_input, check_size
from shellback.exec.engine.waiting import check_typing
from shellback.exec.files.files import Files
from shellback.exec.persistent import PersistentShells
from shellback.exec.policy.judge import Judge, Keys
from shellback.exec.policy.policy import Policy, Proposal
from shellback.exec.policy.tools import tool_named
from shellback.exec.shell.workspaces.authority import files_of
from shellback.exec.tools.exec_tool import exec_tools
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.process_tool import process_tools
from shellback.exec.tools.session_tool import session_tools
from shellback.exec.tools.shell_calls import ShellCalls
from shellback.exec.tools.shell_tool import shell_tools
from shellback.exec.tools.tool_calls import ToolCalls, answering, typed_by
from shellback.exec.tools.watch_tool import pin_tools, wait_tools, watch_tools
from shellback.exec.tools.workspace_tool import workspace_tools
from shellback.exec.watching.watcher import Watcher

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

    `commands` is whether the tools for commands and their processes are among them, `sessions` those for shells beside
    them, which are in `shells`, `shell` the one tool for a shell and processes, `blocks` the one that says which
    processes are shown, where somebody shows them, `workspace` those for short commands and files; these are for
    `files`, and `touched` is told of the conversation whenever they are used.
    `watcher` looks after watches; without one there is no tool for them.
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
    ) -> None:
        self.engine = engine
        self._enabled = enabled
        self.commands = commands
        self.sessions = sessions
        self.watches = watcher is not None
        self.blocks = blocks
        self.workspace = workspace
        on_files = FileCalls(files or files_of(engine.backend), engine.store, touched=touched)
        on_shells = ShellCalls(engine, shells or PersistentShells(engine))
        self._calls = ToolCalls(engine, policy or plain_judge(engine), on_files, on_shells)
        self._tools = [exec_tools(self._calls), process_tools(self._calls), wait_tools(self._calls)] if commands else []
        if commands and sessions:
            self._tools.append(session_tools(self._calls))
        if commands and shell:
            self._tools.append(shell_tools(self._calls))
        if commands and blocks:
            self._tools.append(pin_tools(self._calls))
        self._watcher = watcher
        if commands and watcher is not None:
            self._tools.append(watch_tools(self._calls, watcher))
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
        with answering(tool):
            self._calls.check(tool, args)
            if tool == "process_send_keys":
                typed_by(tool, args)
            known = tool_named(tool)
            if known.acts:
                await self._check_action(ctx, tool, args)
            elif "session_id" in args:
                session = await self._calls.sessions(ctx).get(args["session_id"])
                if session.end is not None and known.asks and not await self._made_before(ctx):
                    raise TaskCompleted(session.id, how_it_ended(session.end))
                if known.input:
                    check_input(session, terminal=known.terminal)
                if tool == "process_resize":
                    check_size(WindowSize(args["rows"], args["cols"]))
                elif known.types:
                    await self._check_typing(ctx, session, tool, args)
        await self._heed(args)

    async def _heed(self, args: dict[str, Any]) -> None:
        """Note which sessions a call is about: their watches have not fired in vain."""
        if self._watcher is not None:
            named = (args.get("session_id"), args.get("task_id"), *(args.get("session_ids") or ()))
            for session_id in filter(None, named):
                await self._watcher.heed(session_id)

    async def _check_action(self, ctx: RunContext[Any], tool: str, args: dict[str, Any]) -> None:
        act = tool_named(tool).act(args)
        if args.get("session_id"):
            # What it did before its shell ended is told again.
            new = act.asks and not await self._made_before(ctx)
            session = await self._calls.shells.checked(conversation_of(ctx), args["session_id"], live=new)
            if args["action"] == "write":
                await self._check_typing(ctx, session, tool, args)
            elif args["action"] == "exec" and new:
                await self._calls.shells.shells.check_free(session)
        elif args.get("task_id"):
            session = await self._calls.sessions(ctx).get(args["task_id"])
            if session.end is not None and act.asks and not await self._made_before(ctx):
                raise TaskCompleted(session.id, how_it_ended(session.end))

    async def _check_typing(self, ctx: RunContext[Any], session: Session, tool: str, args: dict[str, Any]) -> None:
        try:
            await check_typing(self.engine, session, typed_by(tool, args))
        except PasswordWanted:
            # What was typed before it was asked for is only told again.
            if not await self._made_before(ctx):
                raise

    async def _made_before(self, ctx: RunContext[Any]) -> bool:
        """Whether this is the repeat of a call that has acted: it is told what it did, whatever happened since."""
        return await self.engine.store.recalled(call_key(origin_of(ctx))) is not None


def plain_judge(engine: Engine) -> Judge:
    """The policy where nobody brings another: two keys, the default denials and secrets, no rule."""
    state = engine.links.sessions.parent
    secrets = secret_paths((), home=Path.home(), state=state)
    keys = Keys(timeout_s=engine.limits.unattended_timeout_s)
    return Judge(runs=engine.backend, secret=Secrets(secrets), state=state, keys=keys)


def _shown(proposal: Proposal) -> dict[str, Any]:
    return {name: value for name, value in proposal.facts.items() if name not in _HIDDEN and value is not None}


def exec_toolset(
    engine: Engine, *, policy: Policy | None = None, enabled: bool = True, watcher: Watcher | None = None
) -> AbstractToolset[Any]:
    """The exec tools for any Pydantic AI agent, with approval, for an engine that the caller starts and stops."""
    return ExecTools(engine, policy=policy, enabled=enabled, watcher=watcher).toolset()


def _needs_approval(_ctx: RunContext[Any], definition: ToolDefinition, _args: dict[str, Any]) -> bool:
    return tool_named(definition.name).asks_always
