"""Removes directories of conversations: only in their root, and without following a symlink."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from shellback.exec.backends.directories import worktrees
from shellback.exec.backends.directories.making import AREA, opened_area
from shellback.exec.backends.directories.marks import marked
from shellback.exec.backends.directories.programs import ProgramFailed, programs
from shellback.exec.backends.directories.worktrees import Worktree
from shellback.exec.backends.removal import removed
from shellback.exec.core.runner import Runner
from shellback.exec.policy.rules.named import NamedWorkspace
from shellback.exec.wire.crashpoints import reach

_ASIDE = "~"
"""No name of a directory of a conversation has it."""


def remove(named: NamedWorkspace, directory: Path, *, state: Path, who: Runner, free: Callable[[], bool]) -> bool:
    """Remove the directory of a conversation, if it is `free` while nobody else makes it; whether it was. Blocks.

    The source of a worktree forgets it; its branch stays if it has commits of its own.

    Raises:
        OSError: It cannot be moved out of its place.
        WorkspaceUnusable: The root belongs to another user.
    """
    with opened_area(directory.parent) as (root, area):
        with marked(state, directory) as mark:
            if not free():
                return False
            mark.forget()
            try:
                aside = f"{directory.name}{_ASIDE}{secrets.token_hex(4)}"
                os.rename(directory.name, aside, src_dir_fd=root, dst_dir_fd=area)
            except FileNotFoundError:
                pass
            except OSError:
                mark.note()
                raise
            reach("directory.aside")
            if named.origin == "worktree" and named.source is not None and worktrees.objection(named.source) is None:
                with contextlib.suppress(ProgramFailed), programs(who, mark.descriptor) as run:
                    Worktree(run, Path(os.path.realpath(named.source)), directory).forget(directory)
        _finish(area)
    return True


def finish(root: Path) -> None:
    """Remove what an interrupted removal has left in a root. Blocks. Raises as `remove`."""
    if os.path.lexists(root / AREA):
        with opened_area(root) as (_, area):
            _finish(area)


def _finish(area: int) -> None:
    for name in os.listdir(area):
        if _ASIDE in name:
            removed(f"./{name}", below=area)
