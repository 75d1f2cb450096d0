"""What calls on a persistent shell tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.model import Session
from shellback.exec.log.output import EMPTY, Slice


class ShellBusy(InvalidCommand):
    """Raised when a shell cannot take a command because another one runs in it; the message has the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A shell and what it shows first: its prompt."""

    session: Session
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What became of a command in a shell.

    `output` is what it printed as plain text, head and tail where it is long; `slice` says how much that is of what.
    `raw` is what a terminal showed: the command, the output with its control sequences, the prompt. `exit_code` None is
    not known: it runs, or a shell inside has the terminal, or a signal ended the shell. `timed_out` and `waiting` (for
    input) mean that it runs on. `note` says in one sentence what else there is to know and do.
    """

    session: Session
    output: str
    raw: str = ""
    exit_code: int | None = None
    cwd: str = ""
    timed_out: bool = False
    alive: bool = True
    waiting: bool = False
    note: str = ""
    slice: Slice = field(default=EMPTY)
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a shell printed since it was read last. `running` is whether a command that was not waited for still runs.

    `exit_code` is that of such a command, where it has ended since.
    """

    session: Session
    output: str
    alive: bool
    running: bool = False
    exit_code: int | None = None
    note: str = ""
    slice: Slice = field(default=EMPTY)
