"""The exec tools in an agent of your own: no queue, no database. Run it with `python examples/own_agent.py`.

Processes and their logs outlive this program just the same; what does not is the memory of which
conversation they belong to. Give `Engine` another `SessionStore` to keep that too.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults

from shellback import (
    Engine,
    ExecCapability,
    ExecError,
    ExecTools,
    HostBackend,
    MemorySessionStore,
    SupervisorClient,
    make_workspace,
)
from shellback.agent.offline import offline_model


async def main() -> None:
    """One message, its approvals on the terminal, the answer."""
    home, workspace = Path("state").absolute(), Path("workspace").absolute()
    home.mkdir(mode=0o700, exist_ok=True)
    make_workspace(workspace)
    # Any Pydantic AI model; the offline one calls `execute` for lines that begin with "$ ".
    model = offline_model()
    async with Engine(MemorySessionStore(), SupervisorClient(home), HostBackend(workspace), home=home) as engine:
        commands = ExecCapability(ExecTools(engine, enabled=True))
        agent = Agent(model, capabilities=[commands], output_type=[str, DeferredToolRequests])
        result = await agent.run("$ uname -sm")
        while isinstance(result.output, DeferredToolRequests):
            approvals = {call.tool_call_id: input(f"{call.args} [y/n] ") == "y" for call in result.output.approvals}
            answers = DeferredToolResults(approvals=dict(approvals))
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
        print(result.output)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ExecError as error:  # it says what is wrong, and what to do
        sys.exit(f"own_agent: {error}")
