"""What a shell gives back: frozen values."""

from __future__ import annotations

from dataclasses import dataclass


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
