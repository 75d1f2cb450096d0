"""What a turn holds, as the database says it: a host takes no other machine's word for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from shellback.storage.errors import StaleTurn
from shellback.storage.rows import CLOCK
from shellback.storage.tables import conversations, turns
from shellback.work.approvals.approvals import Request
from shellback.work.approvals.asking import grants_of
from shellback.work.turn.deps import TurnDeps

_HOLDS: Final = (
    sa.select(turns.c.begun, CLOCK.label("now"))
    .join(conversations, conversations.c.id == turns.c.conversation_id)
    .where(
        turns.c.id == sa.bindparam("turn"),
        conversations.c.id == sa.bindparam("conversation"),
        conversations.c.host_id == sa.bindparam("host"),
        conversations.c.state == "claimed",
        conversations.c.claimed_by == turns.c.id,
        conversations.c.epoch == sa.bindparam("epoch"),
    )
)


def held_by(
    conn: sa.Connection,
    host_id: str,
    asked: Mapping[str, Any],
    seconds: float,
    counts: Callable[[Request], bool] = lambda _: True,
) -> TurnDeps:
    """The dependencies of a turn of `seconds` that holds its conversation of this host, with its approvals that count.

    Raises:
        StaleTurn: It does not.
    """
    which = {name: asked[name] for name in ("conversation", "turn", "epoch")}
    row = conn.execute(_HOLDS, {**which, "host": host_id}).one_or_none()
    if row is None or row.begun is None:
        raise StaleTurn(*which.values())
    decided = [Request(**one) for one in row.begun["decided"]]
    return TurnDeps(
        conversation_id=which["conversation"],
        turn_id=which["turn"],
        epoch=which["epoch"],
        gate=row.begun["gate"],
        began_at=row.begun["at"],
        seconds=seconds,
        until=time.monotonic() + row.begun["at"] + seconds - row.now,
        approvals=grants_of([one for one in decided if counts(one)]),
    )
