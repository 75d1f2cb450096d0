"""What telemetry is told of turns. It answers nothing and delays nothing."""

from __future__ import annotations

from shellback.work.queue.items import WorkItem


class TurnWatch:
    """Told about turns; this one ignores it. No method raises, or waits for anything outside this host."""

    async def began(self, item: WorkItem, over: str | None = None) -> None:
        """An execution of the turn of `item` holds its conversation; or it is `over` at once, with this outcome."""

    def ended(self, item: WorkItem, outcome: str, seconds: float) -> None:
        """That execution is over: its outcome, and how long it took, monotonic."""

    def failed(self, came: str) -> None:
        """The sweep freed a conversation whose turn had died; the result is `retried` or `set_aside`."""
