"""A wait on an event loop for something that happens again and again. Standard library only: the proxy has it too."""

from __future__ import annotations

import asyncio


class Ring:
    """Wakes all who wait. Who takes `next` before it looks, and waits for that, misses no ring in between."""

    def __init__(self) -> None:
        self.next = asyncio.Event()
        """Set at the next ring."""

    def ring(self) -> None:
        """Wake all who wait."""
        rung, self.next = self.next, asyncio.Event()
        rung.set()
