"""What a process with an engine keeps going: services, and work that is repeated."""

from __future__ import annotations

import asyncio
import logging
import time
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


class Pause(Protocol):
    """`Database.pause`."""

    async def __call__(self, seconds: float, *, since: float) -> None: ...


async def every(
    seconds: float, name: str, act: Callable[[], Awaitable[object]], pause: Pause, *, first_s: float
) -> None:
    """Act every `seconds`, first after `first_s`, until cancelled. After a failure, which is logged, `pause`."""
    await asyncio.sleep(first_s)
    while True:
        began = time.monotonic()
        try:
            await act()
        except Exception:
            log.exception("%s failed; it is tried again within %.0f s", name, seconds)
            await pause(seconds, since=began)
        else:
            await asyncio.sleep(seconds)
