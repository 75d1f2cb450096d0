"""What the handler of a tool works with, and how it answers: the same in a worker, in a sandbox and in a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from shellback.exec.shell.async_shell import AsyncShell
    from shellback.exec.shell.protocol import AsyncFilesystem, Filesystem, Shell

T = TypeVar("T")
V = TypeVar("V")


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """A shell and the files that it works on; all are None where there is no workspace.

    `shell` and `filesystem` wait for what they do: they are for plain functions, which Pydantic AI runs in a thread.
    `async_shell` and `async_filesystem` are the same for code on the event loop.
    """

    shell: Shell | None = field(default=None, repr=False, compare=False)
    filesystem: Filesystem | None = field(default=None, repr=False, compare=False)
    async_shell: AsyncShell | None = field(default=None, repr=False, compare=False)
    async_filesystem: AsyncFilesystem | None = field(default=None, repr=False, compare=False)

    def beat(self) -> None:
        """Do nothing: a worker's heart beats on while a call waits. It is here for handlers that tell they live."""


@dataclass(slots=True, frozen=True)
class ToolResult(Generic[T]):
    """What a handler answers: a value, or why there is none."""

    message: str
    value: T | None
    success: bool = True

    @staticmethod
    def ok(value: V, message: str = "") -> ToolResult[V]:
        """What was asked for."""
        return ToolResult(message, value)

    @staticmethod
    def error(message: str) -> ToolResult[Any]:
        """Why it could not be done."""
        return ToolResult(message, None, success=False)
