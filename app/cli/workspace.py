"""The default workspace, made for whoever has not named one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shellback.settings import Settings


def is_ours_to_make(settings: Settings) -> bool:
    """Whether nobody has named a workspace and the default one is not there yet."""
    return "workspace_root" not in settings.model_fields_set and not settings.workspace_root.exists()


def make_default(settings: Settings) -> None:
    """Make `workspace` in the current directory if WORKSPACE_ROOT is not set; a named one is never made.

    As root it is given to EXEC_UID, whom commands run as. The backend's own check says whether it can be used.
    """
    from shellback.exec.core.runner import make_workspace

    if not is_ours_to_make(settings):
        return
    root = settings.workspace_root
    make_workspace(root, uid=settings.exec_uid)
    click.echo(f"made the workspace {root} (WORKSPACE_ROOT names another one)", err=True)
