"""`shell`: one tool for a shell of the conversation and for processes beside it. Its docstring is prompt text.

It does what other tools do, under other names: a task is a session. Off unless `SHELL_TOOL=on`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ToolReturn

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.core.identity import call_key, conversation_of, origin_of
from shellback.exec.core.model import SHELL, CallOrigin, SessionState
from shellback.exec.persistent import ShellBusy
from shellback.exec.policy.commands import proposed
from shellback.exec.policy.policy import Grant, Verdict, grant
from shellback.exec.policy.tools import SHELL_TOOL
from shellback.exec.reports.blocks import block_of, label_of
from shellback.exec.reports.render import facts, measured
from shellback.exec.shell.permit import APPROVED
from shellback.exec.tools.shell_calls import noted, own_shell
from shellback.exec.tools.tool_calls import ToolCalls, answering

_Op = Literal["execute", "spawn", "kill", "status", "output"]
_BUSY: Final = "a command runs in this shell, so this one was not run: "
_RUNS_ON: Final = (
    "output with task_id {0} shows what it prints, process_write and process_send_keys with session_id {0} answer it "
    "or interrupt it (C-c), kill ends the shell"
)
_Args = dict[str, Any]
_Returned = ToolReturn[dict[str, Any]]


def shell_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tool, without gate and approval."""
    tools = FunctionToolset[Any](id="shell", docstring_format="google", require_parameter_descriptions=True)

    @tools.tool(metadata=SHELL_TOOL.metadata)
    async def shell(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        op: _Op,
        command: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a parameter for the model, enforced elsewhere
        task_id: str | None = None,
    ) -> ToolReturn[dict[str, Any]]:
        """Run commands in a shell that stays (execute), or start processes beside it (spawn) and look after them.

        execute (command, timeout) runs a command in this conversation's bash: directory, variables and functions stay
        for the next one. It returns stdout, stderr, exit_code and duration_ms; a terminal has one stream, so all of it
        is in stdout and stderr is empty. A non-zero exit code is no error. After the timeout you get what was printed
        until then, and the command runs on. spawn (command) starts a process in the background and returns task_id and
        block_label; you are told of its end. kill (task_id) ends it and all it started, status lists what runs, output
        (task_id) shows what it printed last, stdout and stderr apart.

        Args:
            op: What to do.
            command: For execute and spawn, the bash command line, at most 4096 characters.
            timeout: For execute, seconds to wait, 30 by default, at most 300.
            task_id: For kill and output, the task, as spawn has returned it.
        """
        args: _Args = {"op": op, "command": command, "timeout": timeout, "task_id": task_id}
        with answering("shell"):
            calls.check("shell", args)
            return await _DO[op](calls, ctx, args)

    return tools


async def _execute(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    made: Grant | None = None
    session_id: str | None = await calls.engine.store.acted_on(call_key(origin))
    if session_id is None:
        # Only in the shell that it was approved for: that may have ended, or another been started, since.
        made, _, _, session_id = await calls.granted(ctx, "shell", args, origin)
        session_id = session_id or await _started(calls, origin, made)
    try:
        done = await calls.shells.exec(session_id, args, origin, made)
    except ShellBusy:
        raise InvalidCommand(_BUSY + _RUNS_ON.format(session_id)) from None
    value = {"stdout": done.output, "stderr": "", "exit_code": done.exit_code, "duration_ms": done.duration_ms}
    note = done.note
    if done.timed_out or done.waiting:
        value |= {"timed_out": done.timed_out, "waiting_for_input": done.waiting, "task_id": session_id}
        note = ("it waits for input: " if done.waiting else "it still runs: ") + _RUNS_ON.format(session_id)
    return ToolReturn(value | noted(note, done.slice), metadata={**facts(done.session), **measured(done.slice)})


async def _started(calls: ToolCalls, origin: CallOrigin, made: Grant) -> str:
    """Start the conversation's shell, as part of the call that needs it first."""
    spec = calls.shells.start_spec({})
    proposal = await proposed(spec, calls.engine.backend)
    yes = Verdict(decision="allow", reason="its call was approved", by=APPROVED, approval_id=made.approval_id)
    allowed = grant(proposal, yes, None)
    assert allowed is not None
    return (await calls.shells.shells.start(spec, own_shell(origin), allowed)).session.id


async def _spawn(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    session = (await calls.outcome(ctx, "shell", args)).session
    if session.state is SessionState.START_FAILED and session.end is not None:
        why = os.strerror(session.end.errno or 0)
        raise InvalidCommand(f"process spawn failed: {why}; nothing runs")
    # Not how it stands: where it has ended already, as when the call is made again, its end is told by nothing else.
    return ToolReturn(
        {"task_id": session.id, "block_label": label_of(session.id)},
        metadata={"session_id": session.id, "log_path": session.log_path},
    )


async def _kill(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    origin = origin_of(ctx)
    if await calls.engine.store.recalled(call_key(origin)) is None:
        await calls.granted(ctx, "shell", args, origin)
    session, survivors = await calls.sessions(ctx).kill(args["task_id"], origin)
    left = {"survivors": list(survivors)} if survivors else {}
    done = session.end is not None and not survivors
    return ToolReturn({"success": done, **left}, metadata={**facts(session), "survivors": [*survivors]})


async def _status(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:  # noqa: ARG001 - it has none
    found = await calls.engine.store.list(conversation_id=conversation_of(ctx), live=True)
    running = [one for one in found if one.kind != SHELL]
    now = time.time()
    rows = [
        {
            "task_id": one.id,
            "block_label": label_of(one.id),
            "command": one.command,
            "cwd": one.cwd,
            "uptime_seconds": round(max(0.0, now - (one.started_at or one.created_at)), 1),
        }
        for one in running
    ]
    return ToolReturn({"processes": rows}, metadata={"sessions": [facts(one) for one in running]})


async def _output(calls: ToolCalls, ctx: RunContext[Any], args: _Args) -> _Returned:
    session = await calls.sessions(ctx).get(args["task_id"])
    block = block_of(session, *calls.engine.streams(session)).facts()
    if session.kind == SHELL:
        block["stdout"] = await calls.shells.last(session)
    block["block_label"] = block.pop("label")
    block["task_id"] = block.pop("session_id")
    return ToolReturn(block, metadata=facts(session))


_DO: Final[dict[str, Callable[[ToolCalls, RunContext[Any], _Args], Awaitable[_Returned]]]] = {
    "execute": _execute,
    "spawn": _spawn,
    "kill": _kill,
    "status": _status,
    "output": _output,
}
