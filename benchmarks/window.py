"""How long on the host what was looked at last can still change before it runs."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final
from unittest import mock

from benchmarks.harness import Bench, Figure, Options, Reading, ms
from benchmarks.rig import Ground, ground, rig

SCRIPT: Final = "moment.sh"
COMMANDS: Final = {"command": "echo $EPOCHREALTIME", "script": f"bash {SCRIPT}"}
"""What says when it runs: the command's own text, and the first line of a script that it names."""
STARTS: Final = 50


def window(options: Options) -> Mapping[str, Reading]:
    """From the last comparison with what was approved to the first instruction of what runs."""
    return asyncio.run(_measure(ground(options.directory), options.samples(STARTS)))


async def _measure(where: Ground, starts: int) -> Mapping[str, Reading]:
    from shellback.exec.engine import engine

    compared, looked = engine.fixed, 0.0

    async def fixed(*given: Any) -> Any:
        nonlocal looked
        plan = await compared(*given)
        looked = time.time()
        return plan

    readings: dict[str, Reading] = {}
    async with rig(where) as made:
        (where.workspace / SCRIPT).write_text(f"{COMMANDS['command']}\n")
        with mock.patch.object(engine, "fixed", fixed):
            for name, command in COMMANDS.items():
                await made.run(command)
                took = sorted([float((await made.run(command)).output.text) - looked for _ in range(starts)])
                late = took[min(len(took) - 1, round(len(took) * 0.95))]
                readings[f"host window {name}"] = Reading(
                    measured=ms(statistics.median(took)), note=f"p95 {ms(late):.2f} ms of {starts} starts"
                )
    return readings


BENCHES = (
    Bench(
        name="host window",
        run=window,
        figures=(
            Figure(name="host window command", says="from the last look at directory and files to the command's start"),
            Figure(name="host window script", says="the same, to the first line of a script that the command names"),
        ),
    ),
)
