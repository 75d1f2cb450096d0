"""`shell`: one tool for the conversation's shell and for processes. Its docstring is prompt text.

It does what other tools do, under other names: a task is a session. Off unless `SHELL_TOOL=on`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from shellback.exec.core.errors import (
    CommandDenied,
    ExecError,
    InvalidCommand,
    PathOutsideSandbox,
    PtyError,
    SessionNotFound,
    SpawnFailed,
    TaskCompleted,
)
from shellback.exec.core.model import APPROVED, SHELL, CommandSpec, SessionState
from shellback.exec.engine.engine import Engine
from shellback.exec.persistent import ShellBusy
from shellback.exec.policy.commands import command_spec
from shellback.exec.policy.policy import Grant, Proposal, Verdict, grant
from shellback.exec.reports.blocks import block_of, label_of
from shellback.exec.reports.render import facts, measured
from shellback.exec.tools.shell_calls import check_timeout, noted, own_shell, shell_of_conversation
from shellback.exec.tools.tool import Action, Args, ExecTool, Invocation, Result, act, by_name

_Op = Literal["execute", "spawn", "kill", "status", "output"]
_Returned = Result[dict[str, Any]]
_BUSY: Final = "a command runs in this shell, so this one was not run: "
_RUNS_ON: Final = (
    "output with task_id {0} shows what it prints, process_write and process_send_keys with session_id {0} answer it "
    "or interrupt it (C-c), kill ends the shell"
)
_WORDS: Final[Mapping[type[ExecError], str]] = {
    PathOutsideSandbox: "path outside sandbox: ",
    CommandDenied: "command denied by policy: ",
    PtyError: "pty error: ",
    SpawnFailed: "process spawn failed: ",
}


def worded(error: ExecError) -> str:
    """An error in the words of this tool's specification."""
    if isinstance(error, SessionNotFound):
        return f"unknown task: {error.session_id}"
    if isinstance(error, TaskCompleted):
        return f"task already completed: {error.end}"
    said = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), "")
    return f"{said}{str(error).removeprefix('refused by policy: ')}"


def _process(engine: Engine, args: Args) -> CommandSpec:
    """The process that the arguments of `spawn` describe: in the background, its streams apart."""
    made = command_spec(command=args["command"], background=True, workspace=engine.workspace, limits=engine.limits)
    return replace(made, separate_stderr=True)


@Action(
    category="process", approval="judge", types=True, input=True, needs=("command",), takes=("timeout",),
    check=check_timeout, line=shell_of_conversation,
)  # fmt: skip
async def execute(call: Invocation) -> _Returned:
    """Run a command in the conversation's shell."""
    made: Grant | None = None
    session_id = await call.engine.store.acted_on(call.key)
    if session_id is None:
        # Only in the shell of the approval: it may have ended since, or another may have been started.
        made, weighed = await call.calls.granted(call)
        session_id = weighed.asked.args["session_id"] or await _started(call, made, weighed.starts)
    try:
        done = await call.calls.shells.exec(session_id, call.args, call.origin, made)
    except ShellBusy:
        raise InvalidCommand(_BUSY + _RUNS_ON.format(session_id)) from None
    value = {"stdout": done.output, "stderr": "", "exit_code": done.exit_code, "duration_ms": done.duration_ms}
    note = done.note
    if done.timed_out or done.waiting:
        value |= {"timed_out": done.timed_out, "waiting_for_input": done.waiting, "task_id": session_id}
        note = ("it waits for input: " if done.waiting else "it still runs: ") + _RUNS_ON.format(session_id)
    return Result(value | noted(note, done.slice), {**facts(done.session), **measured(done.slice)})


async def _started(call: Invocation, made: Grant, proposal: Proposal | None) -> str:
    """Start the conversation's shell for the first call that needs it."""
    assert proposal is not None
    yes = Verdict(decision="allow", reason="its call was approved", by=APPROVED, approval_id=made.approval_id)
    allowed = grant(proposal, yes, None)
    assert allowed is not None
    return (await call.calls.shells.shells.start(allowed, own_shell(call.origin))).session.id


@Action(approval="judge", needs=("command",), spec=_process)
async def spawn(call: Invocation) -> _Returned:
    """Start a process."""
    session = (await call.calls.outcome(call)).session
    if session.state is SessionState.START_FAILED and session.end is not None:
        why = os.strerror(session.end.errno or 0)
        raise InvalidCommand(f"process spawn failed: {why}; nothing runs")
    # No state: if it has ended already, as in a replay, only its callback reports the end.
    return Result(
        {"task_id": session.id, "block_label": label_of(session.id)},
        {"session_id": session.id, "log_path": session.log_path},
    )


@Action(category="process", approval="ask", needs=("task_id",))
async def kill(call: Invocation) -> _Returned:
    """End a process."""
    if not await call.made_before():
        await call.calls.granted(call)
    session, survivors = await call.sessions.kill(call.args["task_id"], call.origin)
    left = {"survivors": list(survivors)} if survivors else {}
    done = session.end is not None and not survivors
    return Result({"success": done, **left}, {**facts(session), "survivors": [*survivors]})


@Action(category="process")
async def status(call: Invocation) -> _Returned:
    """List what runs."""
    found = await call.engine.store.list(conversation_id=call.conversation_id, live=True)
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
    return Result({"processes": rows}, {"sessions": [facts(one) for one in running]})


@Action(category="process", needs=("task_id",))
async def output(call: Invocation) -> _Returned:
    """Show what a process printed last."""
    session = await call.sessions.get(call.args["task_id"])
    block = block_of(session, *call.engine.streams(session)).facts()
    if session.kind == SHELL:
        block["stdout"] = await call.calls.shells.last(session)
    block["block_label"] = block.pop("label")
    block["task_id"] = block.pop("session_id")
    return Result(block, facts(session))


@ExecTool(
    part="shell", approval="judge", choice="op", acts=by_name(execute, spawn, kill, status, output), worded=worded
)
async def shell(
    call: Invocation,
    op: _Op,
    command: str | None = None,
    timeout: float | None = None,
    task_id: str | None = None,
) -> Result[dict[str, Any]]:
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
    return await act(call)
