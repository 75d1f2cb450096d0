"""The user of commands, and whether the workspace permits it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from pathlib import Path
from typing import Final

from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable, WorkspaceUnusable

EXEC_UID: Final = 65534
"""The user id of commands if we are root."""


class Runner:
    """The user of commands: ourselves, or an unprivileged user if we are root."""

    def __init__(self, *, exec_uid: int = EXEC_UID) -> None:
        self.drops = os.geteuid() == 0
        self.uid = exec_uid if self.drops else os.geteuid()
        try:
            entry = pwd.getpwuid(self.uid)
            self.user, self.gid = entry.pw_name, entry.pw_gid
        except KeyError:
            self.user, self.gid = str(self.uid), self.uid

    @property
    def dropped(self) -> tuple[int | None, int | None]:
        """(uid, gid) to become; None keeps ours."""
        return (self.uid, self.gid) if self.drops else (None, None)

    def check(self, workspace: Path, *, given: Path) -> None:
        """Check that commands of this user can work in `workspace`; messages show the path as `given`.

        Raises:
            BackendUnavailable: They would run as root.
            WorkspaceUnusable: The workspace is missing, or this user cannot write it.
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
        # access(2) answers only for our own user.
        status = path.stat()
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self.gid:
            shift = 3
        else:
            shift = 0
        return stat.S_IMODE(status.st_mode) >> shift & bits == bits


def make_workspace(path: str | Path, *, uid: int = EXEC_UID) -> None:
    """Make a directory that commands can use, owned by `uid` if we are root; an existing one stays.

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
    """The path at which commands find the program of this name, or None; a name with a slash is not searched."""
    return None if "/" in program else shutil.which(program, path=CHILD_PATH)
