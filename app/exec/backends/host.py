"""Commands as plain processes of this machine: no isolation but the user id."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.exec.backends.base import Plan
from app.exec.environment import CHILD_PATH, child_env
from app.exec.errors import BackendUnavailable, WorkspaceUnusable
from app.exec.model import CommandSpec

EXEC_UID: Final = 65534
"""Whom commands run as when we are root."""


class HostBackend:
    """Runs commands on the host, as ourselves, or as an unprivileged user where we are root."""

    name = "host"
    profile = "work"
    network = True

    def __init__(
        self, workspace: str | Path, *, exec_uid: int = EXEC_UID, euid: Callable[[], int] = os.geteuid
    ) -> None:
        self._given = Path(workspace)
        self.workspace = self._given.resolve()
        self._drops = euid() == 0
        self.uid = exec_uid if self._drops else euid()
        try:
            entry = pwd.getpwuid(self.uid)
            self._user, self._gid = entry.pw_name, entry.pw_gid
        except KeyError:
            self._user, self._gid = str(self.uid), self.uid
        self._bash = _found("bash")

    @property
    def description(self) -> str:
        """Where commands run and what that does not protect from."""
        return f"Commands run in bash on the host itself as user {self._user}, without a sandbox, with its network."

    def check(self) -> None:
        """See `Backend.check`."""
        if self._drops and self.uid == 0:
            raise BackendUnavailable(
                "commands would run as root; set EXEC_UID to an unprivileged user id (65534 by default)"
            )
        if self._bash is None:
            raise BackendUnavailable(f"no bash in {CHILD_PATH}; install bash")
        if not self.workspace.is_dir():
            raise WorkspaceUnusable(
                f"workspace {self._given} is missing or not a directory; create it or set WORKSPACE_ROOT"
            )
        refusal = self._refusal()
        if refusal is not None:
            raise WorkspaceUnusable(
                f"workspace {self._given} cannot be used by user id {self.uid}, which runs commands: {refusal}; "
                f"give it one that this user may write (for a new one: `install -d -o {self.uid} DIR`)"
            )

    def plan(self, spec: CommandSpec) -> Plan:
        """See `Backend.plan`: bash without any start-up file, HOME is the workspace."""
        return Plan(
            argv=(self._bash or "/bin/bash", "--noprofile", "--norc", "-c", spec.command),
            cwd=spec.cwd,
            env=child_env(
                spec.env,
                home=str(self.workspace),
                user=self._user,
                pty=spec.pty is not None,
            ),
            uid=self.uid if self._drops else None,
            gid=self._gid if self._drops else None,
        )

    def _refusal(self) -> str | None:
        if not self._drops:
            return None if os.access(self.workspace, os.W_OK | os.X_OK) else "no write permission"
        for parent in self.workspace.parents:
            if not self._may(parent, 0o1):
                return f"{parent} cannot be entered"
        return None if self._may(self.workspace, 0o3) else "no write permission"

    def _may(self, path: Path, bits: int) -> bool:
        # Asked about somebody else, so access(2) does not help.
        status = path.stat()
        if status.st_uid == self.uid:
            shift = 6
        elif status.st_gid == self._gid:
            shift = 3
        else:
            shift = 0
        return stat.S_IMODE(status.st_mode) >> shift & bits == bits


def _found(program: str) -> str | None:
    for directory in CHILD_PATH.split(":"):
        path = f"{directory}/{program}"
        if os.access(path, os.X_OK):
            return path
    return None
