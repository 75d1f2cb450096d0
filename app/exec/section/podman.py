"""The sandbox section in a container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from shellback.exec.backends.podman import PodmanBackend
from shellback.exec.core.model import WORK, PodmanWorkspace
from shellback.exec.core.ports import SessionStore, SessionWatch
from shellback.exec.engine.memory_store import MemoryWorkspaceStore
from shellback.exec.link.client import SupervisorClient
from shellback.exec.section.config import PodmanSandboxConfig
from shellback.exec.section.sandbox import SandboxSection
from shellback.exec.shell.standalone import Made, in_container


class PodmanSandboxSection(SandboxSection):
    """A sandbox section in a container, made at the first tool call; its workspace is /workspace there.

    Raises:
        MountUnusable: A mount cannot be copied.
    """

    def __init__(
        self,
        config: PodmanSandboxConfig | None = None,
        *,
        scope: str | None = None,
        store: SessionStore | None = None,
        watch: SessionWatch | None = None,
        workspaces: MemoryWorkspaceStore | None = None,
    ) -> None:
        chosen = config or PodmanSandboxConfig()
        self.workspaces = workspaces or MemoryWorkspaceStore()
        super().__init__(self._in_podman, chosen, kind="podman", scope=scope, store=store, watch=watch)

    @property
    def workspace(self) -> PodmanWorkspace | None:
        """The container that it works in, None before there is one."""
        return self.workspaces.latest(self.scope, WORK)

    @property
    def _workdir(self) -> str:
        return PodmanBackend.inner

    def clone(
        self,
        *,
        scope: str | None = None,
        store: SessionStore | None = None,
        watch: SessionWatch | None = None,
        workspaces: MemoryWorkspaceStore | None = None,
    ) -> PodmanSandboxSection:
        """The same section anew: another workspace, filled again, another container, and nothing that this one has."""
        config = cast("PodmanSandboxConfig", self.config)
        return PodmanSandboxSection(replace(config), scope=scope, store=store, watch=watch, workspaces=workspaces)

    def _in_podman(self, workspace: Path, state: Path, host: SupervisorClient) -> Made:
        config = cast("PodmanSandboxConfig", self.config)
        options = {name: getattr(config, name) for name in ("image", "network", "limits", "env")}
        return in_container(
            PodmanBackend, lambda: config.podman, workspace, state, host, log=self.workspaces, **options
        )
