"""The configuration of a sandbox section, and the short commands that its owner runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shellback.exec.backends.container import IMAGE, ContainerLimits
from shellback.exec.backends.mounts.mount import HostMount
from shellback.exec.backends.podman import Podman
from shellback.exec.core.errors import BackendUnavailable
from shellback.exec.engine.engine import Engine
from shellback.exec.policy.policy import Policy
from shellback.exec.tools.short_commands import TIMEOUT_S
from shellback.exec.tools.toolset import plain_judge


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """The configuration of every sandbox section; a model cannot change it.

    Args:
        mounts: What is copied into the workspace before anything runs there.
        allowed_roots: Where mounts may come from; nowhere by default.
        cache: Where workspaces are kept, as `podman/SCOPE` in there.
        instructions: Instead of those that go with the tools.
        enabled: Whether the tools are there, where a run's dependencies do not say (`gate`).
        policy: What says of each call whether it runs; by default a person is asked about all that changes anything.
    """

    mounts: Sequence[HostMount] = ()
    allowed_roots: Sequence[str | os.PathLike[str]] = ()
    cache: Path = field(default_factory=lambda: Path.home() / ".cache/shellback")
    instructions: str | None = None
    enabled: bool = True
    policy: Callable[[Engine], Policy] = plain_judge


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanSandboxConfig(SandboxConfig):
    """The configuration of a container section: also image, bounds, network, environment and podman.

    The image has to be here already: nothing is downloaded. No container is privileged, and commands run as user 65534.
    `env` is given to every command; its values are in no record and on no command line.
    """

    image: str = IMAGE
    limits: ContainerLimits = field(default_factory=ContainerLimits)
    network: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    podman: Podman = field(default_factory=Podman)

    def __post_init__(self) -> None:
        """Refuse bounds that bound nothing."""
        limits = self.limits
        if min(limits.cpus, limits.memory_bytes, limits.processes, limits.file_bytes, limits.scratch_bytes) <= 0:
            raise BackendUnavailable(f"every bound of a container has to be above 0: {limits}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanShellParams:
    """A short command: `shell_execute` has the same arguments and bounds."""

    command: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str | None = None
    timeout_seconds: float = TIMEOUT_S
    capture_output: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanShellResult:
    """How a short command ended; 124 means that it timed out. `exit_code` None: a signal, or unknown.

    `note` says which timeout was used if the given one is out of range.
    """

    command: tuple[str, ...]
    cwd: str
    exit_code: int | None
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool
    note: str = ""
