"""Short commands for whoever owns a section: what `shell_execute` is for its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shellback.exec.core.identity import a_call
from shellback.exec.engine.engine import Engine
from shellback.exec.log.output import both_ends
from shellback.exec.shell.permit import ByOperator, run_permitted
from shellback.exec.tools.short_commands import OUTPUT_BYTES, TIMEOUT_S, clamp_note, result, shell_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanShellParams:
    """A short command: `shell_execute` has the same arguments and bounds."""

    command: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: str | None = None
    timeout_seconds: float = TIMEOUT_S
    capture_output: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanShellResult:
    """How a short command ended; 124 says that it was out of time. `exit_code` None: a signal, or nobody knows.

    `note` says what was made of a timeout that is not possible.
    """

    command: tuple[str, ...]
    cwd: str
    exit_code: int | None
    stdout: str
    stderr: str
    duration_ms: int
    timed_out: bool
    note: str = ""


async def run_shell(engine: Engine, params: PodmanShellParams, scope: str) -> PodmanShellResult:
    """Run a short command as the owner of the engine.

    Raises:
        InvalidCommand: An argument is not acceptable.
        BackendUnavailable: Commands cannot run.
    """
    await engine.start()
    backend = engine.backend
    spec = shell_spec(
        command=params.command,
        cwd=params.cwd,
        env=params.env,
        stdin=params.stdin,
        timeout_seconds=params.timeout_seconds,
        workspace=engine.workspace,
        inner=backend.inner,
        limits=engine.limits,
    )
    outcome = await run_permitted(engine, ByOperator(engine), spec, scope, a_call(scope))
    out, err = engine.output(outcome.session), engine.output(outcome.session, err=True)
    said = result(outcome.session, *await both_ends(out, err, OUTPUT_BYTES), captured=params.capture_output)
    cwd = f"{backend.inner}{outcome.session.cwd.removeprefix(str(engine.workspace))}"
    note = clamp_note(params.timeout_seconds, engine.limits)
    known = {key: said[key] for key in ("exit_code", "stdout", "stderr", "duration_ms", "timed_out")}
    return PodmanShellResult(command=tuple(params.command), cwd=cwd, note=note, **known)
