"""The shell and files that a turn gives to tools. A replay does not repeat their commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dbos import DBOS
from pydantic_ai import RunContext

from shellback.exec.core.errors import ExecError
from shellback.exec.core.identity import Call, a_call, call_in_progress
from shellback.exec.core.model import CallOrigin
from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Policy
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.facade import SyncFiles, SyncShell
from shellback.exec.shell.protocol import AsyncFilesystem
from shellback.exec.shell.workspaces.authority import ByCall, guarded
from shellback.exec.shell.workspaces.ground import Ground
from shellback.work.queue.mailbox import Workspace
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import fenced


def place_in_turn() -> int:
    """The number of the current step of the workflow, 0 outside of one. Commands are counted anew in each step.

    A recorded step is not run again, so a count over all steps would differ on a replay.
    """
    return DBOS.step_id or 0


async def settle(deps: TurnDeps, workspace: Workspace, ground_at: Callable[[Workspace], Awaitable[Ground]]) -> None:
    """Give a turn the workspace of its conversation, with shell and files; or the reason why it has none."""
    try:
        deps.ground = ground = await ground_at(workspace)
    except ExecError as error:
        deps.ground = str(error)
    else:
        equip(deps, ground.engine, ground.policy, ground.files)


def ground_in_turn(ctx: RunContext[TurnDeps]) -> Ground | str:
    """The workspace that the turn of a run began with, or why it has none."""
    ground = ctx.deps.ground
    return ground if isinstance(ground, Ground | str) and ground else "this run has no workspace"


def next_origin(deps: TurnDeps, call: Call | None) -> CallOrigin:
    """The origin of the next command of a call, or a new one outside of any."""
    # Counted together with the commands of `ctx.workspace`, and anew in each step.
    return a_call(deps.conversation_id) if call is None else call.origin(1 + place_in_turn())


def equip(deps: TurnDeps, engine: Engine, policy: Policy, files: Files) -> None:
    """Give a turn its shell and files, under `policy` and within the time limit of the turn."""

    def origin() -> CallOrigin:
        return next_origin(deps, call_in_progress())

    shell = AsyncShell(
        engine, ByCall(engine, policy), scope=deps.conversation_id, deadline=deps.left, origin=origin, fenced=fenced
    )
    give(deps, shell, guarded(files, policy, deps.conversation_id))


def give(deps: TurnDeps, shell: AsyncShell, files: AsyncFilesystem) -> None:
    """Give a turn a shell and files, for code on the loop and in threads."""
    # Turns run on this loop. A plain function runs in a thread and calls back into it.
    sync = SyncShell(shell, asyncio.get_running_loop())
    deps.shell, deps.async_shell = sync, shell
    deps.filesystem, deps.async_filesystem = SyncFiles(files, sync.run), files
