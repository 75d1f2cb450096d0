"""Commands that the code of a tool starts: the same policy as for the agent's own, and nobody to ask."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from shellback.exec.core.environment import home_of
from shellback.exec.core.errors import CommandDenied, ExecError, InvalidCommand
from shellback.exec.core.identity import session_id
from shellback.exec.core.model import READ_ONLY, WORK, CallOrigin, CommandSpec, Session, SessionState
from shellback.exec.core.secrets import Secrets
from shellback.exec.core.threads import CHECK_S, checking
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.joining import Outcome
from shellback.exec.policy.classify.model import Surroundings
from shellback.exec.policy.commands import CHANGED, proposed
from shellback.exec.policy.policy import (
    Asked,
    Grant,
    Policy,
    Verdict,
    grant,
    grant_again,
    grant_by_operator,
    unattended,
)
from shellback.exec.policy.rules.denials import denial

HELD: Final = "read-only profile"
"""Who let a command run that nobody approved and that may not only read: the profile keeps it from doing more."""
APPROVED: Final = "approved call"
"""Who let a command run that the code of a tool starts whose call a person has approved."""


async def permit(
    engine: Engine,
    policy: Policy,
    spec: CommandSpec,
    conversation_id: str,
    *,
    tool: str = "execute",
    approved: Verdict | None = None,
) -> tuple[CommandSpec, Grant]:
    """Let code of a tool run a command without a person; returns the command as it may run, and the grant for it.

    What policy would ask about runs in the read-only profile, where it can change nothing. A tool whose command has
    to write raises `ApprovalRequired` before it comes here, and brings the approval. Where its call has been approved,
    that is what lets the command run, unless policy denies it.

    Raises:
        CommandDenied: Policy refuses it, or would ask and there is no profile that could hold it.
        PermissionDenied: The tier is too low.
    """
    asked = Asked(tool=tool, conversation_id=conversation_id, spec=spec)
    try:
        verdict = await policy.judge(asked)
        if approved is None:
            verdict = _held(engine, verdict)
            permitted = unattended(spec, verdict)
        elif verdict.decision == "deny":
            raise verdict.error or CommandDenied(f"refused by policy: {verdict.reason}")
        else:
            verdict, permitted = approved, replace(spec, profile=WORK)
        made = grant(await proposed(permitted, engine.backend), verdict, None)
    except ExecError as error:
        await policy.refused(asked, error)
        raise
    assert made is not None
    return permitted, made


def _held(engine: Engine, verdict: Verdict) -> Verdict:
    """A verdict that nobody has to be asked about: what would be asked is held to reading."""
    if verdict.decision != "ask":
        return verdict
    if READ_ONLY not in engine.backend.profiles:
        raise CommandDenied(
            f"nobody approved this command ({verdict.reason}), and {engine.backend.name} cannot hold it to reading:"
            " let the tool ask (ApprovalRequired), allow it by a rule in POLICY_FILE, or set BACKEND=bubblewrap"
        )
    seconds = engine.limits.unattended_timeout_s
    return Verdict(decision="allow", reason=verdict.reason, by=HELD, profile=READ_ONLY, timeout_s=seconds)


class Authority(Protocol):
    """Who lets the commands of a shell run."""

    async def permit(self, spec: CommandSpec, scope: str) -> tuple[CommandSpec, Grant]:
        """Let a command run for `scope`; returns it as it may run, and the grant for that.

        Raises:
            CommandDenied: It may not run.
        """
        ...


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """A shell for the code of a tool: `permit` decides, and nobody is asked. `scope` is a conversation's id."""

    engine: Engine
    policy: Policy
    tool: str = "execute"

    async def permit(self, spec: CommandSpec, scope: str) -> tuple[CommandSpec, Grant]:
        return await permit(self.engine, self.policy, spec, scope, tool=self.tool)


@dataclass(frozen=True, slots=True)
class ByOperator:
    """A shell that somebody makes in code of his own, who thereby is the operator: all but the default denials runs.

    Never for what a model proposed.
    """

    engine: Engine
    reason: str = "the code that has the shell"

    async def permit(self, spec: CommandSpec, scope: str) -> tuple[CommandSpec, Grant]:
        why = await checking(self.engine.backend.uid).run(partial(self._refusal, spec, scope), seconds=CHECK_S)
        if why is not None:
            raise CommandDenied(f"refused by policy: {why}")
        return spec, grant_by_operator(await proposed(spec, self.engine.backend), self.reason)

    def _refusal(self, spec: CommandSpec, scope: str) -> str | None:
        backend, workspace = self.engine.backend, self.engine.workspace
        private = backend.private_home(scope)
        around = Surroundings(
            cwd=Path(spec.cwd),
            allowed=(workspace,),
            secret=Secrets(),
            home=Path(home_of(spec, workspace=str(workspace), private=private)),
            sandboxed=READ_ONLY in backend.profiles,
            state=self.engine.links.sessions.parent,
        )
        return denial(spec.command, around)


async def run_permitted(
    engine: Engine, authority: Authority, spec: CommandSpec, scope: str, origin: CallOrigin
) -> Outcome:
    """Run a command to its end, as `Engine.run`, once `authority` lets it.

    What has run for `origin` before is not judged again: it goes on, or has ended, whatever would be said of it by now.

    Raises:
        CommandDenied: It may not run, or was about to run as something else when the worker died.
        InvalidCommand: Another command has run for `origin`.
    """
    found = await permitted_or_before(engine, authority, spec, scope, origin)
    return await (engine.resumed(found) if isinstance(found, Session) else engine.run(found[0], origin, found[1]))


async def launch_permitted(
    engine: Engine, authority: Authority, spec: CommandSpec, scope: str, origin: CallOrigin
) -> Session:
    """Start a command in the background, as `Engine.launch`; else as `run_permitted`."""
    found = await permitted_or_before(engine, authority, spec, scope, origin)
    return found if isinstance(found, Session) else await engine.launch(found[0], origin, found[1])


async def permitted_or_before(
    engine: Engine, authority: Authority, spec: CommandSpec, scope: str, origin: CallOrigin
) -> tuple[CommandSpec, Grant] | Session:
    """The command and the grant to start it, or to find it started; the session where only that is left.

    Raises what `run_permitted` does.
    """
    # What a backend is held to may be known only once it has been looked at.
    await engine.start()
    before = await engine.store.get(session_id(origin))
    if before is None:
        return await authority.permit(spec, scope)
    if (before.command, before.cwd, before.pty) != (spec.command, spec.cwd, spec.pty is not None):
        raise InvalidCommand(
            "the code of this call has run another command in this place before; what it starts has to be the same each"
            " time that it runs"
        )
    spec = replace(spec, profile=before.profile)
    with contextlib.suppress(InvalidCommand):  # its directory may have gone, even by what it did
        again = grant_again(await proposed(spec, engine.backend), before.digest)
        if again is not None:
            return spec, again
    if before.state is SessionState.CLAIMED and await engine.settled(before) is None:
        raise CommandDenied(CHANGED)
    return before
