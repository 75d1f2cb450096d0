"""The exec library: run commands so that none is started twice and no end is lost.

Names load when they are first used, so that importing the package loads neither Pydantic AI nor a database.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.exec.backends.host import HostBackend
    from app.exec.capability import ExecCapability
    from app.exec.engine import Engine
    from app.exec.errors import ExecError
    from app.exec.limits import Limits
    from app.exec.logs import cleanup_exec_logs
    from app.exec.memory_store import MemorySessionStore
    from app.exec.model import CommandSpec, Session, SessionEnd, SessionState
    from app.exec.outcome import Outcome
    from app.exec.supervisor.client import SupervisorClient
    from app.exec.toolset import ExecTools, exec_toolset

__all__ = (
    "CommandSpec",
    "Engine",
    "ExecCapability",
    "ExecError",
    "ExecTools",
    "HostBackend",
    "Limits",
    "MemorySessionStore",
    "Outcome",
    "Session",
    "SessionEnd",
    "SessionState",
    "SupervisorClient",
    "cleanup_exec_logs",
    "exec_toolset",
)

_HOMES = {
    "backends.host": ("HostBackend",),
    "capability": ("ExecCapability",),
    "engine": ("Engine",),
    "errors": ("ExecError",),
    "limits": ("Limits",),
    "logs": ("cleanup_exec_logs",),
    "memory_store": ("MemorySessionStore",),
    "model": ("CommandSpec", "Session", "SessionEnd", "SessionState"),
    "outcome": ("Outcome",),
    "supervisor.client": ("SupervisorClient",),
    "toolset": ("ExecTools", "exec_toolset"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
