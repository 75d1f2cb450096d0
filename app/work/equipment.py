"""What a turn gives the code of tools to work with: a shell and files, and commands that a replay does not repeat."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from dbos import DBOS

from app.exec.engine import Engine
from app.exec.files import Files
from app.exec.policy import Policy
from app.exec.shell.async_shell import AsyncShell
from app.exec.workspaces.authority import ByCall
from app.exec.workspaces.files import guarded
from app.storage.errors import StaleTurn
from app.work.deps import TurnDeps
from app.work.hearing import Fenced


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

    deps.shell = AsyncShell(engine, ByCall(engine, policy), scope=deps.conversation_id, deadline=left)
    deps.filesystem = guarded(files, policy, deps.conversation_id)
