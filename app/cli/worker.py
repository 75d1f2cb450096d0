"""`shellback worker`."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from app.cli.shared import load_settings

if TYPE_CHECKING:
    from app.work.worker import Worker


@click.command()
def worker() -> None:
    """Run turns for this host until SIGTERM or Ctrl-C, then let running turns end and go.

    Processes of agents are not the worker's: they live on while it is away, and a worker that
    starts takes up what the last one left.
    """
    from app import wiring
    from app.log import configure

    settings = load_settings()
    configure(settings.log_level, settings.log_format)
    wiring.arm_crash_points(settings)
    with wiring.place(settings) as where, wiring.worker(where) as built:
        asyncio.run(_serve(built))


async def _serve(built: Worker) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await built.start()
        click.echo("ready", err=True)
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(built.fallen.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        click.echo("draining: running turns end first", err=True)
    finally:
        await built.stop()
