"""Following events by number."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shellback.wiring.wiring import Place
    from shellback.work.queue.stream import Event

PAGE: Final = 500
LATE_S: Final = 2.0
"""How long a number that Postgres has given out may take to be committed, others after it being there already."""


class Tail:
    """Events after a number, of one conversation or of all, each once; one that was committed late comes late."""

    def __init__(self, where: Place, conversation_id: str | None, after: int, *, kinds: Collection[str] = ()) -> None:
        self._database = where.database
        self._conversation_id = conversation_id
        self._kinds = kinds
        self._after = after
        self._late_s = 0.0 if self._database.dialect == "sqlite" else LATE_S
        self._read: deque[tuple[float, int]] = deque()
        self._shown: set[int] = set()

    def new(self) -> Iterator[Event]:
        """What has come since the last call."""
        from shellback.work.queue import stream

        number, full = self._after, True
        while full:
            found = self._database.read_now(stream.after, self._conversation_id, number, PAGE, kinds=self._kinds)
            for event in found:
                number = event.id
                if number not in self._shown:
                    self._shown.add(number)
                    yield event
            full = len(found) == PAGE
            if full:
                self._go_on_after(number)
        self._read.append((time.monotonic(), number))
        while self._read and time.monotonic() - self._read[0][0] >= self._late_s:
            self._go_on_after(self._read.popleft()[1])

    def _go_on_after(self, number: int) -> None:
        self._after = max(self._after, number)
        self._shown = {shown for shown in self._shown if shown > self._after}


class Events(Tail):
    """The same without the tail of executions that were repeated."""

    def __init__(self, where: Place, conversation_id: str | None, after: int) -> None:
        super().__init__(where, conversation_id, after)
        self._epochs: dict[str, int] = {}

    def new(self) -> Iterator[Event]:
        """What has come since the last call."""
        for event in super().new():
            if event.epoch:
                if event.epoch < self._epochs.get(event.turn_id, 0):
                    continue
                self._epochs[event.turn_id] = event.epoch
            yield event
