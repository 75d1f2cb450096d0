"""The settings as each workspace has them: those of the process, with its own values from the operator's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shellback.exec.backends.kinds import ChosenBackend
from shellback.exec.core.errors import ExecError, PolicyUnusable, WorkspaceUnusable
from shellback.exec.policy.rules.file import workspaces
from shellback.exec.policy.rules.named import LISTED, OWN, NamedWorkspace
from shellback.exec.tools.tool import Part
from shellback.orders import SettingsError
from shellback.settings import Settings
from shellback.wiring.choice import AUTO, BY_NAME, Choice, choose, of_one_engine
from shellback.work.queue.mailbox import Workspace


def tool_switches(settings: Settings) -> dict[Part, bool]:
    """Which tools beside those for commands an operator has switched on."""
    return {
        "sessions": settings.session_tools == "on",
        "shell": settings.shell_tool == "on",
        "workspace": settings.workspace_tools == "on",
    }


class Views:
    """The settings as each workspace has them, from now on until this process ends.

    Raises:
        PolicyUnusable: The operator's file cannot be read, or a workspace's own settings are not allowed.
    """

    def __init__(self, settings: Settings) -> None:
        self._first = settings
        self._there = {
            os.path.realpath(written.path): (written, in_effect(settings, name, written))
            for name, written in workspaces(settings.policy).items()
        }
        held = self._there.get(os.path.realpath(settings.workspace_root))
        if held is not None and held[0].own:
            raise PolicyUnusable(
                f"{settings.policy}: workspace {held[1].workspace} is WORKSPACE_ROOT, which has the settings of the"
                " environment: take its own settings out, or set WORKSPACE_ROOT to another directory"
            )

    @property
    def networks(self) -> set[str]:
        """The values of NETWORK that hold in any of them."""
        return {self._first.network, *(seen.network for _, seen in self._there.values())}

    def agents(self) -> Iterator[Settings]:
        """The settings of workspaces that have an agent or a model of their own."""
        return (seen for written, seen in self._there.values() if not {"agent", "model"}.isdisjoint(written.own))

    def own(self) -> Iterator[tuple[Path, Settings]]:
        """The workspaces that have settings of their own."""
        return ((Path(real), seen) for real, (_, seen) in self._there.items() if seen.workspace)

    def at(self, path: str | Path) -> Settings:
        """The settings that hold for commands in this workspace, or directory of a conversation."""
        return self._at(path)[1]

    def require_unchanged(self, workspace: Workspace) -> None:
        """Check that the operator's file still gives a named workspace the settings that are held here.

        Raises:
            PolicyUnusable: The operator's file cannot be read.
            WorkspaceUnusable: It does not.
        """
        (held, seen), now = self._at(workspace.path), workspaces(self._first.policy).get(workspace.name)
        as_now = now is not None and now.own == (held.own if held else {})
        if not as_now or seen.workspace not in {"", workspace.name}:
            raise WorkspaceUnusable(
                f"workspace {workspace.name} has got other settings since this process began: start the worker, or the"
                " server of the client, again"
            )

    def _at(self, path: str | Path) -> tuple[NamedWorkspace | None, Settings]:
        found = self._there.get(str(path)) or self._there.get(os.path.dirname(path))
        if found is None or (str(path) not in self._there and not found[0].per_conversation):
            return None, self._first
        return found


def settings_of(settings: Settings, name: str, written: NamedWorkspace) -> Settings:
    """The settings in a named workspace; they are `settings` if it has none of its own.

    Raises:
        PolicyUnusable: One of its own is not allowed.
    """
    if not written.own:
        return settings
    wrong = _wrong(settings, name)
    try:
        found = settings.of_workspace(name, {key: _text(written.own[key]) for key in OWN if key in written.own})
    except SettingsError as error:
        raise PolicyUnusable(f"{wrong}{error}") from None
    if written.own.get("backend") == AUTO:
        raise PolicyUnusable(f"{wrong}BACKEND=auto is not allowed here: name one, or leave it out")
    return found


def in_effect(settings: Settings, name: str, written: NamedWorkspace) -> Settings:
    """As `settings_of`, where commands run.

    Raises:
        PolicyUnusable: One of its own is not allowed, or has no effect.
    """
    found = settings_of(settings, name, written)
    if found.network not in BY_NAME and (listed := [key for key in LISTED if key in written.own]):
        why = f'{listed[0]} has no effect with NETWORK={found.network}: write network = "list"'
        raise PolicyUnusable(f"{_wrong(settings, name)}{why}")
    return found


def _wrong(settings: Settings, name: str) -> str:
    return f"{settings.policy}: workspace {name}: " if settings.policy else f"workspace {name}: "


def _text(value: object) -> str:
    """A value as an environment would have it: what is allowed there is allowed in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def tried(settings: Settings, first: ChosenBackend | None) -> Iterator[tuple[str, Choice | ExecError]]:
    """The backend of each workspace with settings of its own, tested beside `first`, or why there is none. Blocks.

    Raises:
        PolicyUnusable: The operator's file cannot be read, or a workspace's own settings are not allowed.
    """
    containers = first and first.containers
    for path, seen in Views(settings).own():
        try:
            found = choose(seen, path)
            if found.backend.containers is not None:
                containers = of_one_engine(containers, found.backend.containers)
            yield seen.workspace, found
        except ExecError as error:
            yield seen.workspace, error
