"""`shell_execute`, `evaluate_python` and `run_shell`: arguments to command, end to result."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CommandSpec, Session, SessionState
from shellback.exec.core.sight.sight import sandbox_cwd
from shellback.exec.engine.engine import Engine
from shellback.exec.log.output import Slice
from shellback.exec.policy.commands import command_spec, encoded
from shellback.exec.reports.render import unwritten
from shellback.exec.tools.tool import Args

COMMAND_CHARS: Final = 4_096
"""All words together, joined with blanks."""
STDIN_CHARS: Final = 48_000
ENV_VARIABLES: Final = 64
ENV_NAME_CHARS: Final = 80
TIMEOUT_MIN_S: Final = 1.0
TIMEOUT_MAX_S: Final = 120.0
TIMEOUT_S: Final = 30.0
OUTPUT_BYTES: Final = 32 * 1024
"""Both streams together; each gets at least half."""
CODE_BYTES: Final = 1 << 20
PYTHON_S: Final = 5.0
TIMED_OUT: Final = 124
_MISSING: Final = 127
CAPTURE_DISABLED: Final = "capture disabled"


def quoted(words: Sequence[str]) -> str:
    """A shell line that runs exactly these words, each in quotes."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


PYTHON: Final = quoted(["python3", "-"])
"""The line of every evaluation; its code is the input."""


def shell_spec(engine: Engine, args: Args) -> CommandSpec:
    """The command that the arguments of `shell_execute` describe, with a clamped timeout.

    Raises:
        InvalidCommand: An argument is not acceptable; the message names the bound.
        PathOutsideSandbox: `cwd` leaves the workspace.
    """
    command, stdin, given = args["command"], args["stdin"], dict[str, str](args["env"] or {})
    _check_words(command, min(COMMAND_CHARS, engine.limits.command_chars))
    _check_env(given)
    if stdin is not None and len(stdin) > STDIN_CHARS:
        raise InvalidCommand(
            f"stdin has {len(stdin):,} characters; at most {STDIN_CHARS:,} are accepted, write a file and name that"
        )
    return CommandSpec(
        command=quoted(command),
        cwd=str(sandbox_cwd(_below(args["cwd"], engine.backend.inner), engine.workspace)),
        env=given,
        timeout_s=clamped(args["timeout_seconds"], engine.limits),
        stdin=None if stdin is None else encoded(stdin, "stdin"),
        separate_stderr=True,
        log_bytes=engine.limits.log_bytes,
    )


_INSTEAD: Final = {
    "reads": "read_file, or open the file in the code",
    "writes": "write_file, or write the file in the code",
    "globals": "assignments at the beginning of the code",
}
"""Arguments that only an in-memory evaluator supports, and what to use instead."""


def python_spec(engine: Engine, args: Args) -> CommandSpec:
    """The command that `evaluate_python` runs, with the code as its standard input.

    Raises:
        InvalidCommand: The code is empty or too long, or an argument of `_INSTEAD` is given.
    """
    for name, instead in _INSTEAD.items():
        if args[name]:
            raise InvalidCommand(f"{name} has to be empty here: the code runs in the workspace itself. Use {instead}")
    if not args["code"].strip():
        raise InvalidCommand("code is empty; give the text of a Python program")
    data = encoded(args["code"], "code")
    if len(data) > CODE_BYTES:
        raise InvalidCommand(
            f"code has {len(data):,} bytes; at most {CODE_BYTES:,} are accepted, write a file and run that"
        )
    return CommandSpec(
        command=PYTHON,
        cwd=str(sandbox_cwd(None, engine.workspace)),
        timeout_s=min(PYTHON_S, engine.limits.foreground_timeout_max_s),
        stdin=data,
        separate_stderr=True,
        log_bytes=engine.limits.log_bytes,
    )


def clamped(timeout_seconds: float, limits: Limits) -> float:
    """The timeout in seconds, clamped to the bounds; InvalidCommand for NaN."""
    if math.isnan(timeout_seconds):
        raise InvalidCommand("timeout_seconds is no number; give 1 to 120")
    return min(max(timeout_seconds, TIMEOUT_MIN_S), TIMEOUT_MAX_S, limits.foreground_timeout_max_s)


def clamp_note(timeout_seconds: float, limits: Limits) -> str:
    """The note about a clamped timeout, else ""."""
    used = clamped(timeout_seconds, limits)
    most = min(TIMEOUT_MAX_S, limits.foreground_timeout_max_s)
    if used == timeout_seconds:
        return ""
    return f"timeout_seconds was {timeout_seconds:g}; {TIMEOUT_MIN_S:g} to {most:g} are possible, {used:g} was used"


def result(session: Session, out: Slice, err: Slice, *, captured: bool = True) -> dict[str, Any]:
    """The result of both tools: streams, exit code, `timed_out`, and the keys of `beyond`."""
    end = session.end
    timed_out = session.state is SessionState.TIMED_OUT
    return {
        "exit_code": TIMED_OUT if timed_out else exit_code(session),
        "stdout": out.text if captured else CAPTURE_DISABLED,
        "stderr": err.text if captured else CAPTURE_DISABLED,
        "duration_ms": round(end.duration_s * 1000) if end else 0,
        "timed_out": timed_out,
        **beyond(session, *((out, err) if captured else ())),
    }


