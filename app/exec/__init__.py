"""The exec library: run commands so that none is started twice and no end is lost.

Names load when they are first used, so that importing the package loads neither Pydantic AI nor a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellback.exec.backends.host import HostBackend
    from shellback.exec.backends.mounts.mount import HostMount
    from shellback.exec.core.errors import ExecError
    from shellback.exec.core.limits import Limits
    from shellback.exec.core.model import CommandSpec, PodmanWorkspace, Session, SessionEnd, SessionState
    from shellback.exec.core.runner import make_workspace
    from shellback.exec.engine.engine import Engine
    from shellback.exec.engine.memory_store import MemorySessionStore, MemoryWorkspaceStore
    from shellback.exec.engine.waiting import Outcome
    from shellback.exec.link.client import SupervisorClient
    from shellback.exec.log.logs import cleanup_exec_logs
    from shellback.exec.section.changes import DeleteEntry, EvalResult, VirtualFileSystem, WriteFile
    from shellback.exec.section.config import (
        PodmanSandboxConfig,
        PodmanShellParams,
        PodmanShellResult,
        SandboxConfig,
    )
    from shellback.exec.section.sandbox import PodmanSandboxSection, SandboxSection
    from shellback.exec.shell import (
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
    from shellback.exec.tools.capability import ExecCapability
    from shellback.exec.tools.toolset import ExecTools, exec_toolset
    from shellback.exec.watching.memory import MemoryWatchStore
    from shellback.exec.watching.watcher import Watcher

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

# All other names are of `shell`.
_HOMES = {
    "backends.host": ("HostBackend",),
    "core.runner": ("make_workspace",),
    "tools.capability": ("ExecCapability",),
    "engine.engine": ("Engine",),
    "core.errors": ("ExecError",),
    "core.limits": ("Limits",),
    "log.logs": ("cleanup_exec_logs",),
    "engine.memory_store": ("MemorySessionStore", "MemoryWorkspaceStore"),
    "watching.memory": ("MemoryWatchStore",),
    "core.model": ("CommandSpec", "PodmanWorkspace", "Session", "SessionEnd", "SessionState"),
    "backends.mounts.mount": ("HostMount",),
    "engine.waiting": ("Outcome",),
    "section.changes": ("DeleteEntry", "EvalResult", "VirtualFileSystem", "WriteFile"),
    "section.config": ("PodmanSandboxConfig", "PodmanShellParams", "PodmanShellResult", "SandboxConfig"),
    "section.sandbox": ("PodmanSandboxSection", "SandboxSection"),
    "link.client": ("SupervisorClient",),
    "tools.toolset": ("ExecTools", "exec_toolset"),
    "watching.watcher": ("Watcher",),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "shell")
    return getattr(import_module(f"{__name__}.{home}"), name)
