"""`run_shell` and `shell_session`: login shells and shells that stay. Their docstrings are prompt text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from shellback.exec.core import limits
from shellback.exec.core.identity import call_key, conversation_of, origin_of
from shellback.exec.core.model import CallOrigin, Session, WindowSize
from shellback.exec.log.output import both_ends
from shellback.exec.policy.policy import Grant
from shellback.exec.policy.tools import RUN_SHELL, SHELL_SESSION
from shellback.exec.reports.render import facts, measured
from shellback.exec.tools.shell_calls import noted
from shellback.exec.tools.short_commands import TIMEOUT_MS, login_result
from shellback.exec.tools.tool_calls import ToolCalls, answering

_Action = Literal["start", "exec", "write", "read", "resize", "kill", "list"]
_Args = dict[str, Any]
_Returned = ToolReturn[dict[str, Any]]


def session_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tools of shells, without gate and approval."""
    tools = FunctionToolset[Any](id="sessions", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=RUN_SHELL.metadata)
    async def run_shell(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        command: str,
        cwd: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        env: dict[str, str] | None = None,
    ) -> ToolReturn[dict[str, Any]]:
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
        args = {"command": command, "cwd": cwd, "timeout_ms": timeout_ms, "env": env}
        outcome = await calls.outcome(ctx, "run_shell", args)
        session = outcome.session
        output = calls.engine.output
        out, err = await both_ends(output(session), output(session, err=True), limits.RESULT_CHARS)
        value = login_result(session, out, err, timeout_s=calls.spec("run_shell", args).timeout_s)
        return ToolReturn(value, metadata={**facts(session), **measured(out, err), "handed_over": outcome.handed_over})

    @tools.tool(metadata=SHELL_SESSION.metadata)
    async def shell_session(  # noqa: D417, PLR0913, PLR0917 - a tool's signature is its contract
        ctx: RunContext[Any],
        action: _Action,
        session_id: str | None = None,
        command: str | None = None,
        input: str | None = None,
        cwd: str | None = None,
        rows: int | None = None,
        cols: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a parameter for the model, enforced elsewhere
        env: dict[str, str] | None = None,
        raw: bool = False,
    ) -> ToolReturn[dict[str, Any]]:
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
        args: _Args = {
            "action": action, "session_id": session_id, "command": command, "input": input, "cwd": cwd, "rows": rows,
            "cols": cols, "timeout": timeout, "env": env, "raw": raw,
        }  # fmt: skip
        with answering():
            calls.check("shell_session", args)
            return await _DO[action](calls, ctx, args)

    return tools


async def _start(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    found = await calls.startable(ctx, "shell_session", args, origin)
    if isinstance(found, Session):  # it is there, and what it was started with is not any more
        return ToolReturn({"session_id": found.id, "output": ""}, metadata=facts(found))
    started = await calls.shells.shells.start(found[0], origin, found[1])
    return ToolReturn({"session_id": started.session.id, "output": started.output}, metadata=facts(started.session))


async def _exec(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    grant = await _granted_once(calls, ctx, args, origin)
    done = await calls.shells.exec(args["session_id"], args, origin, grant)
    value = {
        "output": done.raw if args["raw"] else done.output,
        "alive": done.alive,
        "exit_code": done.exit_code,
        "cwd": done.cwd,
        "timed_out": done.timed_out,
        **({"waiting_for_input": True} if done.waiting else {}),
        **noted(done.note, done.slice),
    }
    return ToolReturn(value, metadata={**facts(done.session), **measured(done.slice)})


async def _write(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    await _granted_once(calls, ctx, args, origin)
    data = args["input"].encode("utf-8", "replace")
    written = await calls.shells.shells.write(args["session_id"], data, origin)
    return ToolReturn({"ok": True}, metadata={"session_id": args["session_id"], "bytes_written": written})


async def _read(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    read = await calls.shells.shells.read(args["session_id"], origin_of(ctx), raw=args["raw"])
    ended = {} if read.exit_code is None else {"exit_code": read.exit_code}
    value = {"output": read.output, "alive": read.alive, **ended, **noted(read.note, read.slice)}
    return ToolReturn(value, metadata={**facts(read.session), **measured(read.slice), "next_offset": read.slice.end})


async def _resize(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    await _granted_once(calls, ctx, args, origin)
    size = WindowSize(args["rows"], args["cols"])
    session = await calls.sessions(ctx).resize(args["session_id"], size, origin)
    calls.screens.resized(session, size)
    return ToolReturn({"ok": True}, metadata=facts(session))


async def _kill(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    await _granted_once(calls, ctx, args, origin)
    session, survivors = await calls.shells.shells.kill(args["session_id"], origin)
    left = {"survivors": list(survivors)} if survivors else {}
    return ToolReturn({"ok": session.end is not None, **left}, metadata={**facts(session), "survivors": [*survivors]})


async def _list(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:  # noqa: ARG001 - it has none
    listed = await calls.shells.shells.list(conversation_of(ctx))
    rows = [
        {
            "session_id": one.session.id,
            "alive": one.session.live,
            "idle_seconds": round(one.idle_s, 1),
            "uptime_seconds": round(one.uptime_s, 1),
        }
        for one in listed
    ]
    return ToolReturn({"sessions": rows}, metadata={"sessions": [facts(one.session) for one in listed]})


_DO: Final[dict[str, Callable[[ToolCalls, RunContext[Any], _Args], Awaitable[_Returned]]]] = {
    "start": _start,
    "exec": _exec,
    "write": _write,
    "read": _read,
    "resize": _resize,
    "kill": _kill,
    "list": _list,
}


async def _granted_once(calls: ToolCalls, ctx: RunContext[Any], args: _Args, origin: CallOrigin) -> Grant | None:
    """The grant of a call; None for one that has acted before, which is not judged again."""
    if await calls.engine.store.recalled(call_key(origin)) is not None:
        return None
    return (await calls.granted(ctx, "shell_session", args, origin)).grant
