"""What every backend is: a name, a check that it works here, and a plan for one command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.exec.model import CommandSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to spawn for one command: no shell of ours, no environment of ours. `uid` None is our own."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    uid: int | None
    gid: int | None


class Backend(Protocol):
    """A place where commands run. Plans are pure; only `check` looks at the machine."""

    @property
    def name(self) -> str:
        """`host`, `bubblewrap`, `podman` or `mock`."""
        ...

    @property
    def profile(self) -> str:
        """What its commands may do; commands of different profiles share nothing."""
        ...

    @property
    def network(self) -> bool:
        """Whether its commands reach the network."""
        ...

    @property
    def workspace(self) -> Path:
        """The directory its commands work in, without symlinks."""
        ...

    @property
    def uid(self) -> int:
        """Whom its commands run as."""
        ...

    @property
    def description(self) -> str:
        """One true sentence about where commands run, for the model."""
        ...

    def check(self) -> None:
        """Find out whether commands can run here.

        Raises:
            BackendUnavailable: They cannot; the message has cause and remedy.
            WorkspaceUnusable: The workspace is missing, or its commands could not write it.
        """
        ...

    def plan(self, spec: CommandSpec) -> Plan:
        """Say what to spawn for the command."""
        ...
