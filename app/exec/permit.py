"""Commands that the code of a tool starts: the same policy as for the agent's own, and nobody to ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.exec.commands import proposed
from app.exec.engine import Engine
from app.exec.errors import CommandDenied, ExecError
from app.exec.model import READ_ONLY, CommandSpec
from app.exec.policy import Asked, Grant, Policy, Verdict, grant

HELD: Final = "read-only profile"
"""Who let a command run that nobody approved and that may not only read: the profile keeps it from doing more."""


async def permit(
    engine: Engine, policy: Policy, spec: CommandSpec, conversation_id: str, *, tool: str = "execute"
) -> tuple[CommandSpec, Grant]:
    """Let code of a tool run a command without a person; returns the command as it may run, and the grant for it.

    What policy would ask about runs in the read-only profile, where it can change nothing. A tool whose command has
    to write raises `ApprovalRequired` before it comes here, and brings the approval.

    Raises:
        CommandDenied: Policy refuses it, or would ask and there is no profile that could hold it.
        PermissionDenied: The tier is too low.
    """
    asked = Asked(tool=tool, conversation_id=conversation_id, spec=spec)
    try:
        return await _permitted(engine, policy, asked, spec)
    except ExecError as error:
        await policy.refused(asked, error)
        raise


async def _permitted(engine: Engine, policy: Policy, asked: Asked, spec: CommandSpec) -> tuple[CommandSpec, Grant]:
    verdict = await policy.judge(asked)
    if verdict.decision == "ask":
        if READ_ONLY not in engine.backend.profiles:
            raise CommandDenied(
                f"nobody approved this command ({verdict.reason}), and {engine.backend.name} cannot hold it to reading:"
                " let the tool ask (ApprovalRequired), allow it by a rule in POLICY_FILE, or set BACKEND=bubblewrap"
            )
        verdict = Verdict(decision="allow", reason=verdict.reason, by=HELD, profile=READ_ONLY)
    permitted = replace(spec, profile=verdict.profile)
    made = grant(await proposed(permitted, engine.backend), verdict, None)
    assert made is not None
    return permitted, made
