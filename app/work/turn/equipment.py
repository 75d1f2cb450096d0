"""What a turn gives the code of tools to work with: a shell and files, and commands that a replay does not repeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager

from dbos import DBOS

from shellback.exec.core.identity import a_call, call_in_progress
from shellback.exec.core.model import CallOrigin
from shellback.exec.engine.engine import Engine
from shellback.exec.files.files import Files
from shellback.exec.policy.policy import Policy
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.facade import SyncFiles, SyncShell
from shellback.exec.shell.workspaces.authority import ByCall, guarded
from shellback.storage.errors import StaleTurn
from shellback.work.turn.deps import TurnDeps
from shellback.work.turn.hearing import Fenced


def place_in_turn() -> int:
    """Where in the workflow this code is: the number of its step, 0 outside of one.

    A step whose outcome is recorded is not run again, so what counts what it did has to begin anew with each.
    """
    return DBOS.step_id or 0


@contextmanager
def fenced() -> Generator[None]:
    """End an execution that a newer one has overtaken, instead of recording that as the outcome of its step.

    Raises:
        Fenced: It has been.
    """
    try:
        yield
    except StaleTurn as error:
        raise Fenced from error


def equip(deps: TurnDeps, engine: Engine, policy: Policy, files: Files) -> None:
    """Give a turn its shell and its files: under `policy`, and for no longer than it has."""

    def left() -> float:
        return deps.began_at + deps.seconds - time.time()

    def next_origin() -> CallOrigin:
        call = call_in_progress()
        # Counted with the commands of `ctx.workspace`: what a recorded step has started is not counted by its repeat.
        return a_call(deps.conversation_id) if call is None else call.origin(1 + place_in_turn())

    shell = AsyncShell(
        engine, ByCall(engine, policy), scope=deps.conversation_id, deadline=left, origin=next_origin, fenced=fenced
    )
    # Turns run on the engine's own loop. A tool that is a plain function has a thread, from which it comes back here.
    sync = SyncShell(shell, asyncio.get_running_loop())
    deps.shell, deps.async_shell = sync, shell
    deps.async_filesystem = guarded(files, policy, deps.conversation_id)
    deps.filesystem = SyncFiles(deps.async_filesystem, sync.run)
