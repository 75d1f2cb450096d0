"""A shell over an engine. Its commands are ordinary sessions: claimed, granted, logged, and started at most once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from shellback.exec.core import limits as bounds
from shellback.exec.core.environment import check_env
from shellback.exec.core.errors import InvalidCommand, LimitReached, PathOutsideSandbox, SpawnFailed
from shellback.exec.core.identity import a_call, origin_in_call
from shellback.exec.core.model import READ_ONLY, SHELL, WORK, CallOrigin, CommandSpec, Session, WindowSize
from shellback.exec.core.runner import found
from shellback.exec.core.sight.sight import sandbox_cwd
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.sessions import check_size
from shellback.exec.persistent import SHELL_COMMAND, PersistentShells
from shellback.exec.persistent.shells import COLS, ROWS
from shellback.exec.policy.commands import private
from shellback.exec.policy.policy import Grant
from shellback.exec.shell import words
from shellback.exec.shell.permit import Authority, launch_permitted, permitted_or_before, run_permitted
from shellback.exec.shell.protocol import EnvironmentSnapshot, EnvMode, ExecutionResult, WhichResult
from shellback.exec.shell.running import MISSING, Chunk, Running, ShellSession
from shellback.exec.shell.words import CommandValidator

OUTPUT_BYTES: Final = 32 * 1024
"""The most bytes of output in a result, both streams together."""
_SHELLS: Final = frozenset({"bash", "sh", "dash"})
_NAME_CHARS: Final = 255


class AsyncShell:
    """The shell protocol for code on an event loop, with background commands and streamed output.

    `authority` permits commands; `origin` names them, so that a replay finds the same command. `deadline` returns the
    seconds left, which bound each wait. `tidy` is called after each command, `fenced` is entered around each. Every
    exception is a ValueError, a PermissionError or a RuntimeError.
    """

    def __init__(  # noqa: PLR0913 - what the owner of a shell decides
        self,
        engine: Engine,
        authority: Authority,
        *,
        scope: str = "",
        default_timeout: float = bounds.FOREGROUND_TIMEOUT_S,
        max_output_bytes: int = OUTPUT_BYTES,
        validator: CommandValidator | None = None,
        origin: Callable[[], CallOrigin] | None = None,
        deadline: Callable[[], float | None] | None = None,
        env_names: Collection[str] = (),
        allowed_paths: Sequence[str | Path] = (),
        tidy: Callable[[], None] = lambda: None,
        fenced: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.engine = engine
        self.default_timeout = _seconds_to(engine.limits.foreground_timeout_max_s, default_timeout)
        self._authority = authority
        self._scope = scope
        self._most = max_output_bytes
        self._validator = validator or CommandValidator()
        self._origin = origin or (lambda: origin_in_call() or a_call(scope))
        self._deadline = deadline or (lambda: None)
        self._env_names = frozenset(env_names)
        self._allowed = tuple(os.path.realpath(path) for path in allowed_paths)
        self._tidy = tidy
        self._fenced = fenced
        self._starting = asyncio.Lock()
        self._shells = PersistentShells(engine, allowed=tuple(map(str, allowed_paths)))

    @property
    def backend_name(self) -> str:
        return self.engine.backend.name

    @property
    def sandboxed(self) -> bool:
        return READ_ONLY in self.engine.backend.profiles

    @property
    def network_enabled(self) -> bool:
        return self.engine.backend.network or bool(self.engine.backend.hosts)

    async def execute(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | None = None,
        timeout_seconds: float | None = None,
        capture_output: bool = True,
    ) -> ExecutionResult:
        """See `Shell.execute`; `timeout_seconds` is `default_timeout` if missing.

        Cancelling ends only the wait; the command runs until its timeout.
        """
        line, timeout = self._line(command), self._seconds(timeout_seconds)
        spec = self._spec(line, cwd=cwd, env=env, env_mode=env_mode, timeout=timeout, stdin=stdin)
        async with self._running():
            return await self._run(spec, _words(command), capture=capture_output)

    async def execute_script(
        self,
        script: str,
        *,
        interpreter: str = "/bin/bash",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        timeout_seconds: float | None = None,
        capture_output: bool = True,
    ) -> ExecutionResult:
        """See `Shell.execute_script`. $0 of the script is /dev/fd/3, an unlinked file of mode 0600."""
        data = words.check_script(script, interpreter)
        self._validator.validate([interpreter])
        self._validator.check_patterns(script)
        spec = self._spec(
            words.script_line(interpreter, data),
            cwd=cwd, env=env, env_mode=env_mode, timeout=self._seconds(timeout_seconds), stdin=data,
        )  # fmt: skip
        shell = os.path.basename(interpreter) in _SHELLS
        async with self._running():
            # The output, wanted or not, shows whether the interpreter exists.
            result = await self._run(
                spec,
                (interpreter, words.SCRIPT_PATH),
                capture=True,
                authority=_OfScript(self._authority, script) if shell else None,
            )
        if result.exit_code == MISSING and result.stderr == words.missing(interpreter):
            raise InvalidCommand(result.stderr)
        return result if capture_output else replace(result, stdout="", stderr="", truncated=False)

    async def which(self, command: str) -> WhichResult:
        """See `Shell.which`. The program is not run, so it needs no permission."""
        if not is_name(command):
            return WhichResult(command, None)
        if not self.sandboxed:
            return WhichResult(command, _here(self.engine.workspace, command))
        # The validator is skipped, because the name is an argument. A name that policy denies is not found.
        spec = self._spec(f"type -P -- {words.quoted(command)}", timeout=self._seconds(None))
        async with self._running():
            try:
                result = await self._run(spec, (command,), capture=True)
            except PermissionError:
                return WhichResult(command, None)
        path = result.stdout.removesuffix("\n")
        return WhichResult(command, str(PurePosixPath(result.cwd, path)) if result.success and path else None)

    async def env(self) -> EnvironmentSnapshot:
        backend = self.engine.backend
        spec = self._spec(":", timeout=self.default_timeout)
        async with self._running():
            plan = await backend.plan(spec, self._scope)
        shell: str = backend.facts(spec.profile)["shell"]
        return EnvironmentSnapshot(tuple(sorted(plan.env.items())), self._shown(spec.cwd), shell)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | None = None,
        keep_stdin_open: bool = False,
        timeout_seconds: float = 0.0,
        pty: WindowSize | None = None,
    ) -> Running:
        """Start a command and return at once. It runs until its end, its timeout (0: none) or a kill.

        With `pty` it has a terminal of that size, whose only stream is `stdout` and whose input is open. Raises as
        `execute`.
        """
        most = self.engine.limits.background_timeout_max_s
        spec = self._spec(
            self._line(command),
            cwd=cwd, env=env, env_mode=env_mode, stdin=stdin if stdin or not keep_stdin_open else b"",
            timeout=_seconds_to(most, timeout_seconds, more=", or 0 for none") if timeout_seconds else 0.0,
        )  # fmt: skip
        spec = replace(
            spec, background=True, keep_stdin_open=keep_stdin_open and pty is None, pty=pty, separate_stderr=pty is None
        )
        async with self._running():
            session = await launch_permitted(self.engine, self._authority, spec, self._scope, self._origin())
        self._tidy()
        return self._begun(session, spec, _words(command))

    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, rows: int = ROWS, cols: int = COLS
    ) -> ShellSession:
        """Start a persistent bash in a terminal of that size; it keeps directory, variables and functions.

        It runs until it is closed, or unused for 30 minutes. Raises as `execute`.
        """
        self._validator.validate("bash")
        check_size(size := WindowSize(rows, cols))
        spec = self._spec(SHELL_COMMAND, cwd=cwd, env=env, timeout=0.0)
        spec = replace(spec, background=True, pty=size, separate_stderr=False, kind=SHELL, on_exit="never")
        async with self._running():
            origin = self._origin()
            found = await permitted_or_before(self.engine, self._authority, spec, self._scope, origin)
            if isinstance(found, Session):
                session, prompt = found, ""
            else:
                started = await self._shells.start(found, origin)
                session, prompt = started.session, started.output
        self._tidy()
        return ShellSession(self.engine, self._shells, self._authority, session, prompt, self._origin, self._validator)

    async def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[Chunk]:
        """Run a command and yield its output; closing the generator kills the command. Raises as `execute`."""
        running = await self.spawn(
            command, cwd=cwd, env=env, env_mode=env_mode, stdin=stdin, timeout_seconds=self._seconds(timeout_seconds)
        )
        ended = False
        try:
            async for chunk in running.stream():
                yield chunk
            ended = True
        finally:
            if not ended:
                await running.kill()

    def _line(self, command: str | Sequence[str]) -> str:
        line = words.line_of(command)
        self._validator.validate(command)
        return line

    def _seconds(self, given: float | None) -> float:
        seconds = (
            self.default_timeout if given is None else _seconds_to(self.engine.limits.foreground_timeout_max_s, given)
        )
        left = self._deadline()
        return seconds if left is None else max(bounds.FOREGROUND_TIMEOUT_MIN_S, min(seconds, left))

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncGenerator[None]:
        """Require a running engine, and raise RuntimeError for a used-up bound, which is no error of the command."""
        with self._fenced():
            try:
                async with self._starting:
                    await self.engine.start()
                yield
            except LimitReached as error:
                raise SpawnFailed(str(error)) from error

    async def _run(
        self, spec: CommandSpec, command: tuple[str, ...], *, capture: bool, authority: Authority | None = None
    ) -> ExecutionResult:
        outcome = await run_permitted(self.engine, authority or self._authority, spec, self._scope, self._origin())
        session = outcome.session
        if session.end is not None and session.end.errno == errno.ENOENT and self._private(spec.cwd):
            raise InvalidCommand(f"cwd {spec.cwd!r} does not exist in the sandbox; create it first, or leave cwd out")
        result = await self._begun(session, spec, command).result(session, capture=capture)
        self._tidy()
        return result

    def _begun(self, session: Session, spec: CommandSpec, command: tuple[str, ...]) -> Running:
        cwd = self._shown(spec.cwd)
        return Running(self.engine, session, command, cwd, spec.timeout_s, self._most, self._origin)

    def _spec(
        self,
        line: str,
        *,
        timeout: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_mode: EnvMode = "extend",
        stdin: str | bytes | None = None,
    ) -> CommandSpec:
        """A command with separate streams that is killed at its timeout; InvalidCommand for a bad cwd, env or stdin."""
        if env_mode not in _MODES:
            raise InvalidCommand(f"env_mode is {env_mode!r}; it must be one of {', '.join(_MODES)}")
        given = dict(env or {})
        check_env(given, granted=self._env_names)
        return CommandSpec(
            command=line,
            cwd=self._cwd(cwd),
            env=given,
            env_mode=env_mode,
            timeout_s=timeout,
            grace_s=0.0,
            stdin=_input(stdin),
            separate_stderr=True,
            log_bytes=self.engine.limits.log_bytes,
        )

    def _cwd(self, given: str | None) -> str:
        """The directory in which a command begins, for the backend.

        Raises:
            InvalidCommand: It is no directory.
            PathOutsideSandbox: It is neither in the workspace nor in an allowed directory.
        """
        workspace, inner = str(self.engine.backend.workspace), self.engine.backend.inner
        if given is None or not given.startswith("/"):
            return self._inside(given, given)
        plain = os.path.normpath(given)
        if _below(plain, inner):
            return self._inside(given, workspace + plain[len(inner) :])
        if self._private(plain):
            return plain
        real = os.path.realpath(given)
        if _below(real, workspace):
            return self._inside(given, real)
        if any(_below(real, root) for root in self._allowed):
            if not os.path.isdir(real):
                raise InvalidCommand(f"cwd {given!r} is no directory; create it first, or leave cwd out")
            return real
        raise PathOutsideSandbox(f"Working directory escapes root: {given}")

    def _private(self, cwd: str) -> bool:
        """Whether a directory is private to the sandbox."""
        return private(cwd, self.engine.backend.facts(WORK)["mounts"]["private"], self.engine.backend.workspace)

    def _shown(self, cwd: str) -> str:
        """A directory as commands see it."""
        root = str(self.engine.backend.workspace)
        return self.engine.backend.inner + cwd[len(root) :] if _below(cwd, root) else cwd

    def _inside(self, given: str | None, path: str | None) -> str:
        try:
            return str(sandbox_cwd(path, self.engine.backend.workspace))
        except PathOutsideSandbox:
            raise PathOutsideSandbox(f"Working directory escapes root: {given}") from None


@dataclass(frozen=True, slots=True)
class _OfScript:
    """Judges a script's text like a command; the line that passes the script to its interpreter is what runs."""

    inner: Authority
    script: str

    async def permit(self, spec: CommandSpec, scope: str) -> Grant:
        await self.inner.permit(replace(spec, command=self.script, stdin=None), scope)
        return await self.inner.permit(spec, scope)


