"""A look of a running turn, before a model request: at its mailbox, a wish to stop it, and its processes.

One transaction, recorded with the turn. It is no recorded step: that would be two more transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.reports.blocks import Seen, Told
from shellback.storage.rows import change
from shellback.storage.tables import turns
from shellback.work.queue import mailbox
from shellback.work.queue.mailbox import Letter
from shellback.work.turn import stopping
from shellback.work.turn.stopping import Wish

News = Callable[[sa.Connection, Sequence[Letter]], Told | None]
"""What changed in processes that neither the history nor these letters tell."""
LOOKS: Final = "looks"


def nothing(_conn: sa.Connection, _letters: Sequence[Letter]) -> None:
    """No process has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look has found at the time `at` of the database. With a `wish` to stop the turn it took no letters."""

    at: float
    letters: list[Letter] = field(default_factory=list[Letter])
    wish: Wish | None = None
    told: Told | None = None


def look(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int, step: int, news: News = nothing) -> Look:
    """Take unread rows for step `step` of a turn, or read the wish to stop it; a repeat returns what it returned first.

    An end cannot come between the letters and `news`: its transaction waits for the conversation's row.

    Raises:
        StaleTurn: This execution no longer holds the conversation.
    """
    row = mailbox.held(conn, conversation_id, turn_id, epoch)
    begun: dict[str, Any] = conn.execute(_BEGUN, {"id": turn_id}).scalar_one() or {}
    before: dict[str, Any] = begun.get(LOOKS, {})
    if (kept := before.get(str(step))) is not None:
        return _recorded(kept, mailbox.taken(conn, conversation_id, turn_id, step))
    letters, wish = stopping.take_unless_stopped(conn, row, turn_id, step)
    found = Look(at=row.now, letters=letters, wish=wish, told=news(conn, letters) if wish is None else None)
    record = {"at": found.at, "wish": wish and asdict(wish), "told": found.told and found.told._asdict()}
    change(conn, turns, turn_id, begun={**begun, LOOKS: {**before, str(step): record}})
    return found


_BEGUN: Final = sa.select(turns.c.begun).where(turns.c.id == sa.bindparam("id"))


def _recorded(kept: Mapping[str, Any], letters: list[Letter]) -> Look:
    wish, told = kept["wish"], kept["told"]
    return Look(
        at=kept["at"],
        letters=letters,
        wish=wish and Wish(by=wish["by"], living=list(map(tuple, wish["living"])), count=wish["count"]),
        told=told and Told(told["text"], {name: Seen(*seen) for name, seen in told["seen"].items()}),
    )
