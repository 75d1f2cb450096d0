"""The workspaces of a host: WORKSPACE_ROOT, and those that the operator's file names."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shellback.exec.backends import view
from shellback.exec.backends.directories import making
from shellback.exec.core.errors import BackendUnavailable, ExecError, PolicyUnusable, WorkspaceUnusable
from shellback.exec.core.runner import Runner
from shellback.exec.policy.rules.file import credential_files, workspaces
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.exec.tools.stranded import Stranded
from shellback.orders import note_workspace
from shellback.wiring.views import settings_of
from shellback.work.queue.mailbox import DEFAULT, Workspace, workspace_of

if TYPE_CHECKING:
    from shellback.exec.tools.bench import Bench
    from shellback.exec.tools.tool_calls import ToolCalls
    from shellback.settings import Settings
    from shellback.storage.db import Database
    from shellback.wiring.views import Views

MAKES: Final = 2
"""How many directories of conversations a process makes at the same time."""
OPEN: Final = 64
"""How many workspaces have files open."""
_ADD: Final = "`shellback workspaces list` shows them, `shellback workspaces add NAME PATH` adds one"


def named(settings: Settings) -> dict[str, Path]:
    """The named workspaces, their paths without symlinks; a mistake in one refuses all.

    Raises:
        PolicyUnusable: The operator's file cannot be trusted, or its table is wrong, or a setting in it.
        WorkspaceUnusable: Two have the same path, one is inside another, or one would give agents what is not theirs.
    """
    found: dict[str, Path] = {}
    for name, written in workspaces(settings.policy).items():
        real = Path(os.path.realpath(written.path))
        why = objection(settings_of(settings, name, written), real, found)
        if why is not None:
            raise WorkspaceUnusable(f"workspace {name} ({written.path}): {why}; correct it in {settings.policy}")
        found[name] = real
    return found


def objection(settings: Settings, real: Path, others: dict[str, Path], *, root: bool = False) -> str | None:
    """Why a path without symlinks cannot be a workspace beside WORKSPACE_ROOT and `others`; None if it can.

    `settings` are those that it is to have. With `root` it is to be WORKSPACE_ROOT itself.
    """
    if (why := view.unusable(real, settings.hidden)) is not None:
        return why
    first = settings.workspace_root
    # If it is not set and not there, nobody works in ./workspace from here.
    if not root and ("workspace_root" in settings.model_fields_set or first.exists()):
        others = {DEFAULT: Path(os.path.realpath(first)), **others}
    for name, other in others.items():
        if real == other:
            return f"{real} is workspace {name} already"
        if real.is_relative_to(other) or other.is_relative_to(real):
            where = "is in it" if other.is_relative_to(real) else "contains it"
            return f"workspace {name} ({other}) {where}: take a directory beside it"
    ours = (settings.shellback_home, *([settings.policy] if settings.policy else []))
    for place in map(Path, map(os.path.realpath, ours)):
        if place.is_relative_to(real):
            return f"{place} is in it, and agents would write there: take another directory"
    return None


def bound(settings: Settings, name: str) -> Workspace:
    """The workspace with this name, as a new conversation is bound to it.

    Raises:
        PolicyUnusable: The operator's file cannot be read.
        WorkspaceUnusable: There is none, or it is missing or no directory.
    """
    if name == DEFAULT:
        return Workspace()
    found = named(settings)
    if name not in found:
        known = ", ".join([DEFAULT, *found])
        raise WorkspaceUnusable(f"there is no workspace {name!r}; there are {known}: {_ADD}")
    if not found[name].is_dir():
        raise WorkspaceUnusable(f"workspace {name} is missing: {found[name]} is no directory; create it")
    written = workspaces(settings.policy)[name]
    if (why := source_objection(settings_of(settings, name, written), written)) is not None:
        raise WorkspaceUnusable(f"workspace {name}: {why}; correct it in {settings.policy}")
    return Workspace(name, str(found[name]), written.per_conversation)


def source_objection(settings: Settings, written: NamedWorkspace) -> str | None:
    """Why directories of conversations cannot be made from a workspace's source; None if they can, or need none.

    `settings` are those that the workspace has.
    """
    if written.source is None:
        return None
    real = Path(os.path.realpath(written.source))
    if (why := view.unusable(real, settings.hidden)) is not None:
        return f"its source {written.source} cannot be given to agents: {why}"
    if written.origin == "copy":
        for place in (*settings.hidden, *credential_files(settings.policy)):
            if os.path.lexists(place) and Path(os.path.realpath(place)).is_relative_to(real):
                return f"its source {written.source} has {place}, which no command may read: move it elsewhere"
    return making.objection(written)


def path_of(settings: Settings, workspace: Workspace) -> Path:
    """The directory to which a conversation is bound, if it may still work there. One of its own is made first. Blocks.

    Raises:
        PolicyUnusable: The operator's file cannot be read.
        WorkspaceUnusable: It is not configured any more, or has another path, or is missing, or cannot be made.
    """
    if not workspace.path:
        return settings.workspace_root
    # The others may be wrong, or hang: this one was compared with them when the conversation began.
    name, written = workspace.name, workspaces(settings.policy).get(workspace.name)
    if written is None:
        raise WorkspaceUnusable(
            f"workspace {name}, in which this conversation works, is not configured any more: `shellback workspaces add"
            f" {name} {workspace.path}` adds it again"
        )
    now, place = Path(os.path.realpath(written.path)), Path(workspace.path)
    own = written.per_conversation and not workspace.each
    if str(there := now / place.name if own else now) != workspace.path:
        raise WorkspaceUnusable(
            f"workspace {name} has another path since this conversation began: {there}, not {workspace.path}. Give it"
            " the former path, or begin another conversation"
        )
    if not now.is_dir():
        raise WorkspaceUnusable(
            f"workspace {name} is missing: {now} is no directory; put it back, or begin another conversation"
        )
    if own:
        making.ensured(written, place, state=settings.shellback_home, who=Runner(exec_uid=settings.exec_uid))
    return place


def noted(settings: Settings, workspace: Workspace, path: Path) -> None:
    """Note that agents work in `path`, so that from now on no file there is obeyed.

    Raises:
        OSError: It cannot be noted.
    """
    named = workspaces(settings.policy).get(workspace.name) if workspace.path else None
    own = named is not None and named.per_conversation and not workspace.each
    note_workspace(settings.shellback_home, path.parent if own else path)


class Benches:
    """Finds the bench of each conversation; `made` makes one for a path when it is needed first, and may block."""

    def __init__(
        self, settings: Settings, views: Views, database: Database, first: Bench, made: Callable[[str], Bench]
    ) -> None:
        self._settings = settings
        self._views = views
        self._database = database
        self._made = made
        self._root = os.path.realpath(settings.workspace_root)
        self._first = first
        self._known = {str(first.engine.workspace): first}
        self._one = asyncio.Lock()
        self._makes = asyncio.Semaphore(MAKES)

    async def calls_of(self, conversation_id: str) -> ToolCalls:
        """What carries out the calls of a conversation: in its workspace, or if that cannot be used, saying why.

        Raises:
            WorkspaceUnusable: There is no such conversation any more.
        """
        found = await self._database.read(workspace_of, conversation_id)
        if found is None:
            raise WorkspaceUnusable(f"conversation {conversation_id} is not there any more; make the call again")
        try:
            return (await self.at(found)).calls
        except ExecError as error:
            return Stranded(self._first.calls, error, {"workspace": str(found)} if found.path else {})

    async def at(self, workspace: Workspace) -> Bench:
        """The bench in the workspace to which a conversation is bound; never that of another workspace.

        Raises:
            BackendUnavailable: Commands cannot run there.
            PolicyUnusable: The operator's file cannot be read.
            WorkspaceUnusable: The workspace is missing, has moved, cannot be written, or is not configured any more.
        """
        path = workspace.path or self._root
        if workspace.path:
            # A copy or clone takes its time in a thread, of which there are few.
            async with contextlib.nullcontext() if path in self._known else self._makes:
                await asyncio.to_thread(self._require, workspace)
        if path not in self._known:
            async with self._one:
                if path not in self._known:
                    self._known[path] = await asyncio.to_thread(self._new, workspace, path)
                    await self._close_one()
        found = self._known[path] = self._known.pop(path)
        found.engine.backend.named = workspace.name if workspace.path else ""
        return found

    async def _close_one(self) -> None:
        """Close what the bench holds open that is unused for longest: there may be one for each conversation."""
        if len(self._known) > OPEN:
            oldest = [*self._known.values()][-1 - OPEN]
            await asyncio.to_thread(oldest.engine.unlinked.close)

    def _require(self, workspace: Workspace) -> None:
        path_of(self._settings, workspace)
        self._views.require_unchanged(workspace)

    def _new(self, workspace: Workspace, path: str) -> Bench:
        try:
            noted(self._settings, workspace, Path(path))
            return self._made(path)
        except (BackendUnavailable, PolicyUnusable) as error:
            raise BackendUnavailable(f"workspace {workspace.name}: {error}") from error
        except OSError as error:
            raise WorkspaceUnusable(f"workspace {path} cannot be used now: {error}") from error
