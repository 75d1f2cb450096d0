"""What every exec tool does around its own work: who asks, may it, and what a failure reads like."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ToolReturn

from shellback.exec.core import limits as bounds
from shellback.exec.core.errors import (
    BackendUnavailable,
    CommandDenied,
    ExecError,
    PathOutsideSandbox,
    PermissionDenied,
    SpawnFailed,
    SupervisorUnreachable,
    WorkspaceUnusable,
)
from shellback.exec.core.identity import call_key, conversation_of, origin_of, session_id
from shellback.exec.core.model import CallOrigin, CommandSpec, Session, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.joining import Outcome
from shellback.exec.engine.sessions import Sessions
from shellback.exec.engine.waiting import shell_reads, shown
from shellback.exec.policy.commands import CHANGED, check_yield_after, command_spec, proposed
from shellback.exec.policy.policy import (
    Approval,
    Asked,
    Grant,
    Policy,
    Proposal,
    Verdict,
    grant,
    grant_again,
    unattended,
)
from shellback.exec.policy.tools import tool_named
from shellback.exec.policy.typed_lines import lines_of
from shellback.exec.reports.render import facts, measured, outcome_text
from shellback.exec.terminals.keys import Typing
from shellback.exec.terminals.screen import Screens
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.file_tools.checks import check as check_files
from shellback.exec.tools.file_tools.looks import Look
from shellback.exec.tools.file_tools.reads import Told
from shellback.exec.tools.shell_calls import ShellCalls, check_parameters, worded
from shellback.exec.tools.short_commands import login_spec, python_spec, shell_spec

log = logging.getLogger(__name__)

_FOR_THE_OPERATOR = (BackendUnavailable, SpawnFailed, SupervisorUnreachable, WorkspaceUnusable)


@contextlib.contextmanager
def answering(tool: str = "") -> Generator[None]:
    """Turn what the engine raises into a failed tool result with cause and remedy, never a stack trace."""
    try:
        yield
    except _FOR_THE_OPERATOR as error:
        log.error("an exec tool cannot work: %s", error)  # noqa: TRY400 - the cause is in the message
        said = worded(tool, error)
        raise ToolFailed(f"{said}. This is for the operator; repeating the call does not help.") from None
    except ExecError as error:
        raise ToolFailed(worded(tool, error)) from None


_ANOTHER: Final = (
    "{} is not what it was when this was approved; nothing was done, look at it and propose the call again"
)


class Weighed(NamedTuple):
    """A call as it stands: what it would do, what policy says; the command of it, or what it finds of files."""

    asked: Asked
    proposal: Proposal
    verdict: Verdict
    spec: CommandSpec | None
    look: Look | None = None


class Granted(NamedTuple):
    """Proof that a call may go on, the command or the files it is for, and the shell or session, if it is for one."""

    grant: Grant
    spec: CommandSpec | None
    look: Look | None = None
    session_id: str | None = None


class ToolCalls:
    """The shared part of the exec tools, over one engine, one policy, and the files of the workspace."""

    def __init__(
        self, engine: Engine, policy: Policy, files: FileCalls | None = None, shells: ShellCalls | None = None
    ) -> None:
        self.engine = engine
        self.policy = policy
        self.screens = Screens(engine)
        self._files = files
        self._shells = shells

    @property
    def files(self) -> FileCalls:
        """What the tools for files do."""
        assert self._files is not None
        return self._files

    @property
    def shells(self) -> ShellCalls:
        """What the tools for shells do."""
        assert self._shells is not None
        return self._shells

    def sessions(self, ctx: RunContext[Any]) -> Sessions:
        """The sessions that this call may see."""
        return Sessions(self.engine, conversation_of(ctx))

    def check(self, tool: str, args: dict[str, Any]) -> None:
        """Accept what a call was given, before anybody is asked.

        Raises:
            InvalidCommand: It is not acceptable.
        """
        known = tool_named(tool)
        if known.acts:
            check_parameters(tool, args)
        if known.files:
            check_files(tool, args)
        elif known.act(args).starts:
            check_yield_after(args.get("yield_after"), background=_background(tool, args), limits=self.engine.limits)
            self.spec(tool, args)

    async def weighed(
        self, conversation_id: str, tool: str, args: dict[str, Any], *, approved: bool, key: str = ""
    ) -> Weighed:
        """What a call with these (validated) arguments would do, and what policy says to it.

        Raises:
            InvalidCommand: It is not acceptable.
        """
        self.check(tool, args)
        known = tool_named(tool)
        if known.files:
            return await self._weighed_files(conversation_id, tool, args, key)
        starts = known.act(args).starts
        if known.acts and not starts and args.get("command"):
            return await self._weighed_line(conversation_id, tool, args, key)
        spec = self.spec(tool, args) if starts else None
        asked = Asked(tool=tool, call_key=key, conversation_id=conversation_id, spec=spec, args=args)
        if asked.act.types:
            asked = await self._typing(asked)
        verdict = await self.policy.judge(asked)
        if spec is None:
            return Weighed(asked, Proposal(tool=tool, facts=args), verdict, None)
        if verdict.decision == "allow" and not approved:
            spec = unattended(spec, verdict)
        return Weighed(asked, await proposed(spec, self.engine.backend), verdict, spec)

    async def _typing(self, asked: Asked) -> Asked:
        """The call with what it types, what is unfinished there, and whether a shell may read it."""
        sessions = Sessions(self.engine, asked.conversation_id)
        session = await sessions.get(asked.args["session_id"])
        typed = lines_of(typed_by(asked.tool, asked.args), eof=bool(asked.args.get("eof")))
        unfinished = await sessions.unfinished(session, besides=asked.call_key)
        return replace(asked, typed=typed, unfinished=unfinished, shell=await shell_reads(self.engine, session))

    async def _weighed_line(self, conversation_id: str, tool: str, args: dict[str, Any], key: str) -> Weighed:
        line = await self.shells.line(conversation_id, tool, args, key)
        about = {**args, "session_id": None if line.shell is None else line.shell.id}
        asked = Asked(tool=tool, call_key=key, conversation_id=conversation_id, spec=line.spec, args=about)
        if line.shell is not None:
            unfinished = await Sessions(self.engine, conversation_id).unfinished(line.shell, besides=key)
            asked = replace(asked, unfinished=unfinished)
        return Weighed(asked, line.proposal, await self.policy.judge(asked), line.spec)

    async def _weighed_files(self, conversation_id: str, tool: str, args: dict[str, Any], key: str) -> Weighed:
        look = await self.files.look(tool, args, await self.policy.withheld(conversation_id))
        asked = Asked(
            tool=tool,
            call_key=key,
            conversation_id=conversation_id,
            args=args,
            words=look.words,
            files=look.files,
        )
        return Weighed(asked, Proposal(tool=tool, facts=look.facts), await self.policy.judge(asked), None, look)

    def spec(self, tool: str, args: dict[str, Any]) -> CommandSpec:
        """The command that the arguments of a tool that starts something describe."""
        if tool == "shell_execute":
            given = {name: value for name, value in args.items() if name != "capture_output"}
            inner = self.engine.backend.inner
            return shell_spec(**given, workspace=self.engine.workspace, inner=inner, limits=self.engine.limits)
        if tool == "run_shell":
            return login_spec(**args, workspace=self.engine.workspace, limits=self.engine.limits)
        if tool_named(tool).acts:
            return self.shells.start_spec(args) if tool == "shell_session" else self.shells.spawn_spec(args)
        if tool == "evaluate_python":
            return python_spec(**args, workspace=self.engine.workspace, limits=self.engine.limits)
        given = {name: value for name, value in args.items() if name not in {"yield_after", "background"}}
        return command_spec(
            **given,
            background=_background(tool, args),
            pty=tool == "execute_pty",
            workspace=self.engine.workspace,
            limits=self.engine.limits,
        )

    async def run(self, ctx: RunContext[Any], tool: str, args: dict[str, Any]) -> ToolReturn[str]:
        """Run or launch what `execute` or `execute_pty` was called with."""
        outcome = await self.outcome(ctx, tool, args)
        metadata = {
            **facts(outcome.session),
            **measured(outcome.output, outcome.err),
            "handed_over": outcome.handed_over,
        }
        if outcome.waiting is not None:
            metadata["waiting_for_input"] = shown(outcome.waiting, outcome.session)
        return ToolReturn(outcome_text(outcome), metadata=metadata)

    async def outcome(self, ctx: RunContext[Any], tool: str, args: dict[str, Any]) -> Outcome:
        """Run or launch what a tool that starts something was called with, or go on with it."""
        with answering(tool):
            origin = origin_of(ctx)
            async with self._telling(tool, args, origin):
                return await self._outcome(ctx, tool, args, origin)

    async def on_files(self, ctx: RunContext[Any], tool: str, args: dict[str, Any]) -> ToolReturn[str]:
        """Read or change what a tool for files was called with; a change that was made before is only told again."""
        with answering():
            origin = origin_of(ctx)
            async with self._telling(tool, args, origin):
                told = await self._on_files(ctx, tool, args, origin)
        return ToolReturn(told.text, metadata=told.metadata)

    async def _on_files(self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin) -> Told:
        await self.files.touch(origin.conversation_id)
        changes = tool_named(tool).asks
        if changes and (before := await self.files.recalled(tool, args, origin)) is not None:
            return before
        grant, _, look, _ = await self._granted(ctx, tool, args, origin)
        assert look is not None
        if changes:
            return await self.files.change(tool, args, look, origin, grant)
        if ctx.tool_call_approved:
            await self.files.note_read(tool, args, origin, grant)
        withheld = await self.policy.withheld(origin.conversation_id)
        return await self.files.read(tool, args, look, withheld, approved=ctx.tool_call_approved)

    async def granted(self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin) -> Granted:
        """The grant for this call, and the command it is for.

        Raises:
            ApprovalRequired: A person has to be asked first.
            CommandDenied: Policy refuses, or it is not what was approved.
            InvalidCommand: The arguments are not acceptable.
        """
        async with self._telling(tool, args, origin):
            return await self._granted(ctx, tool, args, origin)

    async def _granted(self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin) -> Granted:
        weighed = await self.weighed(
            origin.conversation_id, tool, args, approved=ctx.tool_call_approved, key=call_key(origin)
        )
        approval = _approval(ctx, origin) if ctx.tool_call_approved else None
        if weighed.look is not None and approval is not None and approval.digest not in {None, weighed.proposal.digest}:
            raise CommandDenied(_ANOTHER.format(args.get("path", ".")))
        made = grant(weighed.proposal, weighed.verdict, approval)
        if made is None:
            raise ApprovalRequired(metadata={"digest": weighed.proposal.digest})
        return Granted(made, weighed.spec, weighed.look, weighed.asked.args.get("session_id"))

    @contextlib.asynccontextmanager
    async def _telling(self, tool: str, args: dict[str, Any], origin: CallOrigin) -> AsyncGenerator[None]:
        """Tell policy of a refusal, once it is certain that the call comes to nothing."""
        try:
            yield
        except (CommandDenied, PermissionDenied, PathOutsideSandbox) as error:
            asked = Asked(tool=tool, call_key=call_key(origin), conversation_id=origin.conversation_id, args=args)
            await self.policy.refused(asked, error)
            raise

    async def startable(
        self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin
    ) -> tuple[CommandSpec, Grant] | Session:
        """What a call starts and the grant for it, or its session where that is only to be told of.

        Raises what `granted` does.
        """
        spec: CommandSpec | None = None
        try:
            allowed, spec, *_ = await self._granted(ctx, tool, args, origin)
        except (ExecError, ApprovalRequired) as error:
            before = await self.engine.store.get(session_id(origin))
            if before is None:
                raise
            if before.state is not SessionState.CLAIMED:
                # A command may have removed the very directory it ran in: a repeat of its call is still its call.
                return before
            again = None
            if not isinstance(error, ExecError):
                # It was allowed without a person, and would be asked about by now: what was claimed is what was judged.
                made, seconds = self.spec(tool, args), self.engine.limits.unattended_timeout_s
                for timeout_s in (0.0, seconds):
                    then = Verdict(decision="allow", reason="", profile=before.profile, timeout_s=timeout_s)
                    spec = unattended(made, then)
                    again = again or grant_again(await proposed(spec, self.engine.backend), before.digest)
            if again is None:
                # It may have run, and changed what it was made of, before anybody could record that it did.
                started = await self.engine.settled(before)
                if started is not None:
                    return started
                if isinstance(error, ExecError):
                    raise
                # Its session is given up, so nobody is asked about a call that could not run any more.
                raise CommandDenied(CHANGED) from None
            allowed = again
        assert spec is not None
        return spec, allowed

    async def _outcome(self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin) -> Outcome:
        found = await self.startable(ctx, tool, args, origin)
        if isinstance(found, Session):
            return await self.engine.resumed(found)
        spec, allowed = found
        if not spec.background:
            return await self.engine.run(spec, origin, allowed, yield_after=args.get("yield_after"), until_input=True)
        session = await self.engine.launch(spec, origin, allowed)
        live = len(await self.engine.store.list(conversation_id=origin.conversation_id, live=True))
        warning = f"{live} processes of this conversation run; end some" if live >= bounds.SESSIONS_WARN else ""
        if spec.timeout_s and not args.get("timeout"):
            warning = f"it is stopped after {spec.timeout_s:g} s: a person is asked where you give a longer timeout" + (
                f"; {warning}" if warning else ""
            )
        return Outcome(
            findings=self.engine.untold(origin.conversation_id),
            session=session,
            output=await self.engine.output(session).ends(),
            handed_over=True,
            warning=warning,
        )


def typed_by(tool: str, args: Mapping[str, Any]) -> bytes:
    """The bytes that a call types, where the terminal is in no mode of its own.

    Raises:
        InvalidCommand: They cannot be typed.
    """
    if tool in {"process_write", "shell_session"}:
        return str(args["data" if tool == "process_write" else "input"]).encode("utf-8", "replace")
    return Typing(**{name: value for name, value in args.items() if name != "session_id"}).sent()


def _background(tool: str, args: dict[str, Any]) -> bool:
    return bool(args.get("background", tool == "execute_pty"))


def _approval(ctx: RunContext[Any], origin: CallOrigin) -> Approval:
    approval_for = getattr(ctx.deps, "approval_for", None)
    if approval_for is None:
        given: object = ctx.tool_call_metadata
        digest = cast("dict[str, object]", given).get("digest") if isinstance(given, dict) else None
        return Approval(digest=None if digest is None else str(digest))
    approval: Approval | None = approval_for(call_key(origin))
    if approval is None:
        raise CommandDenied("no approval is on record for this call; nothing was started")
    return approval
