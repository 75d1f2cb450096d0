"""The workspace tools: short commands, Python, and files. Their docstrings are prompt text."""

from __future__ import annotations

from typing import Any, Literal

from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolReturn

from shellback.exec.engine.joining import Outcome
from shellback.exec.log.output import both_ends
from shellback.exec.policy.tools import (
    EDIT_FILE,
    EVALUATE_PYTHON,
    GLOB,
    GREP,
    LS,
    READ_FILE,
    RM,
    SHELL_EXECUTE,
    WRITE_FILE,
)
from shellback.exec.reports.render import facts, measured
from shellback.exec.tools.file_tools.checks import LINES
from shellback.exec.tools.short_commands import OUTPUT_BYTES, TIMEOUT_S, clamp_note, result, without_python
from shellback.exec.tools.tool_calls import ToolCalls

_Mode = Literal["overwrite", "create", "append"]


def workspace_tools(calls: ToolCalls) -> FunctionToolset[Any]:
    """The tools of a workspace, without gate and approval."""
    tools = FunctionToolset[Any](id="workspace", docstring_format="google", require_parameter_descriptions=True)
    _commands(tools, calls)
    _reading(tools, calls)
    _changing(tools, calls)
    return tools


def _commands(tools: FunctionToolset[Any], calls: ToolCalls) -> None:
    @tools.tool(metadata=SHELL_EXECUTE.metadata)
    async def shell_execute(  # noqa: D417 - a tool's signature is its contract
        ctx: RunContext[Any],
        command: list[str],
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        timeout_seconds: float = TIMEOUT_S,
        capture_output: bool = True,
    ) -> ToolReturn[dict[str, Any]]:
        """Run one short program in the workspace, with exactly these words: no shell reads them.

        Returns exit_code, stdout and stderr apart. Exit code 124 means that it was stopped after the timeout, 127 that
        there is no such program. For pipes, loops, servers and whatever takes longer use execute.

        Args:
            command: The program and its arguments, ASCII, at most 4096 characters together.
            cwd: Directory to run in, relative to the workspace, without . and .. in it; the workspace by default.
            env: Environment variables to add: ASCII, at most 64, names of at most 80 characters.
            stdin: Text that the program reads from its standard input, at most 48000 characters; nothing by default.
            timeout_seconds: Seconds after which it is stopped; what is not between 1 and 120 is brought there.
            capture_output: False leaves stdout and stderr out of the result.
        """
        args = {
            "command": command,
            "cwd": cwd,
            "env": env,
            "stdin": stdin,
            "timeout_seconds": timeout_seconds,
            "capture_output": capture_output,
        }
        outcome = await calls.outcome(ctx, "shell_execute", args)
        value, metadata = await _streams(calls, outcome, captured=capture_output)
        value = {"command": command, "cwd": _inner(calls, outcome), **value}
        if note := clamp_note(timeout_seconds, calls.engine.limits):
            value["note"] = note
        return ToolReturn(value, metadata=metadata)

    @tools.tool(metadata=EVALUATE_PYTHON.metadata)
    async def evaluate_python(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any],
        code: str,
        reads: dict[str, Any] | None = None,
        writes: dict[str, Any] | None = None,
        globals: dict[str, Any] | None = None,
    ) -> ToolReturn[dict[str, Any]]:
        """Run a Python program in the workspace for at most 5 seconds; print what you want to know.

        Args:
            code: The program, at most 1 MiB.
            reads: Has to be empty: open files of the workspace in the code.
            writes: Has to be empty: write files with write_file, or in the code.
            globals: Has to be empty: assign what you need at the beginning of the code.
        """
        args = {"code": code, "reads": reads, "writes": writes, "globals": globals}
        outcome = await calls.outcome(ctx, "evaluate_python", args)
        value, metadata = await _streams(calls, outcome)
        if without_python(value):
            raise ToolFailed(
                f"python3 is not there where commands run ({calls.engine.backend.description.rstrip('.')}), so "
                "evaluate_python cannot be used here; nothing ran. Use shell_execute with a program that is there, or "
                "ask the operator for an image with python3"
            )
        del value["duration_ms"]
        return ToolReturn(value, metadata=metadata)


