"""A client of the supervisor in a container, which is brought up instead of started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shellback.exec.core.errors import SupervisorAbsent
from shellback.exec.link import launch
from shellback.exec.link.client import SupervisorClient
from shellback.exec.link.connection import Connection


class ContainedClient(SupervisorClient):
    """Calls `bring` where no keeper is left in the home. Where that raises `SupervisorAbsent`, nobody needs it now.

    After that only a request connects again. A home that was removed is not made anew.
    """

    _enough = (SupervisorAbsent,)

    def __init__(self, home: Path, bring: Callable[[], Awaitable[None]], **more: Any) -> None:
        super().__init__(home, **more)
        self._bring = bring

    async def _open(self) -> Connection:
        if not self._home.is_dir():
            raise SupervisorAbsent(f"{self._home} was removed")
        return await super()._open()

    async def _start_one(self) -> None:
        if await asyncio.to_thread(launch.kept, self._folder):
            # Its supervisor is being replaced, or about to listen.
            await asyncio.sleep(0.01)
        else:
            await self._bring()
