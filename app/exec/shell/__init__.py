"""One shell for every place where commands run. Names load when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shellback.exec.shell.async_shell import AsyncShell
    from shellback.exec.shell.facade import SyncFiles, SyncShell, ToolContext, ToolResult
    from shellback.exec.shell.mock import MockAsyncShell, MockFilesystem, MockShell
    from shellback.exec.shell.protocol import (
        EnvironmentSnapshot,
        ExecutionResult,
        Filesystem,
        Shell,
        ShellSection,
        WhichResult,
        WorkspaceSection,
        shell_of,
    )
    from shellback.exec.shell.running import Chunk, Running, ShellSession
    from shellback.exec.shell.standalone import BubblewrapShell, DockerShell, HostShell, PodmanShell
    from shellback.exec.shell.suite import ShellProtocolTests, ShellShapeTests
    from shellback.exec.shell.words import DEFAULT_BLOCKED, CommandValidator

__all__ = (
    "DEFAULT_BLOCKED",
    "AsyncShell",
    "BubblewrapShell",
    "Chunk",
    "CommandValidator",
    "DockerShell",
    "EnvironmentSnapshot",
    "ExecutionResult",
    "Filesystem",
    "HostShell",
    "MockAsyncShell",
    "MockFilesystem",
    "MockShell",
    "PodmanShell",
    "Running",
    "Shell",
    "ShellProtocolTests",
    "ShellSection",
    "ShellSession",
    "ShellShapeTests",
    "SyncFiles",
    "SyncShell",
    "ToolContext",
    "ToolResult",
    "WhichResult",
    "WorkspaceSection",
    "shell_of",
)

_HOMES = {
    "async_shell": ("AsyncShell",),
    "facade": ("SyncFiles", "SyncShell", "ToolContext", "ToolResult"),
    "mock": ("MockAsyncShell", "MockFilesystem", "MockShell"),
    "protocol": (
        *("EnvironmentSnapshot", "ExecutionResult", "Filesystem", "Shell", "ShellSection"),
        *("WhichResult", "WorkspaceSection", "shell_of"),
    ),
    "running": ("Chunk", "Running", "ShellSession"),
    "standalone": ("BubblewrapShell", "DockerShell", "HostShell", "PodmanShell"),
    "suite": ("ShellProtocolTests", "ShellShapeTests"),
    "words": ("DEFAULT_BLOCKED", "CommandValidator"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
