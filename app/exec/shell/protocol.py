"""What a shell is, whatever runs its commands, what it gives back, and where an agent's is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent


EnvMode = Literal["replace", "extend"]


@runtime_checkable
class Shell(Protocol):
    """Runs commands, one call at a time or from many threads, and waits for their ends.

    Nothing is unbounded: a timeout ends the whole tree of processes, output beyond the limit is left out in its middle.
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
        """Run a command: a string through bash, a sequence as exactly these words, without a shell's reading of them.

        `env` is added to the environment, or is all of it but PATH (`env_mode` "replace"). `stdin` is at most 64 KiB.
        `timeout_seconds` is 0.1 to 600; being out of time is a result (`timed_out`), never an exception. Without
        `capture_output` both texts are "".

        Raises:
            ValueError: Command, timeout, cwd, env or stdin is not acceptable.
            PermissionError: Policy refuses the command.
            RuntimeError: Commands cannot run here, or how this one ended is not known.
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
        """Run a script of at most 1 MiB with an interpreter; nothing of it stays on disk.

        Raises:
            ValueError: The script is empty, the interpreter is missing or no absolute path; else as `execute`.
            PermissionError: Policy refuses the interpreter or a command of the script.
            RuntimeError: As `execute`.
        """
        ...

    def which(self, command: str) -> WhichResult:
        """Find the program of a name, where commands run; never an error, whether it may be run or not."""
        ...

    def env(self) -> EnvironmentSnapshot:
        """What a command would be given."""
        ...

    @property
    def backend_name(self) -> str:
        """`host`, `bubblewrap`, `podman` or `mock`."""
        ...

    @property
    def sandboxed(self) -> bool:
        """Whether commands are kept apart from the host."""
        ...

    @property
    def network_enabled(self) -> bool:
        """Whether commands reach the network."""
        ...

    @property
    def default_timeout(self) -> float:
        """Seconds that a command has when a call names none."""
        ...


class Stat(Protocol):
    """What is known of a file or directory."""

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

    Paths are as commands see them, or relative to the workspace. Everything raises what Python's own calls do
    (`FileNotFoundError`, `PermissionError`, ...), and ValueError for a path that leads out of the workspace.
    """

    def read(self, path: str) -> str:
        """All of a file as UTF-8."""
        ...

    def write(self, path: str, content: str) -> object:
        """Write all of a file as UTF-8, and make the directories that it is in."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """All of a file."""
        ...

    def write_bytes(self, path: str, data: bytes) -> object:
        """As `write`, bytes as they are."""
        ...

    def stat(self, path: str) -> Stat:
        """What is there, links followed."""
        ...

    def list_dir(self, path: str = ".") -> Sequence[Stat]:
        """What a directory holds, sorted by name."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something."""
        ...

    def make_dir(self, path: str) -> object:
        """Make a directory and those that it is in."""
        ...

    def remove(self, path: str) -> object:
        """Remove a file, or a directory with all that it holds."""
        ...


class AsyncFilesystem(Protocol):
    """The same for code on the event loop; `shellback.exec.files.files.Files` is one, and what guards it."""

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
    """A part of an agent that has a shell: a capability with this property."""

    @property
    def shell(self) -> Shell:
        """The shell that it manages."""
        ...


@runtime_checkable
class WorkspaceSection(Protocol):
    """A part of an agent that has a shell and the files that it works on."""

    @property
    def filesystem(self) -> Filesystem:
        """The files that it manages."""
        ...

    @property
    def shell(self) -> Shell:
        """The shell that it manages."""
        ...


def shell_of(agent: AbstractAgent[Any, Any]) -> Shell | None:
    """The shell of the agent's capability that has one, at any depth; None where none has.

    The same object as the capability's own. The first one counts.
    """
    found: list[Shell] = []

    def look(capability: object) -> None:
        if isinstance(capability, ShellSection):
            found.append(capability.shell)

    agent.root_capability.apply(look)
    return found[0] if found else None


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How a command went, and what it printed.

    `exit_code` is the command's own; minus the number of the signal that ended it; -1 when it was out of time.
    `signal` is that number, None where no signal ended it. `stdout` and `stderr` are UTF-8 with replacement
    characters, and `truncated` says that the middle of one of them was left out. `duration_seconds` is wall-clock time.
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
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class WhichResult:
    """Where the program of a name is: an absolute path, None where there is none."""

    command: str
    path: str | None

    @property
    def found(self) -> bool:
        """Whether there is one."""
        return self.path is not None


@dataclass(frozen=True, slots=True)
class EnvironmentSnapshot:
    """What a command would be given: its variables as (name, value), its directory, the shell that runs it."""

    variables: tuple[tuple[str, str], ...]
    cwd: str
    shell: str

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a variable, `default` where it is not set."""
        return next((value for known, value in self.variables if known == name), default)

    def to_dict(self) -> dict[str, str]:
        """The variables as a new dictionary."""
        return dict(self.variables)
