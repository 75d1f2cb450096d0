"""The command that a persistent shell is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import SHELL, CommandSpec, WindowSize
from shellback.exec.policy.commands import check_command, command_spec

SHELL_COMMAND: Final = "exec bash --noprofile --norc --noediting -i"
"""Bash without start-up files and without an editor of its own for lines: what is typed arrives as it is."""
ROWS, COLS = 24, 80
TIMEOUT_MIN_S: Final = 0.1
TIMEOUT_MAX_S: Final = 300.0
PROMPT: Final = r"\u@\h:\w\$ "


def shell_command(
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    rows: int = ROWS,
    cols: int = COLS,
    workspace: Path,
    limits: Limits,
) -> CommandSpec:
    """Check what a shell is to be started with.

    Raises:
        InvalidCommand: The size is out of range, or a variable is refused.
        PathOutsideSandbox: `cwd` leaves the workspace.
    """
    if not (2 <= rows <= 500 and 2 <= cols <= 1000):
        raise InvalidCommand(f"the size is {rows} rows by {cols} columns; it must be 2 to 500 by 2 to 1000")
    made = command_spec(
        command=SHELL_COMMAND, cwd=cwd, env=env, background=True, pty=True, workspace=workspace, limits=limits
    )
    return replace(made, pty=WindowSize(rows, cols), kind=SHELL, on_exit="never")


def check_line(command: str, timeout_s: float, limits: Limits) -> None:
    """Accept what a shell is to run, and for how long that is waited for.

    Raises:
        InvalidCommand: It is not acceptable; the message names the bound.
    """
    check_command(command, limits)
    if not TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        raise InvalidCommand(f"timeout is {timeout_s:g} s; it must be {TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g} s")
