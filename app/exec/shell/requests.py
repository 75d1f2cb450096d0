"""What a shell is asked, checked: directory, environment, input, seconds."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.base import Backend
from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import InvalidCommand, PathOutsideSandbox
from shellback.exec.core.limits import Limits
from shellback.exec.core.model import WORK, CommandSpec
from shellback.exec.core.paths import sandbox_cwd
from shellback.exec.policy.commands import private
from shellback.exec.shell.protocol import EnvMode

_MODES: Final = ("extend", "replace")


def stdin_bytes(text: str | None) -> bytes | None:
    """Input as bytes.

    Raises:
        InvalidCommand: It is no text, or more than 64 KiB.
    """
    if text is None:
        return None
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidCommand("stdin holds a lone surrogate, which is not text; leave it out") from None
    if len(data) > bounds.STDIN_BYTES:
        raise InvalidCommand(
            f"stdin has {len(data)} bytes; at most {bounds.STDIN_BYTES} are accepted, use a file in the workspace"
        )
    return data


def foreground_seconds(given: float, limits: Limits) -> float:
    """Seconds until a command is ended that somebody waits for.

    Raises:
        InvalidCommand: They are out of range.
    """
    low, high = bounds.FOREGROUND_TIMEOUT_MIN_S, limits.foreground_timeout_max_s
    if not low <= given <= high:
        raise InvalidCommand(f"timeout_seconds is {given:g}; it must be {low:g} to {high:g}")
    return float(given)


def background_seconds(given: float, limits: Limits) -> float:
    """Seconds until a command is ended that nobody has to wait for; 0 for none.

    Raises:
        InvalidCommand: They are out of range.
    """
    low, high = bounds.FOREGROUND_TIMEOUT_MIN_S, limits.background_timeout_max_s
    if given != 0 and not low <= given <= high:
        raise InvalidCommand(f"timeout_seconds is {given:g}; it must be {low:g} to {high:g}, or 0 for none")
    return float(given)


class Requests:
    """Makes commands of one backend; nothing is started.

    `env_names` may be set although their names are refused else; `allowed_paths` are directories of the host where
    commands may begin besides the workspace.
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        *,
        env_names: Collection[str] = (),
        allowed_paths: Sequence[str | Path] = (),
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._env_names = frozenset(env_names)
        self._allowed = tuple(os.path.realpath(path) for path in allowed_paths)

    def spec(
        self,
        line: str,
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        env_mode: EnvMode,
        timeout: float,
        stdin: bytes | None = None,
    ) -> CommandSpec:
        """A command that keeps its streams apart and is killed at its timeout.

        Raises:
            InvalidCommand: `cwd` or `env` is not acceptable.
        """
        if env_mode not in _MODES:
            raise InvalidCommand(f"env_mode is {env_mode!r}; it must be one of {', '.join(_MODES)}")
        given = dict(env or {})
        check_env(given, granted=self._env_names)
        return CommandSpec(
            command=line,
            cwd=self.cwd(cwd),
            env=given,
            env_mode=env_mode,
            timeout_s=timeout,
            grace_s=0.0,
            stdin=stdin,
            separate_stderr=True,
            log_bytes=self._limits.log_bytes,
        )

    def cwd(self, given: str | None) -> str:
        """The directory where a command begins, as the backend takes it.

        Raises:
            InvalidCommand: It is none.
            PathOutsideSandbox: It is neither in the workspace nor in another place where commands may begin.
        """
        workspace, inner = str(self._backend.workspace), self._backend.inner
        if given is None or not given.startswith("/"):
            return self._inside(given, given)
        plain = os.path.normpath(given)
        if _below(plain, inner):
            return self._inside(given, workspace + plain[len(inner) :])
        if self.private(plain):
            return plain
        real = os.path.realpath(given)
        if _below(real, workspace):
            return self._inside(given, real)
        if any(_below(real, root) for root in self._allowed):
            if not os.path.isdir(real):
                raise InvalidCommand(f"cwd {given!r} is no directory; create it first, or leave cwd out")
            return real
        raise PathOutsideSandbox(f"Working directory escapes root: {given}")

    def private(self, cwd: str) -> bool:
        """Whether a directory is one that the sandbox has of its own."""
        places: Sequence[str] = self._backend.facts(WORK)["mounts"]["private"]
        return private(cwd, places, self._backend.workspace)

    def shown(self, cwd: str) -> str:
        """A directory as commands see it."""
        root = str(self._backend.workspace)
        return self._backend.inner + cwd[len(root) :] if _below(cwd, root) else cwd

    def _inside(self, given: str | None, path: str | None) -> str:
        try:
            return str(sandbox_cwd(path, self._backend.workspace))
        except PathOutsideSandbox:
            raise PathOutsideSandbox(f"Working directory escapes root: {given}") from None


def _below(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root}/")
