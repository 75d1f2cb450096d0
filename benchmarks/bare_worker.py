"""`python -m benchmarks.bare_worker URL`: the baseline of a turn, the offline agent in a plain DBOS workflow.

It takes items off the queue `bare` until its standard input ends, and prints `ready` when it does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from dbos import DBOS
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability

from shellback.agent.offline import offline_model

QUEUE: Final = "bare"
WORKFLOW: Final = "bare.turn"
SLOTS: Final = 32
POLL_S: Final = 0.05


async def main(url: str) -> None:
    agent = Agent(
        offline_model(), name="bare", capabilities=[DBOSDurability[object](parallel_execution_mode="sequential")]
    )
    DBOS(
        config={
            "name": "bare",
            "system_database_url": url,
            "executor_id": "bare",
            "application_version": "1",
            "log_level": "WARNING",
        }
    )

    @DBOS.workflow(name=WORKFLOW)
    async def turn(text: str) -> str:
        return (await agent.run(text)).output

    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, worker_concurrency=SLOTS, polling_interval_sec=POLL_S)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.to_thread(DBOS.destroy)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
