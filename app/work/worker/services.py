"""What a process with an engine keeps going: services, and work that is repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 5.0
COUNT_S: Final = 300.0
"""A restored database is noticed if its backup is older than this, even without a start or stop of a worker."""


class Service(Protocol):
    """Starts before what uses it, and stops after that. `stop` may be called twice, or without a start."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def every(
    seconds: float, name: str, act: Callable[[], Awaitable[object]], *, first_s: float | None = None
) -> None:
    """Act every `seconds`, first after `first_s`, until cancelled. A failure is logged."""
    await asyncio.sleep(seconds if first_s is None else first_s)
    while True:
        try:
            await act()
        except Exception:
            log.exception("%s failed; it is tried again in %.0f s", name, seconds)
        await asyncio.sleep(seconds)
