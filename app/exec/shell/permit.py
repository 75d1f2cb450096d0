"""Permits commands that the code of a tool starts: under the same policy as the agent's, without a person to ask."""

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
from shellback.exec.engine.waiting import Outcome
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
"""The `by` of a command that would need an approval and runs in the read-only profile instead."""


async def permit(
    engine: Engine,
    policy: Policy,
    spec: CommandSpec,
    conversation_id: str,
    *,
    tool: str = "execute",
    approved: Verdict | None = None,
) -> Grant:
    """Permit a command of a tool's code without asking; returns the grant for the command as it may run.

    A command that policy would ask about runs in the read-only profile, where it changes nothing. A tool whose command
    must write raises `ApprovalRequired` first; the approval of its call then permits the command, unless policy denies
    it.

    Raises:
        CommandDenied: Policy denies the command, or would ask and there is no read-only profile.
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
    return made


def _held(engine: Engine, verdict: Verdict) -> Verdict:
    """The verdict without a question: a command that would ask is restricted to the read-only profile."""
    if verdict.decision != "ask":
        return verdict
    if READ_ONLY not in engine.backend.profiles:
        raise CommandDenied(
            f"this command has no approval ({verdict.reason}), and {engine.backend.name} cannot enforce read_only:"
            " let the tool ask (ApprovalRequired), allow it by a rule in POLICY_FILE, or set BACKEND=bubblewrap"
        )
    seconds = engine.limits.unattended_timeout_s
    return Verdict(decision="allow", reason=verdict.reason, by=HELD, profile=READ_ONLY, timeout_s=seconds)


class Authority(Protocol):
    """Permits the commands of a shell."""

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        """Permit a command of `scope`; returns the grant for it as it may run. CommandDenied if it may not run."""
        ...


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """The authority for a tool's code: `permit` decides without asking. `scope` is a conversation's id."""

    engine: Engine
    policy: Policy
    tool: str = "execute"

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        return await permit(self.engine, self.policy, spec, scope, tool=self.tool)


@dataclass(frozen=True, slots=True)
class ByOperator:
    """The authority for an application's own shell: everything runs except the default denials.

    Never use it for a command that a model proposed.
    """

    engine: Engine
    reason: str = "the code that has the shell"

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        why = await checking(self.engine.backend.uid).run(partial(self._refusal, spec, scope), seconds=CHECK_S)
        if why is not None:
            raise CommandDenied(f"refused by policy: {why}")
        return grant_by_operator(await proposed(spec, self.engine.backend), self.reason)

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
    """Run a command to its end by `Engine.run`, if `authority` permits it.

    A command that was started for `origin` before is not judged again: a replay finds it running or ended.

    Raises:
        CommandDenied: It may not run, or would run as something else than before the worker died.
        InvalidCommand: Another command has run for `origin`.
    """
    found = await permitted_or_before(engine, authority, spec, scope, origin)
    return await (engine.resumed(found) if isinstance(found, Session) else engine.run(found, origin))


async def launch_permitted(
    engine: Engine, authority: Authority, spec: CommandSpec, scope: str, origin: CallOrigin
) -> Session:
    """Start a command in the background by `Engine.launch`; otherwise as `run_permitted`."""
    found = await permitted_or_before(engine, authority, spec, scope, origin)
    return found if isinstance(found, Session) else await engine.launch(found, origin)


async def permitted_or_before(
    engine: Engine, authority: Authority, spec: CommandSpec, scope: str, origin: CallOrigin
) -> Grant | Session:
    """The grant of a command, for a start or a replay; or the session, if only that is left. See `run_permitted`."""
    # What a backend is held to may be known only once it has been looked at.
    await engine.start()
    before = await engine.store.get(session_id(origin))
    if before is None:
        return await authority.permit(spec, scope)
    if (before.command, before.cwd, before.pty) != (spec.command, spec.cwd, spec.pty is not None):
        raise InvalidCommand(
            "this command differs from the one of the earlier execution of this call; the tool's code must start the"
            " same commands in the same order"
        )
    spec = replace(spec, profile=before.profile)
    with contextlib.suppress(InvalidCommand):  # its directory may have gone, even by what it did
        again = grant_again(await proposed(spec, engine.backend), before.digest)
        if again is not None:
            return again
    if before.state is SessionState.CLAIMED and await engine.settled(before) is None:
        raise CommandDenied(CHANGED)
    return before
