"""What every exec tool does around its own work: who asks, may it, and what a failure reads like."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ToolReturn

from app.exec import limits as bounds
from app.exec.commands import check_yield_after, command_spec, proposal_for
from app.exec.engine import Engine
from app.exec.errors import (
    BackendUnavailable,
    CommandDenied,
    ExecError,
    SpawnFailed,
    SupervisorUnreachable,
    WorkspaceUnusable,
)
from app.exec.identity import call_key, conversation_of, origin_of
from app.exec.model import CallOrigin, CommandSpec
from app.exec.outcome import Outcome
from app.exec.policy import Approval, Grant, Policy, Proposal, grant
from app.exec.render import facts, measured, outcome_text
from app.exec.sessions import Sessions

log = logging.getLogger(__name__)

_FOR_THE_OPERATOR = (BackendUnavailable, SpawnFailed, SupervisorUnreachable, WorkspaceUnusable)


@contextlib.contextmanager
def answering() -> Generator[None]:
    """Turn what the engine raises into a failed tool result with cause and remedy, never a stack trace."""
    try:
        yield
    except _FOR_THE_OPERATOR as error:
        log.error("an exec tool cannot work: %s", error)  # noqa: TRY400 - the cause is in the message
        raise ToolFailed(f"{error}. This is for the operator; repeating the call does not help.") from None
    except ExecError as error:
        raise ToolFailed(str(error)) from None


class ToolCalls:
    """The shared part of the exec tools, over one engine and one policy."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        self.engine = engine
        self.policy = policy

    def sessions(self, ctx: RunContext[Any]) -> Sessions:
        """The sessions that this call may see."""
        return Sessions(self.engine, conversation_of(ctx))

    def proposal(self, tool: str, args: dict[str, Any]) -> Proposal:
        """What a call with these (validated) arguments would do.

        Raises:
            InvalidCommand: It is not acceptable.
        """
        if tool not in {"execute", "execute_pty"}:
            return Proposal(tool=tool, facts=args)
        check_yield_after(args.get("yield_after"), background=_background(tool, args), limits=self.engine.limits)
        return proposal_for(self.spec(tool, args), self.engine.backend)

    def spec(self, tool: str, args: dict[str, Any]) -> CommandSpec:
        """The command that the arguments of `execute` or `execute_pty` describe."""
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
        with answering():
            origin = origin_of(ctx)
            outcome = await self._outcome(ctx, tool, args, origin)
        return ToolReturn(
            outcome_text(outcome),
            metadata={**facts(outcome.session), **measured(outcome.output), "handed_over": outcome.handed_over},
        )

    async def granted(self, ctx: RunContext[Any], proposal: Proposal, origin: CallOrigin) -> Grant:
        """The grant for this call.

        Raises:
            ApprovalRequired: A person has to be asked first.
            CommandDenied: Policy refuses, or it is not what was approved.
        """
        approval = _approval(ctx, origin) if ctx.tool_call_approved else None
        made = grant(proposal, await self.policy.judge(proposal), approval)
        if made is None:
            raise ApprovalRequired(metadata={"digest": proposal.digest})
        return made

    async def _outcome(self, ctx: RunContext[Any], tool: str, args: dict[str, Any], origin: CallOrigin) -> Outcome:
        try:
            proposal = self.proposal(tool, args)
            allowed = await self.granted(ctx, proposal, origin)
        except ExecError:
            # A command may have removed the very directory it ran in: a repeat of its call is still its call.
            before = await self.engine.recorded(origin)
            if before is None:
                raise
            return await self.engine.resumed(before)
        spec = self.spec(tool, args)
        if not spec.background:
            return await self.engine.run(spec, origin, allowed, yield_after=args.get("yield_after"))
        session = await self.engine.launch(spec, origin, allowed)
        live = len(await self.engine.store.list(conversation_id=origin.conversation_id, live=True))
        warning = f"{live} processes of this conversation run; end some" if live >= bounds.SESSIONS_WARN else ""
        return Outcome(
            session=session, output=await self.engine.output(session).ends(), handed_over=True, warning=warning
        )


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
