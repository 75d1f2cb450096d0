"""The synchronous shell: calls from any thread, run by an event loop in another one; and what handlers of tools get."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.protocol import (
    AsyncFilesystem,
    EnvironmentSnapshot,
    EnvMode,
    ExecutionResult,
    Filesystem,
    Shell,
    Stat,
    WhichResult,
)

T = TypeVar("T")
V = TypeVar("V")

_CLOSED = "this shell has been closed; make another one"


class SyncShell:
    """A `Shell` over an `AsyncShell` whose engine lives on `loop`. Any number of threads may call it at once.

    A call on a running event loop would stop that loop, so it is refused.
    """

    def __init__(self, shell: AsyncShell, loop: asyncio.AbstractEventLoop | None) -> None:
        self._shell = shell
        self._loop = loop
        self._calls: set[Future[Any]] = set()
        self._entering = threading.Lock()
        self._left = False
        self._pid = os.getpid()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say on which loop the engine lives, where that was not known from the beginning."""
        self._loop = loop

    @property
    def asynchronous(self) -> AsyncShell:
        """The shell underneath, for coroutines on the engine's own loop: see `run`."""
        return self._shell

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
        return self._shell.backend_name

    @property
    def sandboxed(self) -> bool:
        return self._shell.sandboxed

    @property
    def network_enabled(self) -> bool:
        return self._shell.network_enabled

    @property
    def default_timeout(self) -> float:
        return self._shell.default_timeout

    def execute(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | None = None,
        timeout_seconds: float | None = None,
        capture_output: bool = True,
    ) -> ExecutionResult:
        """See `Shell.execute`; without `timeout_seconds` it is `default_timeout`."""
        return self.run(
            lambda: self._shell.execute(
                command, cwd=cwd, env=env, env_mode=env_mode, stdin=stdin, timeout_seconds=timeout_seconds,
                capture_output=capture_output,
            )
        )  # fmt: skip

    def execute_script(
        self,
        script: str,
        *,
        interpreter: str = "/bin/bash",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        timeout_seconds: float | None = None,
        capture_output: bool = True,
    ) -> ExecutionResult:
        return self.run(
            lambda: self._shell.execute_script(
                script, interpreter=interpreter, cwd=cwd, env=env, env_mode=env_mode, timeout_seconds=timeout_seconds,
                capture_output=capture_output,
            )
        )  # fmt: skip

    def which(self, command: str) -> WhichResult:
        return self.run(lambda: self._shell.which(command))

    def env(self) -> EnvironmentSnapshot:
        return self.run(self._shell.env)


class SyncFiles:
    """A `Filesystem` over an asynchronous one; `run` is that of the shell which works on the same files."""

    def __init__(self, files: AsyncFilesystem, run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]) -> None:
        self._files = files
        self._run = run

    @property
    def asynchronous(self) -> AsyncFilesystem:
        """The files underneath, for coroutines."""
        return self._files

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode()

    def write(self, path: str, content: str) -> object:
        return self.write_bytes(path, content.encode())

    def read_bytes(self, path: str) -> bytes:
        return self._run(lambda: self._files.read_bytes(path))

    def write_bytes(self, path: str, data: bytes) -> object:
        return self._run(lambda: self._files.write_bytes(path, data))

    def stat(self, path: str) -> Stat:
        return self._run(lambda: self._files.stat(path))

    def list_dir(self, path: str = ".") -> Sequence[Stat]:
        return self._run(lambda: self._files.list_dir(path))

    def exists(self, path: str) -> bool:
        return self._run(lambda: self._files.exists(path))

    def make_dir(self, path: str) -> object:
        return self._run(lambda: self._files.make_dir(path))

    def remove(self, path: str) -> object:
        return self._run(lambda: self._files.remove(path))


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
