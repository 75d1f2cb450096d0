"""Handlers of tools that run commands and write files, the same in a worker, in a sandbox of their own and in a test.

A handler takes its parameters and a `ToolContext`, which the dependencies of a turn are. The tools below are plain
functions that call one. From the directory above this one, with approvals answered in the chat:

    ENABLE_EXECUTE=true AGENT=examples.handlers:agent PYTHONPATH=. shellback chat
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai import Agent, RunContext

from shellback.exec.shell import ToolContext, ToolResult


@dataclass(slots=True, frozen=True)
class RunTestsParams:
    """What is to be tested."""

    test_path: str
    working_dir: str | None = None


@dataclass(slots=True, frozen=True)
class RunTestsResult:
    """How it went."""

    passed: bool
    output: str
    errors: str


def run_tests_handler(
    params: RunTestsParams,
    *,
    context: ToolContext,
) -> ToolResult[RunTestsResult]:
    """Run the tests of a path."""
    if context.shell is None:
        return ToolResult.error("No shell available in this context.")

    # Beat before potentially slow execution
    context.beat()

    try:
        result = context.shell.execute(
            ["pytest", params.test_path, "-v"],
            cwd=params.working_dir,
            timeout_seconds=120.0,
        )
    except PermissionError as e:
        return ToolResult.error(f"Command blocked: {e}")

    if result.timed_out:
        return ToolResult.error(f"Tests timed out after {result.duration_seconds:.1f}s")

    return ToolResult.ok(
        RunTestsResult(
            passed=result.success,
            output=result.stdout,
            errors=result.stderr,
        ),
        message=f"Tests {'passed' if result.success else 'failed'}",
    )


@dataclass(slots=True, frozen=True)
class Params:
    """What is to be run."""

    command: str


@dataclass(slots=True, frozen=True)
class Result:
    """What it printed."""

    output: str


def my_handler(params: Params, *, context: ToolContext) -> ToolResult[Result]:
    """Run a command, and tell apart all the ways in which that can fail."""
    shell = context.shell
    if shell is None:
        return ToolResult.error("No shell available")

    try:
        result = shell.execute(params.command, timeout_seconds=60.0)
    except PermissionError as e:
        return ToolResult.error(f"Command blocked: {e}")
    except ValueError as e:
        return ToolResult.error(f"Invalid command: {e}")

    if result.timed_out:
        return ToolResult.error(
            f"Command timed out after {result.duration_seconds:.1f}s.\nPartial output:\n{result.stdout}"
        )

    if not result.success:
        return ToolResult.error(f"Command failed (exit {result.exit_code}):\n{result.stderr}")

    return ToolResult.ok(Result(output=result.stdout), message="Command succeeded")


@dataclass(slots=True, frozen=True)
class BuildParams:
    """Nothing is to be chosen."""


def build_handler(_params: BuildParams, *, context: ToolContext) -> ToolResult[Result]:
    """Write a script, then run it."""
    # Write a script, then execute it
    fs = context.filesystem
    shell = context.shell

    if fs is None or shell is None:
        return ToolResult.error("Workspace not available")

    # Create script file
    fs.write("build.sh", """#!/bin/bash
set -e
make clean
make build
make test
""")  # fmt: skip

    # Execute it
    result = shell.execute(["bash", "build.sh"], timeout_seconds=300.0)
    if not result.success:
        return ToolResult.error(f"Build failed (exit {result.exit_code}):\n{result.stderr}")
    return ToolResult.ok(Result(output=result.stdout), message="Built")


agent = Agent(name="builder", deps_type=ToolContext)


@agent.tool(requires_approval=True)
def run_tests(ctx: RunContext[ToolContext], test_path: str) -> ToolResult[RunTestsResult]:
    """Run the tests of a path.

    Args:
        test_path: A file or a directory with tests.
    """
    return run_tests_handler(RunTestsParams(test_path), context=ctx.deps)


@agent.tool(requires_approval=True)
def run(ctx: RunContext[ToolContext], command: str) -> ToolResult[Result]:
    """Run a command.

    Args:
        command: The text of a bash command.
    """
    return my_handler(Params(command), context=ctx.deps)


@agent.tool(requires_approval=True)
def build(ctx: RunContext[ToolContext]) -> ToolResult[Result]:
    """Clean, build and test."""
    return build_handler(BuildParams(), context=ctx.deps)


@agent.tool
def look(ctx: RunContext[ToolContext], command: str) -> ToolResult[Result]:
    """Run a command that only reads.

    Args:
        command: The text of a bash command.
    """
    return my_handler(Params(command), context=ctx.deps)
