"""The directories of conversations, and their removal when their conversation is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shellback.exec.backends.directories import removing
from shellback.exec.backends.directories.making import AREA
from shellback.exec.backends.directories.marks import made
from shellback.exec.backends.directories.unsaved import unsaved
from shellback.exec.core.errors import ExecError
from shellback.exec.core.runner import Runner
from shellback.exec.policy.rules.file import workspaces
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.wiring.spaces import named
from shellback.work.queue.standing import directories_below

if TYPE_CHECKING:
    from shellback.settings import Settings
    from shellback.storage.db import Database

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory in the root of the workspace `name`, which has directories for conversations."""

    name: str
    workspace: NamedWorkspace
    path: Path

    def unsaved(self, settings: Settings) -> str | None:
        """Why it has work that would be lost, in words after "because"; None if it has none. Blocks."""
        return unsaved(self.workspace, self.path, Runner(exec_uid=settings.exec_uid))

    def remove(self, settings: Settings, database: Database) -> bool:
        """Remove it, unless a conversation works there by now; whether it has gone. Blocks.

        Raises:
            OSError, WorkspaceUnusable: It cannot be removed.
        """
        return removing.remove(
            self.workspace,
            self.path,
            state=settings.shellback_home,
            who=Runner(exec_uid=settings.exec_uid),
            free=lambda: str(self.path) not in database.read_now(directories_below, str(self.path.parent)),
        )


def found(settings: Settings, name: str | None = None) -> Iterator[Directory]:
    """The directories of conversations: of one workspace, or of all.

    Raises:
        PolicyUnusable: The operator's file cannot be read.
    """
    for one, workspace in workspaces(settings.policy).items():
        if workspace.per_conversation and name in {None, one}:
            root = Path(os.path.realpath(workspace.path))
            with contextlib.suppress(OSError), os.scandir(root) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.name != AREA and entry.is_dir(follow_symlinks=False):
                        yield Directory(one, workspace, root / entry.name)


def paths(settings: Settings) -> list[Path]:
    """The paths of all of them; none if the operator's file cannot be read."""
    with contextlib.suppress(ExecError):
        return [one.path for one in found(settings)]
    return []


def places(settings: Settings) -> list[Path]:
    """Where commands of named workspaces work, the innermost directories first.

    Raises:
        PolicyUnusable, WorkspaceUnusable: As `spaces.named`.
    """
    return [*paths(settings), *named(settings).values()]


def unowned(settings: Settings, database: Database, name: str | None = None) -> list[Directory]:
    """Those that were made here and have no conversation, and raises as `found`. Blocks."""
    there = [one for one in found(settings, name) if made(settings.shellback_home, one.path)]
    owned = {root: database.read_now(directories_below, root) for root in {str(one.path.parent) for one in there}}
    return [one for one in there if str(one.path) not in owned[str(one.path.parent)]]


async def tidy(settings: Settings, database: Database, kept: set[str]) -> int:
    """Remove the directories that this host has made, whose conversation is gone, and that need not stay; how many.

    Those that stay are said once, and are noted in `kept`: they are not looked at again.
    """
    return await asyncio.to_thread(_tidied, settings, database, kept)


def _tidied(settings: Settings, database: Database, kept: set[str]) -> int:
    gone = 0
    try:
        known, left = workspaces(settings.policy), unowned(settings, database)
    except ExecError as error:
        log.warning("directories of conversations are not removed: %s", error)
        return 0
    for one in left:
        if one.workspace.keep == "always" or str(one.path) in kept:
            continue
        why = None if one.workspace.keep == "never" else one.unsaved(settings)
        if why is None:
            try:
                gone += one.remove(settings, database)
            except (OSError, ExecError) as error:
                why = str(error)
        if why is not None:
            kept.add(str(one.path))
            log.warning("directory %s stays: %s", one.path, why)
    for workspace in known.values():
        if workspace.per_conversation:
            with contextlib.suppress(OSError, ExecError):
                removing.finish(Path(os.path.realpath(workspace.path)))
    return gone
