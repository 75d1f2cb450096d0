"""What the code of a tool may do: as much as a person approved its call for, else only read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from shellback.exec.core.errors import CommandDenied, ExecError
from shellback.exec.core.identity import Call, call_in_progress, call_key, origin_of
from shellback.exec.core.model import WORK, CommandSpec
from shellback.exec.core.pydantic_private import get_current_run_context
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.commands import proposed
from shellback.exec.policy.policy import Approval, Asked, Grant, Policy, Verdict, grant
from shellback.exec.shell.permit import APPROVED, permit

TOOL: Final = "ctx.workspace"
"""Who asks outside of any tool call."""


def approved(call: Call) -> bool:
    """Whether a person has said yes to this very tool call; where approvals are on record, there too.

    What its code left behind has no part in that once the call is over, and no tool of another agent that it runs.
    """
    if call.over or not call.ctx.tool_call_approved:
        return False
    running = get_current_run_context()
    if running is not None and running.run_id != call.ctx.run_id:
        return False
    approval_for = getattr(call.ctx.deps, "approval_for", None)
    return approval_for is None or approval_for(call_key(origin_of(call.ctx))) is not None


def _approval_id(call: Call) -> str | None:
    approval_for = getattr(call.ctx.deps, "approval_for", None)
    approval: Approval | None = approval_for(call_key(origin_of(call.ctx))) if approval_for is not None else None
    return None if approval is None else approval.id


def writing_refused(what: str) -> str | None:
    """Why the running code may not change `what`; None where it may."""
    call = call_in_progress()
    if call is not None and approved(call):
        return None
    tool = "code outside of a tool call" if call is None else f"this call of {call.ctx.tool_name}"
    return (
        f"{what} is not changed: nobody approved {tool}, so it may only read. Give the tool requires_approval=True, or"
        " let it raise ApprovalRequired before it changes anything"
    )


@dataclass(frozen=True, slots=True)
class ByCall:
    """Lets commands of an approved tool call run as that call's; all others are held to reading.

    What policy denies is denied to both.
    """

    engine: Engine
    policy: Policy

    async def permit(self, spec: CommandSpec, scope: str) -> tuple[CommandSpec, Grant]:
        """The command as it may run, and the grant for it.

        Raises:
            CommandDenied: Policy refuses it, or nobody approved the call and nothing could hold it to reading.
            PermissionDenied: The tier is too low.
        """
        call = call_in_progress()
        tool = (call.ctx.tool_name if call is not None else None) or TOOL
        if call is None or not approved(call):
            return await permit(self.engine, self.policy, spec, scope, tool=tool)
        asked = Asked(tool=tool, conversation_id=scope, spec=spec)
        try:
            return await self._approved(asked, spec, call)
        except ExecError as error:
            await self.policy.refused(asked, error)
            raise

    async def _approved(self, asked: Asked, spec: CommandSpec, call: Call) -> tuple[CommandSpec, Grant]:
        verdict = await self.policy.judge(asked)
        if verdict.decision == "deny":
            raise verdict.error or CommandDenied(f"refused by policy: {verdict.reason}")
        permitted = replace(spec, profile=WORK)
        yes = Verdict(
            decision="allow", reason="its tool call was approved", by=APPROVED, approval_id=_approval_id(call)
        )
        made = grant(await proposed(permitted, self.engine.backend), yes, None)
        assert made is not None
        return permitted, made
