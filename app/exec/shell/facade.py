"""The synchronous shell, whose calls run on an event loop in another thread; and the context of tool handlers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from shellback.exec.core.waits import refuse_on_a_loop, result_of, waited
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.protocol import AsyncFilesystem, Filesystem, Shell

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_CLOSED = "this shell has been closed; make another one"


class SyncShell:
    """A `Shell` over an `AsyncShell` whose engine runs on `loop`. Any number of threads may call it at once.

    A call on a running event loop would block that loop, so it is refused.
    """

    def __init__(self, shell: AsyncShell, loop: asyncio.AbstractEventLoop | None) -> None:
        self.asynchronous = shell
        """The asynchronous shell, for coroutines on the engine's own loop; see `run`."""
        self._loop = loop
        self._calls: set[Future[Any]] = set()
        self._entering = threading.Lock()
        self._left = False
        self._pid = os.getpid()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop of the engine, if it was unknown at first."""
        self._loop = loop

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` on the engine's loop and wait for its result; an interrupted wait cancels it.

        Raises:
            RuntimeError: This thread runs an event loop, or the engine's loop has stopped.
        """
        refuse_on_a_loop(
            "a synchronous shell was called on a running event loop, which it would stop: "
            "use AsyncShell, or `await asyncio.to_thread(shell.execute, ...)`; in a tool, ctx.deps.async_shell"
        )
        if os.getpid() != self._pid:
            raise RuntimeError("this shell is that of the process which this one was forked from; make another one")
        with self._entering:
            if self._loop is None and not self._left:
                raise RuntimeError("nothing of this shell's section was started yet: enter it (`async with`) first")
            if self._loop is None or self._left or self._loop.is_closed() or not self._loop.is_running():
                raise RuntimeError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._calls.add(future)
        try:
            return result_of(future, _CLOSED)
        finally:
            self._calls.discard(future)

    def leave(self) -> None:
        """Refuse new calls; running calls continue."""
        with self._entering:
            self._left = True

    @property
    def backend_name(self) -> str:
        return self.asynchronous.backend_name

    @property
    def sandboxed(self) -> bool:
        return self.asynchronous.sandboxed

    @property
    def network_enabled(self) -> bool:
        return self.asynchronous.network_enabled

    @property
    def default_timeout(self) -> float:
        return self.asynchronous.default_timeout

    execute = waited(AsyncShell.execute)
    execute_script = waited(AsyncShell.execute_script)
    which = waited(AsyncShell.which)
    env = waited(AsyncShell.env)


class SyncFiles:
    """A `Filesystem` over an asynchronous one; `run` is the method of the shell with the same files."""

    def __init__(self, files: AsyncFilesystem, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self.asynchronous = files
        """The asynchronous files, for coroutines."""
        self.run = run

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode()

    def write(self, path: str, content: str) -> object:
        return self.write_bytes(path, content.encode())

    read_bytes = waited(AsyncFilesystem.read_bytes)
    write_bytes = waited(AsyncFilesystem.write_bytes)
    stat = waited(AsyncFilesystem.stat)
    list_dir = waited(AsyncFilesystem.list_dir)
    exists = waited(AsyncFilesystem.exists)
    make_dir = waited(AsyncFilesystem.make_dir)
    remove = waited(AsyncFilesystem.remove)


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """A shell and its files; all are None without a workspace.

    `shell` and `filesystem` block: they are for plain functions, which Pydantic AI runs in threads. `async_shell` and
    `async_filesystem` are for code on the event loop.
    """

    shell: Shell | None = field(default=None, repr=False, compare=False)
    filesystem: Filesystem | None = field(default=None, repr=False, compare=False)
    async_shell: AsyncShell | None = field(default=None, repr=False, compare=False)
    async_filesystem: AsyncFilesystem | None = field(default=None, repr=False, compare=False)

    def beat(self) -> None:
        """Do nothing: the worker's heartbeat continues anyway. It exists for handlers that report progress."""


@dataclass(slots=True, frozen=True)
class ToolResult(Generic[T]):
    """The result of a handler: a value, or an error."""

    message: str
    value: T | None
    success: bool = True

    @staticmethod
    def ok(value: V, message: str = "") -> ToolResult[V]:
        """A successful result."""
        return ToolResult(message, value)

    @staticmethod
    def error(message: str) -> ToolResult[Any]:
        """A failure and its reason."""
        return ToolResult(message, None, success=False)
