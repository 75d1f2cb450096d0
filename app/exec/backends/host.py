"""Commands as plain processes of this machine: no isolation but the user id."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final, Self

from shellback.exec.backends.kinds import ChosenBackend, Wanted
from shellback.exec.backends.private_homes import PrivateHomes
from shellback.exec.backends.shell_words import shell_words
from shellback.exec.core.base import Plan
from shellback.exec.core.environment import CHILD_PATH
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.core.model import WORK, CommandSpec
from shellback.exec.core.runner import EXEC_UID, Runner, found
from shellback.exec.supervisor.process import landlock

_BASH: Final = "/bin/bash"
_SCRATCH: Final = "/tmp"  # noqa: S108 - what programs take for scratch


class HostBackend(ChosenBackend):
    """Runs commands on the host, as ourselves, or as an unprivileged user where we are root.

    With `fence` they write nothing but the workspace, /tmp and their home; all else is as without it. `state` is the
    state directory that homes are kept by; without it they go with this object.
    """

    name = "host"
    profiles = frozenset({WORK})
    network = True

    @classmethod
    def made(cls, wanted: Wanted) -> Self:
        return cls(wanted.workspace, exec_uid=wanted.exec_uid, fence=wanted.fence, state=wanted.state)

    def __init__(
        self,
        workspace: str | Path,
        *,
        exec_uid: int = EXEC_UID,
        fence: bool = False,
        state: Path | None = None,
    ) -> None:
        self._given = Path(workspace)
        self.workspace = self._given.resolve()
        self.inner = str(self.workspace)
        self._runner = Runner(exec_uid=exec_uid)
        self.uid = self._runner.uid
        self._bash = found("bash")
        self.homes = PrivateHomes(state, uid=self.uid)
        self._fence = tuple(sorted({str(self.workspace), os.path.realpath(_SCRATCH)})) if fence else None

    @property
    def description(self) -> str:
        """Where commands run and what that does not protect from."""
        fenced = "" if self._fence is None else f" They can write {', '.join(self._fence)} and their home only."
        return (
            f"Commands run in bash on the host itself as user {self._runner.user}, without a sandbox, with its network."
            f"{fenced}"
        )

    def facts(self, profile: str) -> dict[str, Any]:  # noqa: ARG002 - there is one
        writable = ["/"] if self._fence is None else [*self._fence]
        return {
            "shell": self._bash or _BASH,
            "mounts": {"readable": ["/"], "writable": writable, "private": [], "view": None},
            "limits": {},
        }

    def check(self) -> None:
        if self._bash is None:
            raise BackendUnavailable(f"no bash in {CHILD_PATH}; install bash")
        self._runner.check(self.workspace, given=self._given)
        why = landlock.refusal() if self._fence is not None else None
        if why is not None:
            raise BackendUnavailable(
                f"HOST_WRITE_FENCE=on cannot be had: {why}; turn it off, or take BACKEND=bubblewrap"
            )

    def private_home(self, scope: str) -> str:
        """See `Backend.private_home`."""
        return str(self.homes.path(scope))

    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        if spec.profile not in self.profiles:
            raise BackendUnavailable(f"the host backend isolates nothing, so it has no profile {spec.profile}")
        uid, gid = self._runner.dropped
        private = str(await asyncio.to_thread(self.homes.make, scope))
        argv, env = shell_words(
            self._bash or _BASH, spec, workspace=self.inner, private=private, user=self._runner.user
        )
        return Plan(
            argv=argv,
            cwd=spec.cwd,
            env=env,
            uid=uid,
            gid=gid,
            fence=None if self._fence is None else (*self._fence, private),
        )
