"""What every exec tool does around its own work: who asks, may it, and what a failure reads like."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import replace
from typing import Final, NamedTuple, cast

from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from shellback.exec.core import limits as bounds
from shellback.exec.core.end_text import how_it_ended
from shellback.exec.core.errors import (
    BackendUnavailable,
    CommandDenied,
    ExecError,
    PasswordWanted,
    PathOutsideSandbox,
    PermissionDenied,
    SpawnFailed,
    SupervisorUnreachable,
    TaskCompleted,
    WorkspaceUnusable,
)
from shellback.exec.core.identity import session_id
from shellback.exec.core.model import CommandSpec, Session, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.joining import Outcome
from shellback.exec.engine.sessions import Sessions, check_input
from shellback.exec.engine.waiting import check_typing, shell_reads, shown
from shellback.exec.policy.commands import CHANGED, proposed
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
from shellback.exec.policy.typed_lines import lines_of
from shellback.exec.reports.render import facts, measured, outcome_text
from shellback.exec.terminals.screen import Screens
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.file_tools.looks import Look
from shellback.exec.tools.file_tools.reads import Told
from shellback.exec.tools.shell_calls import ShellCalls
from shellback.exec.tools.tool import Action, Args, ExecTool, FileTool, Invocation, Result
from shellback.exec.watching.watcher import Watcher

log = logging.getLogger(__name__)

_FOR_THE_OPERATOR = (BackendUnavailable, SpawnFailed, SupervisorUnreachable, WorkspaceUnusable)


@contextlib.contextmanager
def answering(worded: Callable[[ExecError], str] = str) -> Generator[None]:
    """Turn what the engine raises into a failed tool result with cause and remedy, never a stack trace."""
    try:
        yield
    except _FOR_THE_OPERATOR as error:
        log.error("an exec tool cannot work: %s", error)  # noqa: TRY400 - the cause is in the message
        said = worded(error)
        raise ToolFailed(f"{said}. This is for the operator; repeating the call does not help.") from None
    except ExecError as error:
        raise ToolFailed(worded(error)) from None


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

    @property
    def command(self) -> CommandSpec:
        """The command that may be started."""
        assert self.spec is not None
        return self.spec


class ToolCalls:
    """The shared part of the exec tools, over one engine, one policy, and the files of the workspace."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        files: FileCalls | None = None,
        shells: ShellCalls | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.engine = engine
        self.policy = policy
        self.screens = Screens(engine)
        self.watcher = watcher
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

    @property
    def watches(self) -> Watcher:
        """What the tool that watches uses."""
        assert self.watcher is not None
        return self.watcher

    def check(self, tool: ExecTool, args: Args) -> CommandSpec | None:
        """Accept what a call was given; the command that it starts, if it starts one.

        Raises:
            InvalidCommand: It is not acceptable.
        """
        act = tool.act(args)
        if isinstance(act, Action):
            act.accept(tool.choice, args)
        if act.check is not None:
            act.check(self.engine, args)
        return None if act.spec is None else act.spec(self.engine, args)

    async def ready(self, call: Invocation) -> None:
        """Accept what a call is about, as it stands now: a call that could not act is answered, and nobody is asked.

        Raises:
            ExecError: It could not act.
        """
        act = call.act
        if act.spec is None:  # else what it starts is checked as it is made
            self.check(call.tool, call.args)
        session = await (act.ready or self._about)(call)
        if session is not None and act.typed is not None:
            try:
                await check_typing(self.engine, session, act.typed(call.args))
            except PasswordWanted:
                # What was typed before it was asked for is only told again.
                if not await call.made_before():
                    raise

    async def _about(self, call: Invocation) -> Session | None:
        act, session_id = call.act, call.args.get("session_id") or call.args.get("task_id")
        if not session_id:
            return None
        session = await call.sessions.get(session_id)
        if session.end is not None and act.asks and not await call.made_before():
            raise TaskCompleted(session.id, how_it_ended(session.end))
        if act.input:
            check_input(session, terminal=act.terminal)
        return session

    async def weighed(
        self, conversation_id: str, tool: ExecTool, args: Args, *, approved: bool, key: str = ""
    ) -> Weighed:
        """What a call with these (validated) arguments would do, and what policy says to it.

        Raises:
            InvalidCommand: It is not acceptable.
        """
        spec, act = self.check(tool, args), tool.act(args)
        asked = Asked(tool=tool.name, act=act, call_key=key, conversation_id=conversation_id, args=args)
        if isinstance(act, FileTool):
            look = await self.files.look(act, args, await self.policy.withheld(conversation_id))
            asked = replace(asked, words=look.words, files=look.files)
            proposal = Proposal(tool=tool.name, facts=look.facts)
            return Weighed(asked, proposal, await self.policy.judge(asked), None, look)
        if act.line is not None:
            shell = await act.line(self.shells, conversation_id, args, key)
            line = await self.shells.line(shell, args, tool=tool.name, conversation_id=conversation_id)
            asked = replace(asked, spec=line.spec, args={**args, "session_id": shell and shell.id})
            if shell is not None:
                unfinished = await Sessions(self.engine, conversation_id).unfinished(shell, besides=key)
                asked = replace(asked, unfinished=unfinished)
            return Weighed(asked, line.proposal, await self.policy.judge(asked), line.spec)
        if spec is None:
            if act.typed is not None:
                asked = await self._typing(asked, act.typed(args))
            return Weighed(asked, Proposal(tool=tool.name, facts=args), await self.policy.judge(asked), None)
        asked = replace(asked, spec=spec)
        verdict = await self.policy.judge(asked)
        if verdict.decision == "allow" and not approved:
            spec = unattended(spec, verdict)
        return Weighed(asked, await proposed(spec, self.engine.backend), verdict, spec)

    async def _typing(self, asked: Asked, data: bytes) -> Asked:
        """The call with what it types, what is unfinished there, and whether a shell may read it."""
        sessions = Sessions(self.engine, asked.conversation_id)
        session = await sessions.get(asked.args["session_id"])
        typed = lines_of(data, eof=bool(asked.args.get("eof")))
        unfinished = await sessions.unfinished(session, besides=asked.call_key)
        return replace(asked, typed=typed, unfinished=unfinished, shell=await shell_reads(self.engine, session))

    async def run(self, call: Invocation) -> Result[str]:
        """Run or launch what a call of a tool that starts something describes."""
        outcome = await self.outcome(call)
        metadata = {
            **facts(outcome.session),
            **measured(outcome.output, outcome.err),
            "handed_over": outcome.handed_over,
        }
        if outcome.waiting is not None:
            metadata["waiting_for_input"] = shown(outcome.waiting, outcome.session)
        return Result(outcome_text(outcome), metadata)

    async def outcome(self, call: Invocation) -> Outcome:
        """Run or launch what a tool that starts something was called with, or go on with it."""
        async with self._telling(call):
            return await self._outcome(call)

    async def on_files(self, call: Invocation) -> Result[str]:
        """Read or change what a tool for files was called with; a change that was made before is only told again."""
        async with self._telling(call):
            told = await self._on_files(call)
        return Result(told.text, told.metadata)

    async def _on_files(self, call: Invocation) -> Told:
        tool, args, origin = call.tool, call.args, call.origin
        assert isinstance(tool, FileTool)
        await self.files.touch(origin.conversation_id)
        if tool.asks and (before := await self.files.recalled(tool, args, origin)) is not None:
            return before
        allowed = await self._granted(call)
        assert allowed.look is not None
        if tool.asks:
            return await self.files.change(tool, args, allowed.look, origin, allowed.grant)
        if call.approved:
            await self.files.note_read(tool, args, origin, allowed.grant)
        withheld = await self.policy.withheld(origin.conversation_id)
        return await self.files.read(tool, args, allowed.look, withheld, approved=call.approved)

    async def granted(self, call: Invocation) -> Granted:
        """The grant for a call, and what it is for.

        Raises:
            ApprovalRequired: A person has to be asked first.
            CommandDenied: Policy refuses, or it is not what was approved.
            InvalidCommand: The arguments are not acceptable.
        """
        async with self._telling(call):
            return await self._granted(call)

    async def _granted(self, call: Invocation) -> Granted:
        approved = call.approved
        weighed = await self.weighed(call.origin.conversation_id, call.tool, call.args, approved=approved, key=call.key)
        approval = _approval(call) if approved else None
        if weighed.look is not None and approval is not None and approval.digest not in {None, weighed.proposal.digest}:
            raise CommandDenied(_ANOTHER.format(call.args["path"]))
        made = grant(weighed.proposal, weighed.verdict, approval)
        if made is None:
            raise ApprovalRequired(metadata={"digest": weighed.proposal.digest})
        return Granted(made, weighed.spec, weighed.look, weighed.asked.args.get("session_id"))

    @contextlib.asynccontextmanager
    async def _telling(self, call: Invocation) -> AsyncGenerator[None]:
        """Tell policy of a refusal, once it is certain that the call comes to nothing."""
        try:
            yield
        except (CommandDenied, PermissionDenied, PathOutsideSandbox) as error:
            conversation_id = call.origin.conversation_id
            asked = Asked(
                tool=call.tool.name, act=call.act, call_key=call.key, conversation_id=conversation_id, args=call.args
            )
            await self.policy.refused(asked, error)
            raise

    async def startable(self, call: Invocation) -> Granted | Session:
        """What a call starts with the grant for it, or its session where that is only to be told of.

        Raises what `granted` does.
        """
        try:
            return await self._granted(call)
        except (ExecError, ApprovalRequired) as error:
            before = await self.engine.store.get(session_id(call.origin))
            if before is None:
                raise
            if before.state is not SessionState.CLAIMED:
                # A command may have removed the very directory it ran in: a repeat of its call is still its call.
                return before
            if not isinstance(error, ExecError):
                # It was allowed without a person, and would be asked about by now: what was claimed is what was judged.
                made, seconds = call.act.command(self.engine, call.args), self.engine.limits.unattended_timeout_s
                for timeout_s in (0.0, seconds):
                    then = Verdict(decision="allow", reason="", profile=before.profile, timeout_s=timeout_s)
                    spec = unattended(made, then)
                    again = grant_again(await proposed(spec, self.engine.backend), before.digest)
                    if again is not None:
                        return Granted(again, spec)
            # It may have run, and changed what it was made of, before anybody could record that it did.
            started = await self.engine.settled(before)
            if started is not None:
                return started
            if isinstance(error, ExecError):
                raise
            # Its session is given up, so nobody is asked about a call that could not run any more.
            raise CommandDenied(CHANGED) from None

    async def _outcome(self, call: Invocation) -> Outcome:
        found = await self.startable(call)
        if isinstance(found, Session):
            return await self.engine.resumed(found)
        spec, allowed, origin = found.command, found.grant, call.origin
        if not spec.background:
            seconds = call.args.get("yield_after")
            return await self.engine.run(spec, origin, allowed, yield_after=seconds, until_input=True)
        session = await self.engine.launch(spec, origin, allowed)
        live = len(await self.engine.store.list(conversation_id=origin.conversation_id, live=True))
        warning = f"{live} processes of this conversation run; end some" if live >= bounds.SESSIONS_WARN else ""
        if spec.timeout_s and not call.args.get("timeout"):
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


def _approval(call: Invocation) -> Approval:
    ctx = call.ctx
    approval_for = getattr(ctx.deps, "approval_for", None)
    if approval_for is None:
        given: object = ctx.tool_call_metadata
        digest = cast("dict[str, object]", given).get("digest") if isinstance(given, dict) else None
        return Approval(digest=None if digest is None else str(digest))
    approval: Approval | None = approval_for(call.key)
    if approval is None:
        raise CommandDenied("no approval is on record for this call; nothing was started")
    return approval
