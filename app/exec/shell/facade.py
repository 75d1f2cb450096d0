"""The synchronous shell: calls from any thread, run by an event loop in another one; and what handlers of tools get."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.protocol import AsyncFilesystem, Filesystem, Shell

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_CLOSED = "this shell has been closed; make another one"


def _waited(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The same method for threads, of what has the other one as `asynchronous`, and `run`."""

    @functools.wraps(method)
    def call(self: SyncShell | SyncFiles, *args: P.args, **options: P.kwargs) -> T:
        return self.run(lambda: getattr(self.asynchronous, method.__name__)(*args, **options))

    return call


class SyncShell:
    """A `Shell` over an `AsyncShell` whose engine lives on `loop`. Any number of threads may call it at once.

    A call on a running event loop would stop that loop, so it is refused.
    """

    def __init__(self, shell: AsyncShell, loop: asyncio.AbstractEventLoop | None) -> None:
        self.asynchronous = shell
        """The shell underneath, for coroutines on the engine's own loop: see `run`."""
        self._loop = loop
        self._calls: set[Future[Any]] = set()
        self._entering = threading.Lock()
        self._left = False
        self._pid = os.getpid()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say on which loop the engine lives, where that was not known from the beginning."""
        self._loop = loop

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work()` on the engine's loop and wait for what it returns; interrupting the wait cancels it.

        Raises:
            RuntimeError: This thread runs an event loop, or the engine's loop has stopped.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
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
            return future.result()
        except CancelledError:
            # By whoever stops the loop: nobody else has the future.
            raise RuntimeError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)

    def leave(self) -> None:
        """Refuse calls from now on; those under way go on."""
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

    execute = _waited(AsyncShell.execute)
    execute_script = _waited(AsyncShell.execute_script)
    which = _waited(AsyncShell.which)
    env = _waited(AsyncShell.env)


class SyncFiles:
    """A `Filesystem` over an asynchronous one; `run` is that of the shell which works on the same files."""

    def __init__(self, files: AsyncFilesystem, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self.asynchronous = files
        """The files underneath, for coroutines."""
        self.run = run

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode()

    def write(self, path: str, content: str) -> object:
        return self.write_bytes(path, content.encode())

    read_bytes = _waited(AsyncFilesystem.read_bytes)
    write_bytes = _waited(AsyncFilesystem.write_bytes)
    stat = _waited(AsyncFilesystem.stat)
    list_dir = _waited(AsyncFilesystem.list_dir)
    exists = _waited(AsyncFilesystem.exists)
    make_dir = _waited(AsyncFilesystem.make_dir)
    remove = _waited(AsyncFilesystem.remove)


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
