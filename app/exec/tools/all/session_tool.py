"""`run_shell` and `shell_session`: login shells and persistent shells. Their docstrings are prompt text."""

from __future__ import annotations

from typing import Any, Literal

from shellback.exec.core import limits
from shellback.exec.core.model import Session, WindowSize
from shellback.exec.log.output import both_ends
from shellback.exec.policy.policy import Grant
from shellback.exec.reports.render import facts, measured
from shellback.exec.tools.shell_calls import check_timeout, noted, shell_of, size_in_range, start_spec
from shellback.exec.tools.short_commands import TIMEOUT_MS, login_result, login_seconds, login_spec
from shellback.exec.tools.tool import Action, Args, ExecTool, Invocation, Result, act, by_name

_Action = Literal["start", "exec", "write", "read", "resize", "kill", "list"]
_Returned = Result[dict[str, Any]]


@ExecTool(part="sessions", approval="judge", spec=login_spec)
async def run_shell(
    call: Invocation,
    command: str,
    cwd: str | None = None,
    timeout_ms: int = TIMEOUT_MS,
    env: dict[str, str] | None = None,
) -> Result[dict[str, Any]]:
    """Run one command with `bash -lc` and return status, exit_code, stdout and stderr, apart.

    status is "ok" whatever the exit code; "timeout" with exit code -1 where it was stopped after the timeout, with
    what it printed until then. The workspace is $HOME. Its own start-up files are not read: write what a command
    needs into the command. Every call is a new shell; use shell_session to keep directory and variables, and
    execute with background=true for servers and whatever takes longer than five minutes.

    Args:
        command: The bash command line, at most 4096 characters.
        cwd: Directory to run in, inside the workspace; ~ and relative paths start at its root, the default.
        timeout_ms: Milliseconds after which the whole process tree is stopped; at most 300000.
        env: Environment variables to add; names that make programs load or run other code are refused.
    """
    outcome = await call.calls.outcome(call)
    session, output = outcome.session, call.engine.output
    out, err = await both_ends(output(session), output(session, err=True), limits.RESULT_CHARS)
    value = login_result(session, out, err, timeout_s=login_seconds(timeout_ms, call.engine))
    return Result(value, {**facts(session), **measured(out, err), "handed_over": outcome.handed_over})


def _typed(args: Args) -> bytes:
    return str(args["input"]).encode("utf-8", "replace")


async def _shell(call: Invocation) -> Session:
    """The shell of a call; an ended one only for reads and replays."""
    live = call.act.asks and not await call.made_before()
    return await call.calls.shells.shells.get(call.args["session_id"], call.conversation_id, ended=not live)


async def _ready_to_run(call: Invocation) -> None:
    session = await _shell(call)
    if not await call.made_before():
        await call.calls.shells.shells.check_free(session)


async def _granted_once(call: Invocation) -> Grant | None:
    """The grant of a call; None for a replay, which is not judged again."""
    if await call.made_before():
        return None
    return (await call.calls.granted(call))[0]


@Action(approval="judge", takes=("cwd", "rows", "cols", "env"), spec=start_spec)
async def start(call: Invocation) -> _Returned:
    """Start a shell."""
    found = await call.calls.startable(call)
    if isinstance(found, Session):  # it was started, but its grant is no longer valid
        return Result({"session_id": found.id, "output": ""}, facts(found))
    started = await call.calls.shells.shells.start(found, call.origin)
    return Result({"session_id": started.session.id, "output": started.output}, facts(started.session))


@Action(
    category="process", approval="judge", types=True, input=True, needs=("session_id", "command"),
    takes=("timeout", "raw"), check=check_timeout, ready=_ready_to_run, line=shell_of,
)  # fmt: skip
async def exec(call: Invocation) -> _Returned:
    """Run a command in a shell."""
    grant = await _granted_once(call)
    done = await call.calls.shells.exec(call.args["session_id"], call.args, call.origin, grant)
    value = {
        "output": done.raw if call.args["raw"] else done.output,
        "alive": done.alive,
        "exit_code": done.exit_code,
        "cwd": done.cwd,
        "timed_out": done.timed_out,
        **({"waiting_for_input": True} if done.waiting else {}),
        **noted(done.note, done.slice),
    }
    return Result(value, {**facts(done.session), **measured(done.slice)})