def _reading(tools: FunctionToolset[Any], calls: ToolCalls) -> None:
    @tools.tool(metadata=LS.metadata)
    async def ls(ctx: RunContext[Any], path: str = ".") -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """List a directory of the workspace: names, sizes of files in bytes, a slash behind directories.

        Args:
            path: The directory, relative to the workspace.
        """
        return await calls.on_files(ctx, "ls", {"path": path})

    @tools.tool(metadata=READ_FILE.metadata)
    async def read_file(ctx: RunContext[Any], path: str, offset: int = 0, limit: int = LINES) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Read a text file of the workspace, exactly as it is; what is longer than a result is read in parts.

        Args:
            path: The file, relative to the workspace.
            offset: How many lines to leave out at the beginning.
            limit: How many lines to return at most.
        """
        return await calls.on_files(ctx, "read_file", {"path": path, "offset": offset, "limit": limit})

    @tools.tool(metadata=GLOB.metadata)
    async def glob(ctx: RunContext[Any], pattern: str, path: str = ".") -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Find files and directories of the workspace by their names, sorted.

        Args:
            pattern: With *, ?, [...], {a,b}, and ** for any number of directories: **/*.py, src/**/test_*.
            path: The directory to search in, relative to the workspace.
        """
        return await calls.on_files(ctx, "glob", {"pattern": pattern, "path": path})

    @tools.tool(metadata=GREP.metadata)
    async def grep(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any], pattern: str, path: str = ".", glob: str | None = None, ignore_case: bool = False
    ) -> ToolReturn[str]:
        """Find lines in files of the workspace: path, line number and line of each.

        Args:
            pattern: A regular expression as Python has them.
            path: The file or directory to search in, relative to the workspace.
            glob: Only files that match this, as *.py or src/**/*.ts.
            ignore_case: Whether upper and lower case are the same.
        """
        args = {"pattern": pattern, "path": path, "glob": glob, "ignore_case": ignore_case}
        return await calls.on_files(ctx, "grep", args)


def _changing(tools: FunctionToolset[Any], calls: ToolCalls) -> None:
    @tools.tool(metadata=WRITE_FILE.metadata)
    async def write_file(ctx: RunContext[Any], path: str, content: str, mode: _Mode = "overwrite") -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Write a text file of the workspace; directories on the way are made.

        Args:
            path: The file, relative to the workspace.
            content: The text, at most 48000 characters.
            mode: overwrite replaces what is there, create refuses if something is, append adds to its end.
        """
        return await calls.on_files(ctx, "write_file", {"path": path, "content": content, "mode": mode})

    @tools.tool(metadata=EDIT_FILE.metadata)
    async def edit_file(  # noqa: D417 - the context is no parameter of the tool
        ctx: RunContext[Any], path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> ToolReturn[str]:
        """Replace a piece of text in a file of the workspace.

        Args:
            path: The file, relative to the workspace.
            old_string: The text as it stands there, with its spaces; enough of it to be there only once.
            new_string: The text to put in its place.
            replace_all: Replace it wherever it is.
        """
        args = {"path": path, "old_string": old_string, "new_string": new_string, "replace_all": replace_all}
        return await calls.on_files(ctx, "edit_file", args)

    @tools.tool(metadata=RM.metadata)
    async def rm(ctx: RunContext[Any], path: str) -> ToolReturn[str]:  # noqa: D417 - the context is no parameter of the tool
        """Remove a file of the workspace, or a directory with everything in it; of a link, the link.

        Args:
            path: What to remove, relative to the workspace.
        """
        return await calls.on_files(ctx, "rm", {"path": path})


async def _streams(
    calls: ToolCalls, outcome: Outcome, *, captured: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    session = outcome.session
    out, err = await both_ends(calls.engine.output(session), calls.engine.output(session, err=True), OUTPUT_BYTES)
    metadata = {**facts(session), **measured(out, err), "handed_over": outcome.handed_over}
    return result(session, out, err, captured=captured), metadata


def _inner(calls: ToolCalls, outcome: Outcome) -> str:
    below = outcome.session.cwd.removeprefix(str(calls.engine.workspace))
    return f"{calls.engine.backend.inner.rstrip('/')}{below}"
