"""Who runs commands, and whether the workspace lets them."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable

EXEC_UID: Final = 65534
"""Whom commands run as when we are root."""


class Runner:
    """The user whom commands run as: ourselves, or an unprivileged one where we are root."""

    def __init__(self, *, exec_uid: int = EXEC_UID, euid: Callable[[], int] = os.geteuid) -> None:
        self.drops = euid() == 0
        self.uid = exec_uid if self.drops else euid()
        try:
            entry = pwd.getpwuid(self.uid)
            self.user, self.gid = entry.pw_name, entry.pw_gid
        except KeyError:
            self.user, self.gid = str(self.uid), self.uid

    @property
    def dropped(self) -> tuple[int | None, int | None]:
        """(uid, gid) to become, None for what we are."""
        return (self.uid, self.gid) if self.drops else (None, None)

    def check(self, workspace: Path, *, given: Path) -> None:
        """Find out whether commands of this user can work in `workspace`, which was `given` like this.

        Raises:
            BackendUnavailable: They would run as root.
            WorkspaceUnusable: It is missing, or this user cannot write it.
        """
        if self.drops and self.uid == 0:
            raise BackendUnavailable(
                "commands would run as root; set EXEC_UID to an unprivileged user id (65534 by default)"
            )
        if not workspace.is_dir():
            raise WorkspaceUnusable(f"workspace {given} is missing or not a directory; create it or set WORKSPACE_ROOT")
        refusal = self._refusal(workspace)
        if refusal is not None:
            raise WorkspaceUnusable(
                f"workspace {given} cannot be used by user id {self.uid}, which runs commands: {refusal}; "
                f"give it one that this user may write (for a new one: `install -d -o {self.uid} DIR`)"
            )

    def _refusal(self, workspace: Path) -> str | None:
        if not self.drops:
            return None if os.access(workspace, os.W_OK | os.X_OK) else "no write permission"
        for parent in workspace.parents:
            if not self._may(parent, 0o1):
                return f"{parent} cannot be entered"
        return None if self._may(workspace, 0o3) else "no write permission"

    def _may(self, path: Path, bits: int) -> bool:
        # Asked about somebody else, so access(2) does not help.
        status = path.stat()
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self.gid:
            shift = 3
        else:
            shift = 0
        return stat.S_IMODE(status.st_mode) >> shift & bits == bits


def make_workspace(path: str | Path, *, uid: int = EXEC_UID) -> None:
    """Make a directory that commands can use; as root it belongs to `uid`, whom they run as. One that is there stays.

    Raises:
        OSError: It cannot be made.
    """
    try:
        Path(path).mkdir(mode=0o755)
    except FileExistsError:
        return
    if os.geteuid() == 0:
        os.chown(path, uid, uid)


def found(program: str) -> str | None:
    """Where a command would find this program, None where it would not."""
    for directory in CHILD_PATH.split(":"):
        path = f"{directory}/{program}"
        if os.access(path, os.X_OK):
            return path
    return None
