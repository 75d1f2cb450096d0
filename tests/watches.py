"""Watches for tests, and a sink that remembers what it was told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from shellback.exec.core.ports import WatchSink
from shellback.exec.core.watch import Hit, Watch
from shellback.exec.reports.callback_text import watch_payload
from tests.supervisors import SOON


@dataclass
class Fired(WatchSink):
    """Remembers the payload of each hit, as the agent would be told."""

    told: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refuses: bool = False
    busy: bool = False
    """Whether what was told last is unread."""
    _rung: asyncio.Event = field(default_factory=asyncio.Event)

    def hit(self, tx: object, watch: Watch, hit: Hit) -> bool:
        if self.refuses:
            raise OSError("refused")
        if self.busy:
            return False
        self.told.append(watch_payload(watch, hit))
        self._rung.set()
        return True

    async def times(self, number: int) -> list[dict[str, Any]]:
        """What was told, once it is so many hits."""
        async with asyncio.timeout(SOON):
            while len(self.told) < number:
                self._rung.clear()
                await self._rung.wait()
        return self.told


def a_watch(number: int = 1, **changes: Any) -> Watch:
    watch = Watch(
        id=f"v{number}",
        session_id="s1",
        conversation_id="c1",
        turn_id="turn-1",
        host_id="h",
        kind="pattern",
        pattern="listening",
        offset=7,
        created_at=100.0 + number,
    )
    return replace(watch, **changes)


def a_hit(number: int = 1, **changes: Any) -> Hit:
    hit = Hit(number=number, offset=100 * number, at=200.0 + number, payload={"command": "serve"})
    return replace(hit, **changes)