@Action(
    category="process", approval="judge", types=True, input=True, needs=("session_id", "input"), ready=_shell,
    typed=_typed,
)  # fmt: skip
async def write(call: Invocation) -> _Returned:
    """Type into a shell."""
    await _granted_once(call)
    session_id = call.args["session_id"]
    written = await call.calls.shells.shells.write(session_id, _typed(call.args), call.origin)
    return Result({"ok": True}, {"session_id": session_id, "bytes_written": written})


@Action(category="process", needs=("session_id",), takes=("raw",), ready=_shell)
async def read(call: Invocation) -> _Returned:
    """Read what a shell printed."""
    read = await call.calls.shells.shells.read(call.args["session_id"], call.origin, raw=call.args["raw"])
    ended = {} if read.exit_code is None else {"exit_code": read.exit_code}
    value = {"output": read.output, "alive": read.alive, **ended, **noted(read.note, read.slice)}
    return Result(value, {**facts(read.session), **measured(read.slice), "next_offset": read.slice.end})


@Action(
    category="process", approval="judge", input=True, needs=("session_id", "rows", "cols"), check=size_in_range,
    ready=_shell,
)  # fmt: skip
async def resize(call: Invocation) -> _Returned:
    """Change the size of a shell's terminal."""
    await _granted_once(call)
    size = WindowSize(call.args["rows"], call.args["cols"])
    session = await call.sessions.resize(call.args["session_id"], size, call.origin)
    call.calls.screens.resized(session, size)
    return Result({"ok": True}, facts(session))


@Action(category="process", approval="ask", needs=("session_id",), ready=_shell)
async def kill(call: Invocation) -> _Returned:
    """End a shell."""
    await _granted_once(call)
    session, survivors = await call.calls.shells.shells.kill(call.args["session_id"], call.origin)
    left = {"survivors": list(survivors)} if survivors else {}
    return Result({"ok": session.end is not None, **left}, {**facts(session), "survivors": [*survivors]})


@Action(category="process", name="list")
async def listed(call: Invocation) -> _Returned:
    """List the shells."""
    found = await call.calls.shells.shells.list(call.conversation_id)
    rows = [
        {
            "session_id": one.session.id,
            "alive": one.session.live,
            "idle_seconds": round(one.idle_s, 1),
            "uptime_seconds": round(one.uptime_s, 1),
        }
        for one in found
    ]
    return Result({"sessions": rows}, {"sessions": [facts(one.session) for one in found]})


@ExecTool(
    part="sessions", approval="judge", input=True, choice="action",
    acts=by_name(start, exec, write, read, resize, kill, listed),
)  # fmt: skip
async def shell_session(
    call: Invocation,
    action: _Action,
    session_id: str | None = None,
    command: str | None = None,
    input: str | None = None,
    cwd: str | None = None,
    rows: int | None = None,
    cols: int | None = None,
    timeout: float | None = None,
    env: dict[str, str] | None = None,
    raw: bool = False,
) -> Result[dict[str, Any]]:
    r"""Bash in a terminal that stays between calls: directory, variables, functions and running programs.

    start (cwd, rows, cols, env) returns session_id and output, the first prompt. exec (session_id, command,
    timeout, raw) runs a command and returns its output, exit_code, cwd, alive and timed_out; after the timeout, or
    when it waits for input, the command runs on: read (session_id) shows what it prints, write (session_id, input)
    types into it, and the character \u0003 interrupts it. resize (session_id, rows, cols) and kill (session_id)
    return ok. list shows your shells. One that is not used for 30 minutes is ended.

    Args:
        action: What to do.
        session_id: The shell, as start has returned it.
        command: For exec, the bash command line, at most 4096 characters; several lines are fine.
        input: For write, text as it is typed; end a line with a newline.
        cwd: For start, a directory inside the workspace; its root, which is $HOME, by default.
        rows: Height of the terminal, 24 by default.
        cols: Width of the terminal, 80 by default.
        timeout: For exec, seconds to wait for the command, 30 by default, at most 300.
        env: For start, environment variables to add.
        raw: For exec and read, the output as the terminal gets it, with the command, its escape sequences and the
            prompt.
    """
    return await act(call)