def _here(workspace: Path, command: str) -> str | None:
    if "/" not in command:
        return found(command)
    path = os.path.normpath(workspace / command)
    return path if os.path.isfile(path) and os.access(path, os.X_OK) else None


def is_name(text: str) -> bool:
    """Whether a text can name a program."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return bool(text) and "\0" not in text and len(text) <= _NAME_CHARS


def _words(command: str | Sequence[str]) -> tuple[str, ...]:
    return (command,) if isinstance(command, str) else tuple(command)


_MODES: Final = ("extend", "replace")


def _input(given: str | bytes | None) -> bytes | None:
    """Standard input as bytes, at most 64 KiB."""
    if not isinstance(given, str):
        return given
    try:
        data = given.encode()
    except UnicodeEncodeError:
        raise InvalidCommand("stdin holds a lone surrogate, which is not text; leave it out") from None
    if len(data) > bounds.STDIN_BYTES:
        raise InvalidCommand(
            f"stdin has {len(data)} bytes; at most {bounds.STDIN_BYTES} are accepted, use a file in the workspace"
        )
    return data


def _seconds_to(high: float, given: float, *, more: str = "") -> float:
    """The timeout, checked to be in range."""
    low = bounds.FOREGROUND_TIMEOUT_MIN_S
    if not low <= given <= high:
        raise InvalidCommand(f"timeout_seconds is {given:g}; it must be {low:g} to {high:g}{more}")
    return float(given)


def _below(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root}/")
