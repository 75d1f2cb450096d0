"""Follows events: each once, also one that is committed late or told again by a repeated turn.

The place of a reader in the events is a text, which a killed program keeps to go on from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from shellback.exec.core.display import request_lines
from shellback.work.errors import Deleted, InvalidRequest

if TYPE_CHECKING:
    import sqlalchemy as sa

    from shellback.storage.db import Database
    from shellback.work.queue.stream import Event

PAGE: Final = 500
LATE_S: Final = 2.0
"""The time in which Postgres commits a number that it has assigned; later numbers may be committed before it."""
WINDOW: Final = 1_000
"""So many numbers before the newest one may be committed late."""
MISSING: Final = 200
"""So many of them a place names."""
_PLACE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,4}(?:\.\d{1,4}){0,199}))?\Z")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the events: all up to `number` were read, but for those that were `missing` then."""

    number: int = 0
    missing: frozenset[int] = frozenset()

    @classmethod
    def of(cls, text: str) -> Self:
        """The place that `str` has written, or the number of an event; InvalidRequest if it is none."""
        found = _PLACE.match(text)
        if found is None:
            raise InvalidRequest(f"{text[:50]!r} is not the id of an event: give the id of the last one that was read")
        number = int(found[1])
        return cls(number, frozenset(number - int(back) for back in (found[2] or "").split(".") if back))

    def __str__(self) -> str:
        back = sorted(self.number - number for number in self.missing)
        return f"{self.number}-{'.'.join(map(str, back))}" if back else str(self.number)


CALLS: Final = frozenset({"tool_call", "approval"})
"""Kinds that are about a call, and so are never cut."""


def shown(event: Event) -> str | None:
    """The text to show a person for a call: whole, with misleading characters escaped. None for other kinds."""
    return "\n".join(request_lines(event.payload.get("args", event.payload))) if event.kind in CALLS else None


class Told(NamedTuple):
    """An event, and the place after it."""

    event: Event
    place: Position


class Tail:
    """Events after a place, of one conversation or of all, each once; a late commit is returned late."""

    def __init__(
        self, database: Database, conversation_id: str | None, after: Position, *, kinds: Collection[str] = ()
    ) -> None:
        self._database = database
        self._conversation_id = conversation_id
        self._kinds = kinds
        self.place = after
        self._late_s = 0.0 if database.dialect == "sqlite" else LATE_S
        self._first_missed = dict.fromkeys(after.missing, time.monotonic())

    @property
    def waits(self) -> bool:
        """Whether an event may still be committed late."""
        return bool(self.place.missing)

    def new(self) -> Iterator[Told]:
        """The events since the last call."""
        full = True
        while full:
            found, full = self.page()
            yield from found

    def page(self) -> tuple[list[Told], bool]:
        """The next events, at most `PAGE`, and whether there may be more."""
        found, there, above = self._database.read_now(self._look)
        told = [self._read(event, there, above) for event in found]
        self._forget()
        return told, len(found) == PAGE

    def _look(self, conn: sa.Connection) -> tuple[list[Event], set[int], int]:
        """The next events; and the numbers of all events from one number on, below which none is committed late."""
        from shellback.work.queue import stream

        place = self.place
        found = stream.after(
            conn, self._conversation_id, place.number, PAGE, kinds=self._kinds, also=sorted(place.missing)
        )
        last = max((event.id for event in found), default=0)
        if not self._late_s or not found or len(found) == PAGE:
            return found, set(), last
        above = max(place.number, last - WINDOW)
        return found, stream.numbers(conn, above, last), above

    def _read(self, event: Event, there: set[int], above: int) -> Told:
        number, missing = self.place.number, set(self.place.missing)
        missing.discard(event.id)
        if event.id > number:
            missing |= {one for one in range(max(number, above) + 1, event.id) if one not in there}
            number = event.id
        now = time.monotonic()
        missing = set(sorted(one for one in missing if number - one < WINDOW)[-MISSING:])
        self._first_missed = {one: self._first_missed.get(one, now) for one in missing}
        self.place = Position(number, frozenset(missing))
        return Told(event, self.place)

    def _forget(self) -> None:
        """No longer wait for what was not committed in its time: its transaction was rolled back."""
        now = time.monotonic()
        self._first_missed = {one: at for one, at in self._first_missed.items() if now - at < self._late_s}
        self.place = Position(self.place.number, frozenset(self._first_missed))


