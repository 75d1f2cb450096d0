"""Following the events of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.wiring import Place
    from app.work.stream import Event


class Events:
    """The events of one conversation after a number, without the tail of executions that were repeated."""

    def __init__(self, where: Place, conversation_id: str | None, after: int) -> None:
        self._database = where.database
        self._conversation_id = conversation_id
        self._number = after
        self._epochs: dict[str, int] = {}

    def new(self) -> Iterator[Event]:
        """What has come since the last call."""
        from app.work import stream

        for event in self._database.read_now(stream.after, self._conversation_id, self._number):
            self._number = event.id
            if event.epoch:
                if event.epoch < self._epochs.get(event.turn_id, 0):
                    continue
                self._epochs[event.turn_id] = event.epoch
            yield event
