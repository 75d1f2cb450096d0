"""Checks the arguments of a call and makes a command and its proposal; starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.base import Backend, Plan
from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import CommandDenied, InvalidCommand
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import CONVERSATION, LIFETIMES, ON_EXIT, READ_ONLY, CommandSpec, WindowSize
from shellback.exec.core.sight.sight import sandbox_cwd
from shellback.exec.core.threads import CHECK_S, checking
from shellback.exec.policy import binding
from shellback.exec.policy.operands import named_in
from shellback.exec.policy.policy import Grant, Proposal

CHANGED: Final = (
    "what was about to start when the worker died is not what would start now (directory, scripts, rules or settings "
    "changed meanwhile); nothing was started, propose the call again"
)
"""The reason why a session that was claimed before is given up instead of started."""


def command_spec(  # noqa: PLR0913 - the parameters of the tools
    *,
    command: str,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    background: bool = False,
    stdin: str | None = None,
    keep_stdin_open: bool = False,
    pty: bool = False,
    on_exit: str = "always",
    lifetime: str = CONVERSATION,
    workspace: Path,
    limits: Limits,
) -> CommandSpec:
    """Check the arguments of one command and resolve its directory.

    Raises:
        InvalidCommand: An argument is invalid; the message names the bound.
        PathOutsideSandbox: `cwd` is outside the workspace.
    """
    check_command(command, limits)
    if keep_stdin_open and pty:
        raise InvalidCommand("keep_stdin_open is for execute; a terminal's input is always open")
    if on_exit not in ON_EXIT:
        raise InvalidCommand(f"on_exit is {on_exit!r}; it must be one of {', '.join(ON_EXIT)}")
    if lifetime not in LIFETIMES:
        raise InvalidCommand(f"lifetime is {lifetime!r}; it must be one of {', '.join(LIFETIMES)}")
    given = dict(env or {})
    check_env(given)
    return CommandSpec(
        command=command,
        cwd=str(sandbox_cwd(cwd, workspace)),
        env=given,
        timeout_s=_timeout(timeout, background=background, limits=limits),
        stdin=_stdin(stdin, keep_open=keep_stdin_open),
        keep_stdin_open=keep_stdin_open,
        pty=WindowSize(bounds.PTY_ROWS, bounds.PTY_COLS) if pty else None,
        background=background,
        log_bytes=limits.log_bytes,
        on_exit=on_exit,
        lifetime=lifetime,
    )


def check_yield_after(yield_after: float | None, *, background: bool, limits: Limits) -> None:
    """Raise InvalidCommand if a foreground call cannot be handed over after this time."""
    if yield_after is None:
        return
    if background:
        raise InvalidCommand("yield_after is for foreground commands; background=true returns at once")
    if not 0 < yield_after <= limits.foreground_timeout_max_s:
        raise InvalidCommand(
            f"yield_after is {yield_after:g} s; it must be above 0 and at most {limits.foreground_timeout_max_s:g} s"
        )


async def proposed(spec: CommandSpec, backend: Backend) -> Proposal:
    """`proposal_for` in a thread that reads files as the user of commands.

    Raises:
        InvalidCommand: The directory is gone.
        CheckTimedOut: The files could not be read in time.
    """
    return proposal_for(spec, backend, await bound(spec, backend))


async def bound(spec: CommandSpec, backend: Backend) -> binding.Binding:
    """The files of a command, read in a thread if there are any; CheckTimedOut if they cannot be read in time."""
    if spec.profile == READ_ONLY or not named_in(spec.command).files:
        return _bound(spec, backend)
    threads = checking(backend.uid)
    return await threads.run(partial(_bound, spec, backend, threads.held), seconds=CHECK_S)


def _bound(spec: CommandSpec, backend: Backend, held: Callable[[str], int] | None = None) -> binding.Binding:
    if spec.profile == READ_ONLY:
        return binding.Binding()
    private = backend.facts(spec.profile)["mounts"]["private"]
    workspace, inner = backend.workspace, backend.inner
    return binding.read(spec.command, cwd=spec.cwd, workspace=workspace, private=private, inner=inner, held=held)


def proposal_for(spec: CommandSpec, backend: Backend, files: binding.Binding | None = None) -> Proposal:
    """Everything that determines what will run, including the directory's identity and the contents of scripts.

    Blocks to read scripts unless `files` has them. A command in the profile `read_only` is bound without its scripts.

    Raises:
        InvalidCommand: The directory is gone.
    """
    held_to = backend.facts(spec.profile)
    device, inode = _place(spec.cwd, held_to["mounts"]["private"], backend.workspace)
    files = files or _bound(spec, backend)
    return Proposal(
        tool="execute_pty" if spec.pty else "execute",
        facts={
            "command": spec.command,
            **files.facts(),
            "shell": held_to["shell"],
            "cwd": spec.cwd,
            **_inside(spec.cwd, backend),
            **in_workspace(backend),
            "cwd_device": device,
            "cwd_inode": inode,
            "env": spec.env,
            **({"env_mode": spec.env_mode} if spec.env_mode != "extend" else {}),
            **({"login": True} if spec.login else {}),
            **({"grace_s": spec.grace_s} if spec.grace_s != bounds.TIMEOUT_GRACE_S else {}),
            "timeout_s": spec.timeout_s,
            "pty": [spec.pty.rows, spec.pty.cols] if spec.pty else None,
            "stdin": None if spec.stdin is None else spec.stdin.decode("utf-8", "surrogateescape"),
            "keep_stdin_open": spec.keep_stdin_open,
            "separate_stderr": spec.separate_stderr,
            "background": spec.background,
            "backend": backend.name,
            "profile": spec.profile,
            "mounts": held_to["mounts"],
            "limits": {**held_to["limits"], "log_bytes": spec.log_bytes},
            "network": spec.profile != READ_ONLY and ([*backend.hosts] or backend.network),
            "secrets": [] if spec.profile == READ_ONLY else [*backend.secrets],
            "uid": backend.uid,
            "lifetime": spec.lifetime,
            **({"on_exit": spec.on_exit} if spec.on_exit != ON_EXIT[0] else {}),
            **({"kind": spec.kind} if spec.kind else {}),
        },
        spec=spec,
    )


def in_workspace(backend: Backend) -> dict[str, str]:
    """The fact that binds a call to a named workspace; none for the default one."""
    return {"workspace": f"{backend.named} ({backend.workspace})"} if backend.named else {}


def _inside(cwd: str, backend: Backend) -> dict[str, str]:
    """The directory as the command sees it, if the path differs."""
    if backend.inner == str(backend.workspace) or not PurePath(cwd).is_relative_to(backend.workspace):
        return {}
    return {"inner_cwd": os.path.normpath(f"{backend.inner}/{os.path.relpath(cwd, backend.workspace)}")}


def private(cwd: str, places: Sequence[str], workspace: Path) -> bool:
    """Whether a directory is private to a sandbox, so that it cannot be read from here."""
    return not f"{cwd}/".startswith(f"{workspace}/") and any(f"{cwd}/".startswith(f"{place}/") for place in places)


def _place(cwd: str, places: Sequence[str], workspace: Path) -> tuple[int, int]:
    if private(cwd, places, workspace):
        return 0, 0
    try:
        found = os.stat(cwd)
    except OSError as error:
        raise InvalidCommand(f"cwd {cwd!r} cannot be used: {error.strerror}") from None
    return found.st_dev, found.st_ino


async def fixed(plan: Plan, grant: Grant, backend: Backend) -> Plan:
    """The plan of a granted command with its directory and scripts; the supervisor compares them once more.

    Raises:
        CommandDenied: What would run has changed since the grant.
        InvalidCommand: The directory is gone.
    """
    now = await proposed(grant.spec, backend)
    if not grant.covers(now):
        raise CommandDenied(
            f"changed since it was approved: {binding.changed(grant.proposal.facts, now.facts)}; nothing was started "
            "and the approval is used up, propose the call again"
        )
    facts: Mapping[str, Any] = now.facts
    plan = replace(plan, place=(facts["cwd_device"], facts["cwd_inode"]) if facts["cwd_inode"] else None)
    if plan.sandbox is None:
        return plan
    held = tuple((row["named"], row["path"], row["sha256"]) for row in facts["scripts"] if row["held"])
    pinned = binding.ways((one[0] for one in held), backend.workspace)
    return replace(plan, sandbox=replace(plan.sandbox, held=held, pinned=pinned))


def check_command(command: str, limits: Limits) -> None:
    """Raise InvalidCommand if the text of a command is invalid; the message names the bound."""
    if not command.strip():
        raise InvalidCommand("command is empty; give the text of a bash command")
    if "\0" in command:
        raise InvalidCommand("command holds a NUL byte, which no program can be given; leave it out")
    if len(command) > limits.command_chars:
        raise InvalidCommand(
            f"command has {len(command)} characters; at most {limits.command_chars} are accepted, "
            "write a script file and run that"
        )
    encoded(command, "command")


def _stdin(text: str | None, *, keep_open: bool) -> bytes | None:
    if text is None:
        return b"" if keep_open else None
    data = encoded(text, "stdin")
    if len(data) > bounds.STDIN_BYTES:
        raise InvalidCommand(
            f"stdin has {len(data)} bytes; at most {bounds.STDIN_BYTES} are accepted, use a file in the workspace"
        )
    return data


def encoded(text: str, what: str) -> bytes:
    """The UTF-8 bytes of an argument; InvalidCommand if it cannot be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidCommand(f"{what} holds a lone surrogate, which is not text; leave it out") from None


def _timeout(given: float | None, *, background: bool, limits: Limits) -> float:
    low, kind = bounds.FOREGROUND_TIMEOUT_MIN_S, "background" if background else "foreground"
    high = limits.background_timeout_max_s if background else limits.foreground_timeout_max_s
    if background and not given:
        return 0.0
    if given is None:
        return min(limits.foreground_timeout_s, high)
    if not low <= given <= high:
        hint = "0 for none" if background else "background=true for longer"
        raise InvalidCommand(f"timeout is {given:g} s; a {kind} command takes {low:g} to {high:g} s, or {hint}")
    return float(given)
