"""`execute` and `execute_pty`: the tools that start processes. Their docstrings are prompt text."""

from __future__ import annotations

from functools import partial
from typing import Literal

from shellback.exec.core.model import CommandSpec
from shellback.exec.engine.engine import Engine
from shellback.exec.engine.waiting import shown
from shellback.exec.policy.commands import check_yield_after, command_spec
from shellback.exec.reports.render import facts, measured, outcome_text
from shellback.exec.tools.tool import Args, ExecTool, Invocation, Result

OnExit = Literal["always", "failure", "never"]
Lifetime = Literal["turn", "conversation", "detached"]


def _spec(engine: Engine, args: Args, *, pty: bool) -> CommandSpec:
    given = {name: value for name, value in args.items() if name != "yield_after"}
    return command_spec(**given, pty=pty, workspace=engine.workspace, limits=engine.limits)


def _check(engine: Engine, args: Args) -> None:
    check_yield_after(args.get("yield_after"), background=args["background"], limits=engine.limits)


@ExecTool(approval="judge", rule=True, check=_check, spec=partial(_spec, pty=False))
async def execute(
    call: Invocation,
    command: str,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
    background: bool = False,
    stdin: str | None = None,
    keep_stdin_open: bool = False,
    yield_after: float | None = None,
    on_exit: OnExit = "always",
    lifetime: Lifetime = "conversation",
) -> Result[str]:
    """Run a bash command in the workspace and return its output, stdout and stderr in order.

    The last line of the result says how it ended: exit code, signal, timed out, or still running. A
    non-zero exit code is a result, not an error. Long output is shown with its middle left out.
    For servers, builds and anything long use background=true: the call returns a session id at once and
    you are told when the process ends; process_watch tells you of its output. Every call is a new shell in the same
    workspace: `cd` and exports do not carry over.

    Args:
        command: The bash command line, at most 4096 characters.
        cwd: Directory to run in, inside the workspace; relative paths start at its root, which is the default.
        env: Environment variables to add; names that make programs load or run other code are refused.
        timeout: Seconds after which the whole process tree is stopped. Foreground: 0.1 to 600, default 30.
            Background: at most 7 days; none by default, but 600 for what runs without approval.
        background: Return at once with a session id and let the process run on; its end is told by a callback.
        stdin: Text the command reads from its standard input, at most 64 KiB; nothing by default.
        keep_stdin_open: Leave standard input open after `stdin`, for process_write.
        yield_after: Seconds after which a foreground command that still runs goes on in the background.
        on_exit: Which end in the background wakes you: always, failure (any but exit code 0), or never.
        lifetime: How long it may run: to the end of your turn (then it is stopped and does not wake you), of this
            conversation, or detached, which nothing but a kill or its timeout ends.
    """
    return await _told(call)


@ExecTool(approval="judge", check=_check, spec=partial(_spec, pty=True))
async def execute_pty(
    call: Invocation,
    command: str,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
    background: bool = True,
    stdin: str | None = None,
    yield_after: float | None = None,
    on_exit: OnExit = "always",
    lifetime: Lifetime = "conversation",
) -> Result[str]:
    """Run an interactive program (a REPL, an installer that asks) in a terminal of 40 rows and 120 columns.

    Returns a session id at once. Type with process_write or process_send_keys, read with process_poll, see what a
    full-screen program shows with process_screen; you are told when the program ends. stdout and stderr are one
    stream in a terminal.

    Args:
        command: The bash command line, at most 4096 characters.
        cwd: Directory to run in, inside the workspace; relative paths start at its root, which is the default.
        env: Environment variables to add; names that make programs load or run other code are refused.
        timeout: Seconds after which the whole process tree is stopped; none by default, at most 7 days.
        background: Return at once; false waits for the end or until the program waits for input, for at most 600
            seconds and by default 30.
        stdin: Text typed into the terminal first, at most 64 KiB; nothing by default.
        yield_after: With background=false, seconds after which a program that still runs goes on in the background.
        on_exit: Which end in the background wakes you: always, failure (any but exit code 0), or never.
        lifetime: How long it may run: to the end of your turn (then it is stopped and does not wake you), of this
            conversation, or detached, which nothing but a kill or its timeout ends.
    """
    return await _told(call)


async def _told(call: Invocation) -> Result[str]:
    """The result of a call that starts a command."""
    outcome = await call.calls.outcome(call)
    metadata = {**facts(outcome.session), **measured(outcome.output, outcome.err), "handed_over": outcome.handed_over}
    if outcome.waiting is not None:
        metadata["waiting_for_input"] = shown(outcome.waiting, outcome.session)
    return Result(outcome_text(outcome), metadata)
