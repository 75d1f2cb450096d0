"""The interface of backends: a name, a check that it works here, and a plan for one command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shellback.exec.core.model import CommandSpec
from shellback.exec.wire.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to spawn for one command; nothing of our environment is inherited. `uid` None is our own.

    With a `sandbox`, `argv`, `cwd` and `env` are as seen inside. `fence` lists the writable paths. `place` is the
    device and inode that `cwd` must have. `home` is the state directory of the supervisor that starts the command and
    already listens; None is the engine's own.
    """

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    uid: int | None
    gid: int | None
    sandbox: Sandbox | None = None
    fence: tuple[str, ...] | None = None
    place: tuple[int, int] | None = None
    umask: int = 0o022
    home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a probe. If not `ok`, `why` has cause and remedy; else `in_force` lists the observed restrictions.

    `limits` says what enforces the bounds of sandboxes; `unbounded` lists bounds that nothing enforces. `passing`: the
    failure may be temporary. Times are in milliseconds: making an instance, and a start in it.
    """

    ok: bool
    why: str = ""
    passing: bool = False
    in_force: tuple[str, ...] = ()
    limits: str = ""
    unbounded: tuple[str, ...] = ()
    instance_ms: float = 0.0
    start_ms: float = 0.0


class Backend(ABC):
    """A place where commands run. Making a plan starts nothing; it may inspect the workspace."""

    name: str
    """Its name in settings and records."""
    powered_by: str = ""
    """The name of its container engine, as people write it; "" without containers."""
    profiles: frozenset[str]
    """The profiles that it enforces; commands of different profiles share nothing."""
    network: bool
    """Whether its commands reach the network; in the profile `read_only` they never do."""
    hosts: tuple[str, ...] = ()
    """The list of hosts that its commands reach, by a proxy; without one, `network` says whether they reach all."""
    secrets: tuple[str, ...] = ()
    """The credentials that are put into requests of its commands, without their values."""
    workspace: Path
    """The workspace, without symlinks."""
    inner: str
    """The workspace's path as its commands see it."""
    uid: int
    """The user id of its commands on this machine."""
    named: str = ""
    """The name of the workspace; "" for the default one. It is part of what an approval binds."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One true sentence about where commands run, for the model."""

    @abstractmethod
    def facts(self, profile: str) -> dict[str, Any]:
        """All restrictions of a profile, as JSON that differs if any restriction does.

        `shell` runs the commands' text; `mounts` lists `readable`, `writable` and `private` paths; `limits` are in
        bytes and counts, 0 for none.
        """

    @abstractmethod
    def check(self) -> None:
        """Check that commands can run here.

        Raises:
            BackendUnavailable: They cannot; the message has cause and remedy.
            WorkspaceUnusable: The workspace is missing, or commands cannot write it.
        """

    @abstractmethod
    def private_home(self, scope: str) -> str:
        """The private home of this scope's commands, as they see it; `plan` makes it."""

    @abstractmethod
    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        """The plan for a command; commands of one `scope` and profile share a sandbox.

        Raises:
            BackendUnavailable: The profile is not in `profiles`.
            WorkspaceUnusable: A file in the workspace prevents the start.
        """