class Events(Tail):
    """The same, without late events of an execution that was repeated."""

    def __init__(self, database: Database, conversation_id: str | None, after: Position) -> None:
        super().__init__(database, conversation_id, after)
        self._epochs: dict[str, int] = {}

    def page(self) -> tuple[list[Told], bool]:
        """See `Tail.page`."""
        found, full = super().page()
        return [told for told in found if self._newest(told.event)], full

    def _newest(self, event: Event) -> bool:
        newest = event.epoch >= self._epochs.get(event.turn_id, 0)
        if event.epoch and newest:
            self._epochs[event.turn_id] = event.epoch
        return newest or not event.epoch


def require_kept(conn: sa.Connection, after: Position) -> None:
    """Go on if a place is known, and everything after it is kept.

    Raises:
        Deleted: Events after it are no longer kept.
        InvalidRequest: It is of another database.
    """
    from shellback.work.queue import stream

    first, last = stream.first_number(conn), stream.last_number(conn)
    if after.number > last:
        raise InvalidRequest(f"this database has no event {after} yet: give the id of an event that came from it")
    if after.number and (first is None or first > after.number + 1):
        raise Deleted(
            f"events after {after} are deleted: they are kept for a day. Begin without it, and read the conversation "
            "itself with `shellback conversations export`"
        )


@dataclass(slots=True)
class _Turn:
    """What a turn has told: texts, and calls and results between them. `at` is how much of it was told again."""

    epoch: int = 0
    said: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    at: int = 0
    again: str = ""
    """The text that was told again since the last call or result."""

    def add(self, kind: str, what: Any) -> None:
        """Add something that is new at this place."""
        if kind == "text" and self.at and self.said[self.at - 1][0] == "text":
            self.said[self.at - 1] = ("text", self.said[self.at - 1][1] + what)
        else:
            self.said.insert(self.at, (kind, what))
            self.at += 1


REPEATED: Final = frozenset({"text", "tool_call", "tool_result"})
"""Kinds that an execution tells anew."""
TURNS: Final = 64
"""So many turns are remembered at once."""
SAID_CHARS: Final = 1024 * 1024
"""So much of one turn is compared."""


class Once:
    """Takes out what a repeated execution of a turn tells again.

    A turn that a crash interrupts is executed again: recorded calls and results are told again, and the text of the
    request that was interrupted comes from its beginning. What is equal is not told twice. If the model says something
    else this time, the text comes with `again`: it replaces what the turn has said since its last call or result.
    """

    def __init__(self, database: Database, conversation_id: str, after: Position) -> None:
        self._database = database
        self._conversation_id = conversation_id
        self._after = after
        self._turns: dict[str, _Turn] = {}

    def told(self, event: Event) -> tuple[Event, bool] | None:
        """The event, or the part of it that is new, and whether it replaces text; None if nothing of it is new."""
        if not event.epoch or event.kind not in REPEATED:
            return event, False
        turn = self._turns.get(event.turn_id)
        if turn is None:
            turn = self._turns[event.turn_id] = _Turn()
            while len(self._turns) > TURNS:
                del self._turns[next(iter(self._turns))]
            for before in self._before(event.turn_id):
                _compared(turn, before)
        return _compared(turn, event)

    def _before(self, turn_id: str) -> list[Event]:
        """What the reader was told of a turn before it came here."""
        from shellback.work.queue import stream

        if not self._after.number:
            return []
        found = self._database.read_now(stream.of_turn, self._conversation_id, turn_id, self._after.number)
        return [event for event in found if event.kind in REPEATED and event.id not in self._after.missing]


def _compared(turn: _Turn, event: Event) -> tuple[Event, bool] | None:
    if event.epoch < turn.epoch:
        return None  # of an execution that was overtaken
    if event.epoch > turn.epoch:
        turn.epoch, turn.at, turn.again = event.epoch, 0, ""
    if event.kind != "text":
        turn.again = ""
        for place in range(turn.at, len(turn.said)):
            if turn.said[place] == (event.kind, event.payload):
                turn.at = place + 1
                return None
        turn.add(event.kind, event.payload)
        return event, False
    return _compared_text(turn, event)


def _compared_text(turn: _Turn, event: Event) -> tuple[Event, bool] | None:
    text = str(event.payload["text"])
    if turn.at >= len(turn.said) or turn.said[turn.at][0] != "text":
        # Nothing was said here before.
        if sum(len(what) for kind, what in turn.said if kind == "text") < SAID_CHARS:
            turn.add("text", text)
        return event, False
    before, turn.again = str(turn.said[turn.at][1]), turn.again + text
    if before.startswith(turn.again):
        return None
    if turn.again.startswith(before):
        new, replaces = turn.again[len(before) :], False
    else:
        new, replaces = turn.again, True
    turn.said[turn.at :] = [("text", turn.again)]
    turn.at, turn.again = len(turn.said), ""
    return replace(event, payload={**event.payload, "text": new}), replaces
