"""The exec library: run commands so that none is started twice and no end is lost.

Names load when they are first used, so that importing the package loads neither Pydantic AI nor a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.exec.backends.host import HostBackend
    from app.exec.backends.runner import make_workspace
    from app.exec.capability import ExecCapability
    from app.exec.engine import Engine
    from app.exec.errors import ExecError
    from app.exec.limits import Limits
    from app.exec.logs import cleanup_exec_logs
    from app.exec.memory_store import MemorySessionStore, MemoryWorkspaceStore
    from app.exec.model import CommandSpec, PodmanWorkspace, Session, SessionEnd, SessionState
    from app.exec.mounts.mount import HostMount
    from app.exec.outcome import Outcome
    from app.exec.section.changes import DeleteEntry, EvalResult, VirtualFileSystem, WriteFile
    from app.exec.section.config import PodmanSandboxConfig, SandboxConfig
    from app.exec.section.podman import PodmanSandboxSection
    from app.exec.section.sandbox import SandboxSection
    from app.exec.section.short import PodmanShellParams, PodmanShellResult
    from app.exec.shell import (
        AsyncShell,
        BubblewrapShell,
        CommandValidator,
        EnvironmentSnapshot,
        ExecutionResult,
        HostShell,
        MockShell,
        PodmanShell,
        Shell,
        ShellSection,
        SyncShell,
        WhichResult,
        WorkspaceSection,
        shell_of,
    )
    from app.exec.supervisor.client import SupervisorClient
    from app.exec.toolset import ExecTools, exec_toolset
    from app.exec.watching.memory import MemoryWatchStore
    from app.exec.watching.watcher import Watcher

__all__ = (
    "AsyncShell",
    "BubblewrapShell",
    "CommandSpec",
    "CommandValidator",
    "DeleteEntry",
    "Engine",
    "EnvironmentSnapshot",
    "EvalResult",
    "ExecCapability",
    "ExecError",
    "ExecTools",
    "ExecutionResult",
    "HostBackend",
    "HostMount",
    "HostShell",
    "Limits",
    "MemorySessionStore",
    "MemoryWatchStore",
    "MemoryWorkspaceStore",
    "MockShell",
    "Outcome",
    "PodmanSandboxConfig",
    "PodmanSandboxSection",
    "PodmanShell",
    "PodmanShellParams",
    "PodmanShellResult",
    "PodmanWorkspace",
    "SandboxConfig",
    "SandboxSection",
    "Session",
    "SessionEnd",
    "SessionState",
    "Shell",
    "ShellSection",
    "SupervisorClient",
    "SyncShell",
    "VirtualFileSystem",
    "Watcher",
    "WhichResult",
    "WorkspaceSection",
    "WriteFile",
    "cleanup_exec_logs",
    "exec_toolset",
    "make_workspace",
    "shell_of",
)

_HOMES = {
    "backends.host": ("HostBackend",),
    "backends.runner": ("make_workspace",),
    "capability": ("ExecCapability",),
    "engine": ("Engine",),
    "errors": ("ExecError",),
    "limits": ("Limits",),
    "logs": ("cleanup_exec_logs",),
    "memory_store": ("MemorySessionStore", "MemoryWorkspaceStore"),
    "watching.memory": ("MemoryWatchStore",),
    "model": ("CommandSpec", "PodmanWorkspace", "Session", "SessionEnd", "SessionState"),
    "mounts.mount": ("HostMount",),
    "outcome": ("Outcome",),
    "section.changes": ("DeleteEntry", "EvalResult", "VirtualFileSystem", "WriteFile"),
    "section.config": ("PodmanSandboxConfig", "SandboxConfig"),
    "section.podman": ("PodmanSandboxSection",),
    "section.sandbox": ("SandboxSection",),
    "section.short": ("PodmanShellParams", "PodmanShellResult"),
    "shell": (
        "AsyncShell",
        "BubblewrapShell",
        "CommandValidator",
        "EnvironmentSnapshot",
        "ExecutionResult",
        "HostShell",
        "MockShell",
        "PodmanShell",
        "Shell",
        "ShellSection",
        "SyncShell",
        "WhichResult",
        "WorkspaceSection",
        "shell_of",
    ),
    "supervisor.client": ("SupervisorClient",),
    "toolset": ("ExecTools", "exec_toolset"),
    "watching.watcher": ("Watcher",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
