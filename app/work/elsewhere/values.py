"""What the code of tools gives to its host and gets back: arguments, results and errors, as JSON."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Final, cast

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceError,
    WorkspaceOutputLimitError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from shellback.exec.core.errors import (
    BackendUnavailable,
    CommandDenied,
    ExecError,
    InvalidCommand,
    PathOutsideSandbox,
    SpawnFailed,
    SupervisorUnreachable,
    WorkspaceUnusable,
)
from shellback.exec.files.entries import Entry
from shellback.exec.shell.protocol import EnvironmentSnapshot, ExecutionResult, WhichResult

_KINDS: Final[Mapping[str, Any]] = {
    one.__name__: one for one in (CommandResult, Entry, EnvironmentSnapshot, ExecutionResult, FileEntry, WhichResult)
}
_ERRORS: Final[Mapping[str, type[Exception]]] = {
    one.__name__: one
    for one in (
        *(BackendUnavailable, CommandDenied, ExecError, InvalidCommand, PathOutsideSandbox, SpawnFailed),
        SupervisorUnreachable,
        *(WorkspaceError, WorkspaceOutputLimitError, WorkspaceTimeoutError, WorkspaceUnavailableError),
        *(WorkspaceUnusable, PermissionError, TimeoutError, TypeError, ValueError),
    )
}
_MORE: Final = ("stdout", "stderr", "limit")
"""Attributes that some errors of a workspace have."""


def sent(value: object) -> Any:
    """A value as it is sent; sequences come back as tuples.

    Raises:
        TypeError: It is none that code of tools gives or gets.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(cast("bytes", value)).decode("ascii")}
    if isinstance(value, Mapping):
        found = cast("Mapping[Any, Any]", value)
        if not all(isinstance(name, str) for name in found):
            raise TypeError("names have to be strings")
        return {"map": _each(found)}
    if isinstance(value, Entry):
        return {"kind": kind, "facts": _each(value._asdict())}
    if kind in _KINDS and is_dataclass(value) and not isinstance(value, type):
        return {"kind": kind, "facts": _each(asdict(value))}
    if isinstance(value, Sequence):
        return [sent(one) for one in cast("Sequence[Any]", value)]
    raise TypeError(f"{kind} cannot be sent to another machine")


def _each(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sent(one) for name, one in facts.items()}


def came(value: Any) -> Any:
    """A value that was sent."""
    if isinstance(value, list):
        return tuple(map(came, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return value
    told = cast("dict[str, Any]", value)
    if "bytes" in told:
        return base64.b64decode(told["bytes"])
    facts = {name: came(one) for name, one in (told["map"] if "map" in told else told["facts"]).items()}
    return facts if "map" in told else _KINDS[told["kind"]](**facts)


def failure(error: Exception) -> dict[str, Any] | None:
    """An error as it is sent; None for one that code does not expect, which is a fault of the host."""
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return {"os": [error.errno, error.strerror, None if error.filename is None else os.fsdecode(error.filename)]}
    known = [one for one in type(error).__mro__ if _ERRORS.get(one.__name__) is one]
    if not known:
        return None
    # What Python's own code would catch says more than our root.
    kind = min(known, key=lambda one: one is ExecError).__name__
    more = {name: getattr(error, name) for name in _MORE if hasattr(error, name)}
    return {"error": kind, "text": str(error), "more": more}


def raised(told: Mapping[str, Any]) -> Exception:
    """The error that was sent."""
    if "os" in told:
        return OSError(*told["os"])
    return _ERRORS[told["error"]](told["text"], **told["more"])
