"""The protocol of shells and files, their results, and how to find the shell of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent


EnvMode = Literal["replace", "extend"]


@runtime_checkable
class Shell(Protocol):
    """Runs commands and waits for their ends; many threads may call it.

    Everything is bounded: a timeout ends the whole process tree, and output beyond the limit loses its middle.
    """

    def execute(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | None = None,
        timeout_seconds: float = 30.0,
        capture_output: bool = True,
    ) -> ExecutionResult:
        """Run a command: a string through bash, a sequence as exactly these words, without a shell.

        `env` extends the environment, or replaces all of it but PATH (`env_mode` "replace"). `stdin` is at most 64 KiB.
        `timeout_seconds` is 0.1 to 600; a timeout is a result (`timed_out`), never an exception. Without
        `capture_output` both texts are "".

        Raises:
            ValueError: Command, timeout, cwd, env or stdin is invalid.
            PermissionError: Policy refuses the command.
            RuntimeError: Commands cannot run here, or the end of this one is unknown.
        """
        ...

    def execute_script(
        self,
        script: str,
        *,
        interpreter: str = "/bin/bash",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        timeout_seconds: float = 30.0,
        capture_output: bool = True,
    ) -> ExecutionResult:
        """Run a script of at most 1 MiB with an interpreter; it leaves nothing on disk.

        Raises:
            ValueError: The script is empty, the interpreter is missing or no absolute path; or as `execute`.
            PermissionError: Policy refuses the interpreter or a command of the script.
            RuntimeError: As `execute`.
        """
        ...

    def which(self, command: str) -> WhichResult:
        """Find a program where commands run, whether it may be run or not; never raises."""
        ...

    def env(self) -> EnvironmentSnapshot:
        """The environment of a command."""
        ...

    @property
    def backend_name(self) -> str:
        """`host`, `bubblewrap`, `podman` or `mock`."""
        ...

    @property
    def sandboxed(self) -> bool:
        """Whether commands are isolated from the host."""
        ...

    @property
    def network_enabled(self) -> bool:
        """Whether commands reach the network, or listed hosts of it."""
        ...

    @property
    def default_timeout(self) -> float:
        """The timeout in seconds of a call that names none."""
        ...


class Stat(Protocol):
    """The status of a file or directory."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def is_dir(self) -> bool: ...
    @property
    def size(self) -> int | None: ...


@runtime_checkable
class Filesystem(Protocol):
    """The files of a workspace, for code in threads.

    Paths are as commands see them, or relative to the workspace. Methods raise as Python's own calls do
    (`FileNotFoundError`, `PermissionError`, ...), and ValueError for a path outside the workspace.
    """

    def read(self, path: str) -> str:
        """The whole file as UTF-8."""
        ...

    def write(self, path: str, content: str) -> object:
        """Write the whole file as UTF-8, and make its missing parents."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole file."""
        ...

    def write_bytes(self, path: str, data: bytes) -> object:
        """Write the whole file, and make its missing parents."""
        ...

    def stat(self, path: str) -> Stat:
        """The status of a path, symlinks followed."""
        ...

    def list_dir(self, path: str = ".") -> Sequence[Stat]:
        """The entries of a directory, sorted by name."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        ...

    def make_dir(self, path: str) -> object:
        """Make a directory and its missing parents."""
        ...

    def remove(self, path: str) -> object:
        """Remove a file, or a directory with everything in it."""
        ...


class AsyncFilesystem(Protocol):
    """The same for code on the event loop; `shellback.exec.files.files.Files` implements it."""

    async def read_bytes(self, path: str) -> bytes: ...
    async def write_bytes(self, path: str, data: bytes) -> object: ...
    async def stat(self, path: str) -> Stat: ...
    async def list_dir(self, path: str = ".") -> Sequence[Stat]: ...
    async def make_dir(self, path: str) -> object: ...
    async def remove(self, path: str) -> object: ...
    async def exists(self, path: str) -> bool: ...
    async def realpath(self, path: str) -> str: ...


@runtime_checkable
class ShellSection(Protocol):
    """A capability of an agent that has a shell."""

    @property
    def shell(self) -> Shell:
        """The shell that it manages."""
        ...


@runtime_checkable
class WorkspaceSection(Protocol):
    """A capability of an agent that has a shell and its files."""

    @property
    def filesystem(self) -> Filesystem:
        """The files that it manages."""
        ...

    @property
    def shell(self) -> Shell:
        """The shell that it manages."""
        ...


def shell_of(agent: AbstractAgent[Any, Any]) -> Shell | None:
    """The shell of the agent's first capability that has one, at any depth; None if none has one."""
    found: list[Shell] = []

    def look(capability: object) -> None:
        if isinstance(capability, ShellSection):
            found.append(capability.shell)

    agent.root_capability.apply(look)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of a command.

    `exit_code` is the command's own, or minus the number of the signal that ended it, or -1 after a timeout. `signal`
    is that number or None. `stdout` and `stderr` are UTF-8 with replacement characters; `truncated`: the middle of one
    of them is missing. `duration_seconds` is wall-clock time.
    """

    exit_code: int
    stdout: str
    stderr: str
    command: tuple[str, ...]
    cwd: str
    duration_seconds: float
    truncated: bool
    timed_out: bool
    signal: int | None

    @property
    def success(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class WhichResult:
    """The absolute path of a program, or None."""

    command: str
    path: str | None

    @property
    def found(self) -> bool:
        """Whether the program exists."""
        return self.path is not None


@dataclass(frozen=True, slots=True)
class EnvironmentSnapshot:
    """The environment of a command: variables as (name, value), directory, and shell."""

    variables: tuple[tuple[str, str], ...]
    cwd: str
    shell: str

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a variable, or `default`."""
        return next((value for known, value in self.variables if known == name), default)

    def to_dict(self) -> dict[str, str]:
        """The variables as a new dictionary."""
        return dict(self.variables)
