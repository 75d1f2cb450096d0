"""What turns have cost: requests to models, tokens and time, of each day in UTC."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from shellback.storage.rows import given
from shellback.storage.tables import turns

DAYS: Final = 31
LISTED: Final = 500
_DAY_S: Final = 86_400
_TURNS: Final = ("answered", "pending_approval", "failed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of turns that ended on one day, in seconds of the wall clock at its beginning; `conversation` "" is all.

    `seconds` are those in which a turn ran. Turns that ended before this was kept count no requests and tokens.
    """

    day: float
    conversation: str
    turns: int
    requests: int
    tokens_in: int
    tokens_out: int
    seconds: float


def look(conn: sa.Connection, *, each: bool, conversation_id: str | None = None) -> list[Cost]:
    """The last days, the last one first, as far as turns are kept; at most `LISTED` of them.

    With `each`, of each conversation, the dearest of a day first.
    """
    its = turns.c
    # CAST rounds on Postgres. On SQLite it does not, and not every SQLite has `floor`.
    second = its.ended_at if conn.dialect.name == "sqlite" else sa.func.floor(its.ended_at)
    # No parameter: in two places of a query, Postgres would take it for two values.
    day = sa.cast(second, sa.BigInteger) // sa.literal_column(str(_DAY_S), sa.Integer)
    total = [sa.func.coalesce(sa.func.sum(one), 0) for one in (its.requests, its.tokens_in, its.tokens_out)]
    named = [its.conversation_id] if each else []
    which = given((its.conversation_id, conversation_id))
    query = (
        sa.select(
            day.label("day"), *named, sa.func.count().label("turns"),
            total[0].label("requests"), total[1].label("tokens_in"), total[2].label("tokens_out"),
            sa.func.sum(its.ended_at - its.started_at).label("seconds"),
        )
        .where(its.ended_at >= time.time() - DAYS * _DAY_S, its.outcome.in_(_TURNS), *which)
        .group_by(day, *named)
        .order_by(day.desc(), (total[1] + total[2]).desc(), *named)
        .limit(LISTED)
    )  # fmt: skip
    return [
        Cost(
            day=float(row.day * _DAY_S),
            conversation=row.conversation_id if each else "",
            turns=row.turns,
            requests=row.requests,
            tokens_in=int(row.tokens_in),
            tokens_out=int(row.tokens_out),
            seconds=row.seconds or 0.0,
        )
        for row in conn.execute(query)
    ]
