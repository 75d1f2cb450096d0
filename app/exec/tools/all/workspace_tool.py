"""The workspace tools: short commands, Python, and files. Their docstrings are prompt text."""

from __future__ import annotations

from typing import Any, Literal

from shellback.exec.core.errors import InvalidCommand
from shellback.exec.engine.waiting import Outcome
from shellback.exec.log.output import both_ends
from shellback.exec.reports.render import facts, measured
from shellback.exec.tools.file_tools import checks
from shellback.exec.tools.file_tools.calls import as_edited, as_removed, as_written
from shellback.exec.tools.file_tools.looks import Looks
from shellback.exec.tools.file_tools.reads import Reads
from shellback.exec.tools.short_commands import (
    OUTPUT_BYTES,
    TIMEOUT_S,
    clamp_note,
    python_spec,
    result,
    shell_spec,
    without_python,
)
from shellback.exec.tools.tool import ExecTool, FileTool, Invocation, Result

_Mode = Literal["overwrite", "create", "append"]


@ExecTool(category="workspace", part="workspace", approval="judge", rule=True, spec=shell_spec)
async def shell_execute(
    call: Invocation,
    command: list[str],
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    timeout_seconds: float = TIMEOUT_S,
    capture_output: bool = True,
) -> Result[dict[str, Any]]:
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
    outcome = await call.calls.outcome(call)
    value, metadata = await _streams(call, outcome, captured=capture_output)
    below = outcome.session.cwd.removeprefix(str(call.engine.workspace))
    value = {"command": command, "cwd": f"{call.engine.backend.inner.rstrip('/')}{below}", **value}
    if note := clamp_note(timeout_seconds, call.engine.limits):
        value["note"] = note
    return Result(value, metadata)


@ExecTool(category="workspace", part="workspace", approval="judge", spec=python_spec, renamed={"stdin": "code"})
async def evaluate_python(
    call: Invocation,
    code: str,
    reads: dict[str, Any] | None = None,
    writes: dict[str, Any] | None = None,
    globals: dict[str, Any] | None = None,
) -> Result[dict[str, Any]]:
    """Run a Python program in the workspace for at most 5 seconds; print what you want to know.

    Args:
        code: The program, at most 1 MiB.
        reads: Has to be empty: open files of the workspace in the code.
        writes: Has to be empty: write files with write_file, or in the code.
        globals: Has to be empty: assign what you need at the beginning of the code.
    """
    value, metadata = await _streams(call, await call.calls.outcome(call))
    if without_python(value):
        raise InvalidCommand(
            f"python3 is not there where commands run ({call.engine.backend.description.rstrip('.')}), so "
            "evaluate_python cannot be used here; nothing ran. Use shell_execute with a program that is there, or "
            "ask the operator for an image with python3"
        )
    del value["duration_ms"]
    return Result(value, metadata)


async def _streams(
    call: Invocation, outcome: Outcome, *, captured: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    session, output = outcome.session, call.engine.output
    out, err = await both_ends(output(session), output(session, err=True), OUTPUT_BYTES)
    metadata = {**facts(session), **measured(out, err), "handed_over": outcome.handed_over}
    return result(session, out, err, captured=captured), metadata


@FileTool(look=Looks.of_directory, tell=Reads.entries)
async def ls(call: Invocation, path: str = ".") -> Result[str]:
    """List a directory of the workspace: names, sizes of files in bytes, a slash behind directories.

    Args:
        path: The directory, relative to the workspace.
    """
    return await call.calls.on_files(call)


@FileTool(check=checks.page, look=Looks.of_file, tell=Reads.text)
async def read_file(call: Invocation, path: str, offset: int = 0, limit: int = checks.LINES) -> Result[str]:
    """Read a text file of the workspace, exactly as it is; what is longer than a result is read in parts.

    Args:
        path: The file, relative to the workspace.
        offset: How many lines to leave out at the beginning.
        limit: How many lines to return at most.
    """
    return await call.calls.on_files(call)


@FileTool(check=checks.patterns, look=Looks.of_directory, tell=Reads.names)
async def glob(call: Invocation, pattern: str, path: str = ".") -> Result[str]:
    """Find files and directories of the workspace by their names, sorted.

    Args:
        pattern: With *, ?, [...], {a,b}, and ** for any number of directories: **/*.py, src/**/test_*.
        path: The directory to search in, relative to the workspace.
    """
    return await call.calls.on_files(call)


@FileTool(check=checks.patterns, look=Looks.of_any, tell=Reads.hits)
async def grep(
    call: Invocation, pattern: str, path: str = ".", glob: str | None = None, ignore_case: bool = False
) -> Result[str]:
    """Find lines in files of the workspace: path, line number and line of each.

    Args:
        pattern: A regular expression as Python has them.
        path: The file or directory to search in, relative to the workspace.
        glob: Only files that match this, as *.py or src/**/*.ts.
        ignore_case: Whether upper and lower case are the same.
    """
    return await call.calls.on_files(call)


@FileTool(approval="judge", check=checks.written, look=Looks.writing, wanted=as_written)
async def write_file(call: Invocation, path: str, content: str, mode: _Mode = "overwrite") -> Result[str]:
    """Write a text file of the workspace; directories on the way are made.

    Args:
        path: The file, relative to the workspace.
        content: The text, at most 48000 characters.
        mode: overwrite replaces what is there, create refuses if something is, append adds to its end.
    """
    return await call.calls.on_files(call)


@FileTool(approval="judge", check=checks.edited, look=Looks.editing, wanted=as_edited)
async def edit_file(
    call: Invocation, path: str, old_string: str, new_string: str, replace_all: bool = False
) -> Result[str]:
    """Replace a piece of text in a file of the workspace.

    Args:
        path: The file, relative to the workspace.
        old_string: The text as it stands there, with its spaces; enough of it to be there only once.
        new_string: The text to put in its place.
        replace_all: Replace it wherever it is.
    """
    return await call.calls.on_files(call)


@FileTool(approval="judge", look=Looks.removing, wanted=as_removed, follow=False)
async def rm(call: Invocation, path: str) -> Result[str]:
    """Remove a file of the workspace, or a directory with everything in it; of a link, the link.

    Args:
        path: What to remove, relative to the workspace.
    """
    return await call.calls.on_files(call)
