"""What every backend is: a name, a check that it works here, and a plan for one command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shellback.exec.core.model import CommandSpec
from shellback.exec.wire.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to spawn for one command: no shell of ours, no environment of ours. `uid` None is our own.

    With a `sandbox`, `argv`, `cwd` and `env` are as they are seen in there. `fence` has all that may be written.
    `place` is the device and inode that `cwd` has to be. `home` is the state directory of the supervisor that is to
    start it, which listens by now; None is the engine's own.
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
    """What a probe found. Where it is not `ok`, `why` has cause and remedy; else `in_force` is what was seen to hold.

    `limits` says what holds sandboxes to their bounds, `unbounded` names the bounds that nothing holds them to.
    `passing`: the failure says nothing about the next time. Milliseconds: of making an instance, and of a start in it.
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
    """A place where commands run. A plan starts nothing; it may look at the workspace."""

    name: str
    """By which settings and records name it."""
    powered_by: str = ""
    """The engine of the containers that its commands run in, as people write it; "" without containers."""
    profiles: frozenset[str]
    """What it can hold commands to; commands of different profiles share nothing."""
    network: bool
    """Whether its commands reach the network; those of `read_only` never do."""
    workspace: Path
    """The directory its commands work in, without symlinks."""
    inner: str
    """The path of the workspace as its commands see it."""
    uid: int
    """Whom its commands run as, as this machine numbers users."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One true sentence about where commands run, for the model."""

    @abstractmethod
    def facts(self, profile: str) -> dict[str, Any]:
        """What commands of this profile are held to, as portable JSON that differs where any of it does.

        `shell` runs their text; `mounts` has what is `readable`, `writable` and `private` to them; `limits`, 0 for
        none, in bytes and counts.
        """

    @abstractmethod
    def check(self) -> None:
        """Find out whether commands can run here.

        Raises:
            BackendUnavailable: They cannot; the message has cause and remedy.
            WorkspaceUnusable: The workspace is missing, or its commands could not write it.
        """

    @abstractmethod
    def private_home(self, scope: str) -> str:
        """The home of commands of this scope that have none of their own, as they see it; `plan` makes it."""

    @abstractmethod
    async def plan(self, spec: CommandSpec, scope: str) -> Plan:
        """Say what to spawn for the command; commands of one `scope` and profile share a sandbox.

        Raises:
            BackendUnavailable: The profile is none of `profiles`.
            WorkspaceUnusable: Something in the workspace is in the way.
        """