def beyond(session: Session, *streams: Slice) -> dict[str, Any]:
    """Optional keys of a result: something was cut, signalled or lost."""
    end = session.end
    found = dict[str, Any]()
    if any(one.partial for one in streams):
        found |= {
            "truncated": True,
            "bytes_total": sum(one.bytes_total for one in streams),
            "bytes_dropped": sum(one.bytes_dropped for one in streams),
            **unwritten(*streams),
            "session_id": session.id,
        }
    if end is None:
        found |= {"state": session.state.value, "session_id": session.id}
    elif end.signal is not None and session.state is not SessionState.TIMED_OUT:
        found |= {"signal": end.signal, "session_id": session.id}
    elif session.state in {SessionState.LOST, SessionState.START_FAILED}:
        evidence = end.evidence.value if end.evidence else None
        found |= {"state": session.state.value, "evidence": evidence, "errno": end.errno, "session_id": session.id}
    return found


def without_python(found: Mapping[str, Any]) -> bool:
    """Whether a result of `evaluate_python` says that python3 is missing."""
    missing = "python3" in found["stderr"] and "not found" in found["stderr"]
    return found["exit_code"] == _MISSING and not found["stdout"] and missing


def exit_code(session: Session) -> int | None:
    """The exit code of the process, or 126 or 127 if it could not be started; None if there is none."""
    end = session.end
    if end is not None and session.state is SessionState.START_FAILED:
        return {errno.ENOENT: _MISSING, errno.EACCES: 126}.get(end.errno or 0)
    return end.exit_code if end else None


def _check_words(command: Sequence[str], most: int) -> None:
    if not command or not command[0]:
        raise InvalidCommand('command is empty; give a program and its arguments as a list, ["ls", "-l"]')
    together = len(" ".join(command))
    if together > most:
        raise InvalidCommand(
            f"command has {together:,} characters together; at most {most:,} are accepted, write a script and run that"
        )
    for number, word in enumerate(command):
        if not word.isascii():
            raise InvalidCommand(f"word {number} of command is not ASCII; put such text into a file or into stdin")
        if "\0" in word:
            raise InvalidCommand(f"word {number} of command holds a NUL byte, which no program can be given")


def _check_env(given: Mapping[str, str]) -> None:
    if len(given) > ENV_VARIABLES:
        raise InvalidCommand(f"env has {len(given)} variables; at most {ENV_VARIABLES} are accepted")
    for name, value in given.items():
        if len(name) > ENV_NAME_CHARS:
            raise InvalidCommand(f"an env name has {len(name)} characters; at most {ENV_NAME_CHARS} are accepted")
        if not name.isascii() or not value.isascii():
            raise InvalidCommand(f"env variable {name!r} is not ASCII; put such text into a file or into stdin")
    check_env(given)


def _below(cwd: str | None, inner: str) -> str | None:
    """`cwd` relative to the workspace, which its commands know as `inner`."""
    if cwd is None or cwd in {"", inner}:
        return None
    if {".", ".."} & set(cwd.split("/")):
        raise InvalidCommand(f"cwd {cwd!r} holds '.' or '..'; name the directory itself, relative to {inner}")
    if not cwd.startswith("/"):
        return cwd
    if not cwd.startswith(f"{inner}/"):
        raise PathOutsideSandbox(f"cwd {cwd!r} is outside the workspace; use a directory below {inner}")
    return cwd[len(inner) + 1 :]


TIMEOUT_MS: Final = 60_000
TIMEOUT_MAX_MS: Final = 300_000
_TIMEOUT_MIN_MS: Final = round(bounds.FOREGROUND_TIMEOUT_MIN_S * 1000)
_TIMED_OUT: Final = -1


def login_spec(engine: Engine, args: Args) -> CommandSpec:
    """The command that the arguments of `run_shell` describe.

    Raises:
        InvalidCommand: An argument is not acceptable; the message names the bound.
        PathOutsideSandbox: `cwd` leaves the workspace.
    """
    spec = command_spec(
        command=args["command"], cwd=args["cwd"], env=args["env"], timeout=login_seconds(args["timeout_ms"], engine),
        workspace=engine.workspace, limits=engine.limits,
    )  # fmt: skip
    return replace(spec, separate_stderr=True, login=True)


def login_seconds(timeout_ms: int, engine: Engine) -> float:
    """The timeout of `run_shell` in seconds; its default is clamped to the operator's maximum."""
    most = min(TIMEOUT_MAX_MS, round(engine.limits.foreground_timeout_max_s * 1000))
    timeout_ms = min(timeout_ms, most) if timeout_ms == TIMEOUT_MS else timeout_ms
    if not _TIMEOUT_MIN_MS <= timeout_ms <= most:
        raise InvalidCommand(
            f"timeout_ms is {timeout_ms}; it must be {_TIMEOUT_MIN_MS} to {most}; for longer use execute with "
            "background=true"
        )
    return timeout_ms / 1000


def login_result(session: Session, out: Slice, err: Slice, *, timeout_s: float) -> dict[str, Any]:
    """The result of `run_shell`: four keys, and those of `beyond`."""
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
