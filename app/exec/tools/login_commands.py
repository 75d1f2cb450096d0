"""`run_shell`: from its arguments to a command of a login shell, and from its end to the promised result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CommandSpec, Session, SessionState
from shellback.exec.log.output import Slice
from shellback.exec.policy.commands import command_spec
from shellback.exec.tools.short_commands import beyond, exit_code

TIMEOUT_MS: Final = 60_000
TIMEOUT_MAX_MS: Final = 300_000
_TIMEOUT_MIN_MS: Final = round(bounds.FOREGROUND_TIMEOUT_MIN_S * 1000)
_TIMED_OUT: Final = -1


def login_spec(
    *,
    command: str,
    cwd: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
    env: Mapping[str, str] | None = None,
    workspace: Path,
    limits: Limits,
) -> CommandSpec:
    """The command that the arguments of `run_shell` describe.

    Raises:
        InvalidCommand: An argument is not acceptable; the message names the bound.
        PathOutsideSandbox: `cwd` leaves the workspace.
    """
    most = min(TIMEOUT_MAX_MS, round(limits.foreground_timeout_max_s * 1000))
    timeout_ms = min(timeout_ms, most) if timeout_ms == TIMEOUT_MS else timeout_ms
    if not _TIMEOUT_MIN_MS <= timeout_ms <= most:
        raise InvalidCommand(
            f"timeout_ms is {timeout_ms}; it must be {_TIMEOUT_MIN_MS} to {most}; for longer use execute with "
            "background=true"
        )
    spec = command_spec(
        command=command, cwd=cwd, env=env, timeout=timeout_ms / 1000, workspace=workspace, limits=limits
    )
    return replace(spec, separate_stderr=True, login=True)


def login_result(session: Session, out: Slice, err: Slice, *, timeout_s: float) -> dict[str, Any]:
    """What `run_shell` returns of an end: four keys, and more only where there is more to say."""
    status, code, stderr = "ok", exit_code(session), err.text
    if session.state is SessionState.TIMED_OUT:
        status, code = "timeout", _TIMED_OUT
        printed = f"{stderr}\n" if stderr and not stderr.endswith("\n") else stderr
        stderr = f"{printed}Command timed out after {timeout_s:g}s"
    elif session.end is None:
        status = "running"
    elif session.state in {SessionState.LOST, SessionState.START_FAILED}:
        status = "error"
    return {"status": status, "exit_code": code, "stdout": out.text, "stderr": stderr, **beyond(session, out, err)}
