"""Shells and files for tests: registered answers and recorded calls; nothing runs, and no disk is touched."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shellback.exec.core.errors import PathOutsideSandbox
from shellback.exec.core.limits import FOREGROUND_TIMEOUT_S
from shellback.exec.core.model import Delivery, Session, SessionEnd, SessionId, SessionState
from shellback.exec.persistent import Executed, Read
from shellback.exec.shell.async_shell import AsyncShell
from shellback.exec.shell.protocol import EnvironmentSnapshot, ExecutionResult, WhichResult
from shellback.exec.shell.running import Chunk, Running, ShellSession


@dataclass(slots=True)
class MockShell:
    """Answers by the first registered pattern in the command's text, else by `default_result`, else with success.

    `execute_calls` has (command, keyword arguments) of each call, including scripts. `which` finds `programs`.
    """

    default_result: ExecutionResult | None = None
    execute_calls: list[tuple[str | Sequence[str], dict[str, Any]]] = field(
        default_factory=list[tuple[str | Sequence[str], dict[str, Any]]]
    )
    programs: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    _responses: dict[str, ExecutionResult] = field(default_factory=dict[str, ExecutionResult])

    backend_name = "mock"
    sandboxed = True
    network_enabled = False
    default_timeout = FOREGROUND_TIMEOUT_S

    def add_response(self, pattern: str, result: ExecutionResult) -> None:
        """Answer commands that contain `pattern` with `result`; the first registered pattern wins."""
        self._responses[pattern] = result

    def execute(self, command: str | Sequence[str], **kwargs: Any) -> ExecutionResult:
        """Record and answer the call."""
        text = command if isinstance(command, str) else " ".join(command)
        self.execute_calls.append((command, kwargs))
        plain = ExecutionResult(0, "", "", (text,), "/", 0.0, truncated=False, timed_out=False, signal=None)
        known = (result for pattern, result in self._responses.items() if pattern in text)
        return next(known, self.default_result or plain)

    def execute_script(self, script: str, **kwargs: Any) -> ExecutionResult:
        """Record and answer the call, with the script as its command."""
        return self.execute(script, **kwargs)

    def which(self, command: str) -> WhichResult:
        return WhichResult(command, self.programs.get(command))

    def env(self) -> EnvironmentSnapshot:
        return EnvironmentSnapshot(tuple(self.variables.items()), "/", "/bin/bash")


class MockAsyncShell(AsyncShell):
    """The same for code on the event loop; it answers and records through `mock`, which threads may use too.

    A background command ends at once, and a persistent shell answers each command; `calls` of both has their calls.
    """

    def __init__(self, mock: MockShell | None = None) -> None:
        self.mock = mock or MockShell()
        self.default_timeout = FOREGROUND_TIMEOUT_S

    @property
    def backend_name(self) -> str:
        return self.mock.backend_name

    @property
    def sandboxed(self) -> bool:
        return self.mock.sandboxed

    @property
    def network_enabled(self) -> bool:
        return self.mock.network_enabled

    async def execute(self, command: str | Sequence[str], **kwargs: Any) -> ExecutionResult:
        return self.mock.execute(command, **kwargs)

    async def execute_script(self, script: str, **kwargs: Any) -> ExecutionResult:
        return self.mock.execute_script(script, **kwargs)

    async def which(self, command: str) -> WhichResult:
        return self.mock.which(command)

    async def env(self) -> EnvironmentSnapshot:
        return self.mock.env()

    async def spawn(self, command: str | Sequence[str], **kwargs: Any) -> MockRunning:
        """Record the call; its answer is the result of the command."""
        return MockRunning(self.mock.execute(command, **kwargs))

    async def session(self, **kwargs: Any) -> MockShellSession:  # noqa: ARG002 - the protocol's
        """A persistent shell, which answers commands in the same way."""
        return MockShellSession(self.mock)

    async def stream(self, command: str | Sequence[str], **kwargs: Any) -> AsyncGenerator[Chunk]:
        """Record the call and yield its answer, each stream in one piece."""
        async for chunk in MockRunning(self.mock.execute(command, **kwargs)).stream():
            yield chunk


class _Recorder:
    """Records its calls in `calls`."""

    def __init__(self) -> None:
        self.id = SessionId("mock")
        self.calls: list[tuple[str, Any]] = []

    async def write(self, data: str | bytes) -> int:
        self.calls.append(("write", data))
        return len(data.encode() if isinstance(data, str) else data)

    async def resize(self, rows: int, cols: int) -> None:
        self.calls.append(("resize", (rows, cols)))


class MockRunning(_Recorder, Running):
    """A command that has ended with its answer."""

    def __init__(self, result: ExecutionResult) -> None:
        super().__init__()
        self.command, self.cwd = result.command, result.cwd
        self._answer = result

    async def session(self) -> Session:
        """A session that nobody has started."""
        return _session(" ".join(self.command), self._answer)

    async def wait(self, timeout_seconds: float | None = None) -> ExecutionResult:  # noqa: ARG002
        return self._answer

    async def result(self, session: Session, *, capture: bool = True) -> ExecutionResult:  # noqa: ARG002
        return self._answer

    async def output(self) -> tuple[str, str]:
        return self._answer.stdout, self._answer.stderr

    async def stream(self) -> AsyncGenerator[Chunk]:
        """Each stream of the answer in one piece."""
        for chunk in (Chunk("stdout", self._answer.stdout), Chunk("stderr", self._answer.stderr)):
            if chunk.text:
                yield chunk

    async def close_stdin(self) -> None:
        self.calls.append(("close_stdin", None))

    async def send_signal(self, number: int) -> None:
        self.calls.append(("send_signal", number))

    async def kill(self) -> ExecutionResult:
        self.calls.append(("kill", None))
        return self._answer


class MockShellSession(_Recorder, ShellSession):
    """A persistent shell that runs nothing."""

    def __init__(self, mock: MockShell) -> None:
        super().__init__()
        self.prompt = "$ "
        self._mock = mock

    async def session(self) -> Session:
        """A session that nobody has started."""
        return _session("bash")

    async def exec(self, command: str, *, timeout_seconds: float = 30.0, raw: bool = False) -> Executed:
        """Record and answer the call; both streams are one."""
        result = self._mock.execute(command, timeout_seconds=timeout_seconds, raw=raw)
        code, output = None if result.timed_out else result.exit_code, result.stdout + result.stderr
        return Executed(
            session=_session("bash"), output=output, exit_code=code, cwd=result.cwd, timed_out=result.timed_out
        )

    async def read(self, *, raw: bool = False) -> Read:  # noqa: ARG002
        """Nothing was printed."""
        return Read(session=_session("bash"), output="", alive=True)

    async def close(self) -> None:
        self.calls.append(("close", None))


class MockEntry(NamedTuple):
    """An entry of `MockFilesystem`."""

    name: str
    path: str
    is_dir: bool
    size: int | None


@dataclass(slots=True)
class MockFilesystem:
    """Files in memory, by paths relative to `root`; a directory exists while it has an entry."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    root: str = "/workspace"

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode()

    def write(self, path: str, content: str) -> None:
        self.write_bytes(path, content.encode())

    def read_bytes(self, path: str) -> bytes:
        if self.stat(path).is_dir:
            raise _error(errno.EISDIR, path)
        return self.files[self._name(path)]

    def write_bytes(self, path: str, data: bytes) -> None:
        if self.exists(path) and self.stat(path).is_dir:
            raise _error(errno.EISDIR, path)
        self.files[self._name(path)] = bytes(data)

    def stat(self, path: str) -> MockEntry:
        name = self._name(path)
        data = self.files.get(name)
        if data is None and name and not self._below(name):
            raise _error(errno.ENOENT, path)
        size = None if data is None else len(data)
        return MockEntry(posixpath.basename(name), posixpath.join(self.root, name), data is None, size)

    def list_dir(self, path: str = ".") -> list[MockEntry]:
        if not self.stat(path).is_dir:
            raise _error(errno.ENOTDIR, path)
        at = self._name(path)
        start = len(at) + 1 if at else 0
        names = {name[start:].partition("/")[0] for name in self._below(at)}
        return [self.stat(posixpath.join(at, name)) for name in sorted(names)]

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def make_dir(self, path: str) -> None:
        """Do nothing, unless a file has this path: files need no directories here."""
        if self.exists(path) and not self.stat(path).is_dir:
            raise _error(errno.EEXIST, path)

    def remove(self, path: str) -> None:
        self.stat(path)
        name = self._name(path)
        if not name:
            raise _error(errno.EBUSY, path)
        for one in [name, *self._below(name)]:
            self.files.pop(one, None)

    def _below(self, name: str) -> list[str]:
        return [one for one in self.files if not name or one.startswith(f"{name}/")]

    def _name(self, path: str) -> str:
        found = posixpath.relpath(posixpath.join(self.root, path), self.root)
        if found == ".." or found.startswith("../"):
            raise PathOutsideSandbox(f"{path!r} is outside of {self.root}")
        return "" if found == "." else found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _session(command: str, result: ExecutionResult | None = None) -> Session:
    end = None
    if result is not None:
        state = SessionState.TIMED_OUT if result.timed_out else SessionState.EXITED
        end = SessionEnd(state=state, exit_code=None if result.timed_out else result.exit_code, duration_s=0.0)
    return Session(
        id=SessionId("mock"), conversation_id="", tool_call_id="", turn_id="", epoch=0, host_id="", boot_id="", uid=0,
        backend="mock", profile="work", command=command, cwd="/", workspace="/", pty=False, background=False,
        separate_stderr=True, stdin_open=False, lifetime="conversation", delivery=Delivery.SETTLED,
        state=SessionState.RUNNING if end is None else end.state, log_path="", end=end,
    )  # fmt: skip
