"""What telemetry may know of turns: told what happens, asked for nothing, and never in the way."""

from __future__ import annotations

from typing import Protocol

from shellback.work.queue.items import WorkItem


class TurnWatch(Protocol):
    """Told about turns. Neither raises nor waits for anybody outside this host."""

    async def began(self, item: WorkItem, over: str | None = None) -> None:
        """An execution of the turn of `item` holds its conversation; or it is `over` at once, with this outcome."""
        ...

    def ended(self, item: WorkItem, outcome: str, seconds: float) -> None:
        """That execution is over: its outcome, and how long it took, monotonic."""
        ...

    def failed(self, came: str) -> None:
        """The sweep freed a conversation whose turn had died; what came of it: `retried` or `set_aside`."""
        ...


class Unwatched(TurnWatch):
    """Nobody is told."""

    async def began(self, item: WorkItem, over: str | None = None) -> None: ...

    def ended(self, item: WorkItem, outcome: str, seconds: float) -> None: ...

    def failed(self, came: str) -> None: ...
