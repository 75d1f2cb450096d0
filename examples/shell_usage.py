"""A shell for your own code: no agent has to be there, no key, no queue. Run it with `python examples/shell_usage.py`.

The first half is the synchronous protocol, the second what only `AsyncShell` does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability

from shellback.agent.offline import offline_model
from shellback.exec import Engine, ExecError, HostBackend, MemorySessionStore, SupervisorClient, make_workspace
from shellback.exec.shell import AsyncShell, HostShell, Shell, shell_of
from shellback.exec.shell.permit import ByOperator

MAKEFILE = "build:\n\techo compiling\n\techo done > built\n"


class Builds(AbstractCapability[Any]):
    """A part of an agent that has a shell."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell


def build(section: Builds) -> None:
    """Find the shell of an agent, look around, build."""
    agent = Agent(offline_model(), capabilities=[section])

    shell = shell_of(agent)
    assert shell is not None
    assert shell is section.shell

    env = shell.env()
    print(f"Working in: {env.cwd}")
    print(f"PATH: {env.get('PATH')}")

    if not shell.which("make").found:
        raise SystemExit("make is not installed")

    shell.execute(["tee", "Makefile"], stdin=MAKEFILE)
    result = shell.execute(["make", "build"], timeout_seconds=120.0)
    if not result.success:
        raise SystemExit(f"Build failed: {result.stderr}")
    print(result.stdout, end="")

    late = shell.execute("echo waiting; sleep 60", timeout_seconds=0.5)
    print(f"{late.stdout.strip()}: {late.stderr}")


def on_the_host(workspace: Path) -> None:
    """The same with BubblewrapShell or PodmanShell in its place."""
    with HostShell(workspace) as shell:
        build(Builds(shell))


async def follow(engine: Engine) -> None:
    """Read what a command prints while it runs, write to it, end it with a signal."""
    shell = AsyncShell(engine, ByOperator(engine))
    running = await shell.spawn("while read -r line; do echo got $line; done; sleep 60", keep_stdin_open=True)
    await running.write("one\ntwo\n")
    await running.close_stdin()
    async for chunk in running.stream():
        print(chunk.stream, repr(chunk.text))
        if "two" in chunk.text:
            await running.send_signal(signal.SIGINT)
    print("ended by signal", (await running.wait()).signal)


async def stay(engine: Engine) -> None:
    """Run commands in one shell, which keeps its directory and variables, and answer what one of them asks."""
    async with await AsyncShell(engine, ByOperator(engine)).session() as shell:
        await shell.exec("mkdir -p deep && cd deep && export NAME=world")
        there = await shell.exec('echo "hello $NAME"')
        print(there.output.strip(), "in", there.cwd)
        await shell.exec("read -p 'go on? ' answer")
        await shell.write("y\n")
        print("the answer was", (await shell.exec("echo $answer")).output.strip())


async def main(workspace: Path, home: Path) -> None:
    """The synchronous half in a thread: it would stop the loop."""
    await asyncio.to_thread(on_the_host, workspace)
    async with Engine(MemorySessionStore(), SupervisorClient(home), HostBackend(workspace), home=home) as engine:
        await follow(engine)
        await stay(engine)


if __name__ == "__main__":
    where, state = Path("workspace").absolute(), Path("state").absolute()
    make_workspace(where)
    state.mkdir(mode=0o700, exist_ok=True)
    try:
        asyncio.run(main(where, state))
    except ExecError as error:  # it says what is wrong, and what to do
        sys.exit(f"shell_usage: {error}")
