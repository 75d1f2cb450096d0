"""Shell tools for queued agents: nothing lost, nothing run twice, nothing run that was not approved.

The names in `__all__` load at first use, so importing the package loads neither DBOS nor Pydantic AI. `docs/library.md`
has an example of each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "shellback":
    raise ImportError(
        f"import `shellback`, not `{__name__}`: the directory `app` holds the package `shellback`, "
        "and a module that has two names exists twice"
    )

if TYPE_CHECKING:
    from shellback.client.client import AsyncClient, Client
    from shellback.exec import (
        AsyncShell,
        BubblewrapShell,
        Engine,
        ExecCapability,
        ExecError,
        ExecTools,
        ExecutionResult,
        HostBackend,
        HostShell,
        MemorySessionStore,
        MockShell,
        PodmanShell,
        Shell,
        SupervisorClient,
        exec_toolset,
        make_workspace,
    )
    from shellback.exec.shell.permit import ByOperator
    from shellback.storage.db import Database
    from shellback.storage.sessions import SqlSessionStore

__all__ = (
    "AsyncClient",
    "AsyncShell",
    "BubblewrapShell",
    "ByOperator",
    "Client",
    "Database",
    "Engine",
    "ExecCapability",
    "ExecError",
    "ExecTools",
    "ExecutionResult",
    "HostBackend",
    "HostShell",
    "MemorySessionStore",
    "MockShell",
    "PodmanShell",
    "Shell",
    "SqlSessionStore",
    "SupervisorClient",
    "exec_toolset",
    "make_workspace",
)

_HOMES = {
    "AsyncClient": "client.client",
    "ByOperator": "exec.shell.permit",
    "Client": "client.client",
    "Database": "storage.db",
    "SqlSessionStore": "storage.sessions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'exec')}"), name)
