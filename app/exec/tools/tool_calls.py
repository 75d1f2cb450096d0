"""What all exec tools share: arguments, permission, errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

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
from shellback.exec.engine.sessions import Sessions, check_input
from shellback.exec.engine.waiting import Outcome, check_typing, shell_reads
from shellback.exec.policy.commands import CHANGED, in_workspace, proposed
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
from shellback.exec.terminals.screen import Screens
from shellback.exec.tools.file_tools.calls import FileCalls
from shellback.exec.tools.file_tools.looks import Look
from shellback.exec.tools.shell_calls import ShellCalls
from shellback.exec.tools.tool import Action, Args, ExecTool, FileTool, Invocation, Result
from shellback.exec.watching.watcher import Watcher

log = logging.getLogger(__name__)

_FOR_THE_OPERATOR = (BackendUnavailable, SpawnFailed, SupervisorUnreachable, WorkspaceUnusable)


@contextlib.contextmanager
def answering(worded: Callable[[ExecError], str] = str) -> Generator[None]:
    """Turn an ExecError into a failed tool result with cause and remedy."""
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
    """A call, what it would do, and the verdict; its look at files, or the shell that it starts."""

    asked: Asked
    proposal: Proposal
    verdict: Verdict
    look: Look | None = None
    starts: Proposal | None = None


class ToolCalls:
    """The shared part of the exec tools, for one engine and one policy."""

    def __init__(
        self, engine: Engine, policy: Policy, files: FileCalls, shells: ShellCalls, watcher: Watcher | None
    ) -> None:
        self.engine = engine
        self.policy = policy
        self.screens = Screens(engine)
        self.watcher = watcher
        self.files = files
        self.shells = shells

    @property
    def where(self) -> dict[str, str]:
        """The fact that binds a call to a named workspace."""
        return in_workspace(self.engine.backend)

    def check(self, tool: ExecTool, args: Args) -> CommandSpec | None:
        """Validate the arguments of a call, or raise InvalidCommand; returns the command that it starts, or None."""
        act = tool.act(args)
        if isinstance(act, Action):
            act.accept(tool.choice, args)
        if act.check is not None:
            act.check(self.engine, args)
        return None if act.spec is None else act.spec(self.engine, args)

    async def ready(self, call: Invocation) -> None:
        """Raise an ExecError if the call could not act now; then no person is asked."""
        act = call.act
        if act.spec is None:  # else what it starts is checked as it is made
            self.check(call.tool, call.args)
        session = await (act.ready or self._about)(call)
        if session is not None and act.typed is not None:
            try:
                await check_typing(self.engine, session, act.typed(call.args))
            except PasswordWanted:
                # A replay returns the recorded outcome of what was typed before.
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

    async def heed(self, args: Args) -> None:
        """Reset the strikes of the watches of the sessions that a call names."""
        if self.watcher is not None:
            named = (args.get("session_id"), args.get("task_id"), *(args.get("session_ids") or ()))
            for session_id in filter(None, named):
                await self.watcher.heed(session_id)

    async def run(self, call: Invocation) -> Result[Any]:
        """Run the body of the tool; report a refusal to policy."""
        try:
            return await call.tool.run(call, **call.args)
        except (CommandDenied, PermissionDenied, PathOutsideSandbox) as error:
            asked = Asked(
                tool=call.tool.name, act=call.act, call_key=call.key, conversation_id=call.conversation_id,
                args=call.args,
            )  # fmt: skip
            await self.policy.refused(asked, error)
            raise

    async def weighed(
        self, conversation_id: str, tool: ExecTool, args: Args, *, approved: bool, key: str = ""
    ) -> Weighed:
        """What a call with these validated arguments would do, and the verdict; InvalidCommand for bad arguments."""
        spec, act = self.check(tool, args), tool.act(args)
        asked = Asked(tool=tool.name, act=act, call_key=key, conversation_id=conversation_id, spec=spec, args=args)
        look = starts = None
        proposal = Proposal(tool=tool.name, facts=args)
        if isinstance(act, FileTool):
            look = await self.files.look(act, args, await self.policy.withheld(conversation_id))
            asked = replace(asked, words=look.words, files=look.files)
            proposal = Proposal(tool=tool.name, facts=look.facts)
        elif act.line is not None:
            shell = await act.line(self.shells, conversation_id, args, key)
            line, proposal, starts = await self.shells.line(
                shell, args, tool=tool.name, conversation_id=conversation_id
            )
            asked = replace(asked, spec=line, args={**args, "session_id": shell and shell.id})
            if shell is not None:
                unfinished = await Sessions(self.engine, conversation_id).unfinished(shell, besides=key)
                asked = replace(asked, unfinished=unfinished)
        elif act.typed is not None:
            asked = await self._typing(asked, act.typed(args))
        verdict = await self.policy.judge(asked)
        if spec is not None:
            unasked = verdict.decision == "allow" and not approved
            proposal = await proposed(unattended(spec, verdict) if unasked else spec, self.engine.backend)
        proposal = replace(proposal, facts={**proposal.facts, **self.where})
        return Weighed(asked, proposal, verdict, look, starts)

    async def _typing(self, asked: Asked, data: bytes) -> Asked:
        """The call with the typed lines, the unfinished line before them, and whether a shell may read them."""
        sessions = Sessions(self.engine, asked.conversation_id)
        session = await sessions.get(asked.args["session_id"])
        typed = lines_of(data, eof=bool(asked.args.get("eof")))
        unfinished = await sessions.unfinished(session, besides=asked.call_key)
        return replace(asked, typed=typed, unfinished=unfinished, shell=await shell_reads(self.engine, session))

    async def outcome(self, call: Invocation) -> Outcome:
        """Run or launch the command of a call, or wait for the session that it started before."""
        found = await self.startable(call)
        if isinstance(found, Session):
            return await self.engine.resumed(found)
        spec, origin = found.spec, call.origin
        if not spec.background:
            seconds = call.args.get("yield_after")
            return await self.engine.run(found, origin, yield_after=seconds, until_input=True)
        session = await self.engine.launch(found, origin)
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

    async def on_files(self, call: Invocation) -> Result[str]:
        """Do a call of a tool for files; the replay of a change returns the recorded outcome."""
        tool, args, origin = call.tool, call.args, call.origin
        assert isinstance(tool, FileTool)
        await self.files.touched(origin.conversation_id)
        if tool.asks and (before := await self.files.recalled(tool, args, origin)) is not None:
            return before
        made, weighed = await self.granted(call)
        assert weighed.look is not None
        if tool.asks:
            return await self.files.change(tool, args, weighed.look, origin, made)
        if approved := call.ctx.tool_call_approved:
            await self.files.note_read(tool, args, origin, made)
        withheld = await self.policy.withheld(origin.conversation_id)
        return await self.files.read(tool, args, weighed.look, withheld, approved=approved)

    async def granted(self, call: Invocation) -> tuple[Grant, Weighed]:
        """The grant for a call, and what was judged.

        Raises:
            ApprovalRequired: A person has to be asked first.
            CommandDenied: Policy refuses, or it is not what was approved.
            InvalidCommand: The arguments are not acceptable.
        """
        approved = call.ctx.tool_call_approved
        weighed = await self.weighed(call.conversation_id, call.tool, call.args, approved=approved, key=call.key)
        approval = _approval(call) if approved else None
        if weighed.look is not None and approval is not None and approval.digest not in {None, weighed.proposal.digest}:
            raise CommandDenied(_ANOTHER.format(call.args["path"]))
        made = grant(weighed.proposal, weighed.verdict, approval)
        if made is None:
            raise ApprovalRequired(metadata={"digest": weighed.proposal.digest})
        return made, weighed

    async def startable(self, call: Invocation) -> Grant | Session:
        """The grant for the command of a call, or its session if it was started. Raises what `granted` does."""
        try:
            return (await self.granted(call))[0]
        except (ExecError, ApprovalRequired) as error:
            before = await self.engine.store.get(session_id(call.origin))
            if before is None:
                raise
            if before.state is not SessionState.CLAIMED:
                # The command may have removed its own directory: a replay still returns its session.
                return before
            if not isinstance(error, ExecError):
                # It was allowed without a person, and now would ask: the claim is what was judged.
                assert call.act.spec is not None
                made = call.act.spec(self.engine, call.args)
                for timeout_s in (0.0, self.engine.limits.unattended_timeout_s):
                    then = Verdict(decision="allow", reason="", profile=before.profile, timeout_s=timeout_s)
                    proposal = await proposed(unattended(made, then), self.engine.backend)
                    if (again := grant_again(proposal, before.digest)) is not None:
                        return again
            # It may have run, and changed its own scripts, before its start was recorded.
            started = await self.engine.settled(before)
            if started is not None:
                return started
            if isinstance(error, ExecError):
                raise
            # Its session is given up and cannot run any more, so no person is asked.
            raise CommandDenied(CHANGED) from None


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
