"""Sessions as rows, and their statements, which are built once because building one is slower than running it."""

from __future__ import annotations

from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.model import LIVE_STATES, Delivery, Session, SessionEnd, SessionState
from shellback.storage.tables import calls, conversations, sessions

_TABLE: Final = tuple(column.name for column in sessions.c)
LIVE: Final = [state.value for state in LIVE_STATES]
_COLUMNS: Final = tuple(field.name for field in fields(Session))
_values_of: Final = attrgetter(*_COLUMNS)
_END: Final = tuple(field.name for field in fields(SessionEnd))
_end_values_of: Final = attrgetter(*_END)
_key: Final[sa.BindParameter[str]] = sa.bindparam("key")
_id: Final = sessions.c.id == _key

GET: Final = sa.select(sessions).where(_id)
GET_LOCKED: Final = GET.with_for_update()
CONVERSATION_OF: Final = sa.select(sessions.c.conversation_id).where(_id)
DELIVERY_OF: Final = sa.select(sessions.c.delivery).where(_id)
INSERT: Final = sessions.insert()

HOLDER: Final = (
    sa.select(conversations.c.claimed_by, conversations.c.epoch).where(conversations.c.id == _key).with_for_update()
)
"""The turn and epoch that hold the conversation `key`, with its row locked."""

# Single values, because every execution would expand a list again.
_is_live: Final = sessions.c.state.in_([sa.literal(state) for state in LIVE])
_held: Final = conversations.c.id == sa.bindparam("conversation")
ROOM: Final = sa.select(
    sa.select(conversations.c.claimed_by).where(_held).scalar_subquery().label("claimed_by"),
    sa.select(conversations.c.epoch).where(_held).scalar_subquery().label("epoch"),
    sa.select(sa.func.count())
    .select_from(sessions)
    .where(
        sessions.c.conversation_id == sa.bindparam("conversation"),
        _is_live,
    )
    .scalar_subquery()
    .label("live"),
    sa.exists().where(_id).label("known"),
)
"""The holder of a conversation, its number of live sessions, and whether a session with this id exists."""

STARTED: Final = (
    sessions.update()
    .where(_id, sessions.c.state == SessionState.CLAIMED.value)
    .values(state=SessionState.RUNNING.value, pid=sa.bindparam("new_pid"), started_at=sa.bindparam("new_started_at"))
)
ENDED: Final = (
    sessions.update()
    .where(_id, sessions.c.end.is_(sa.null()))
    .values(
        state=sa.bindparam("new_state"),
        delivery=sa.case(
            (
                sessions.c.delivery == Delivery.INLINE.value,
                sa.bindparam("inline_becomes", type_=sessions.c.delivery.type),
            ),
            else_=sessions.c.delivery,
        ),
        end=sa.bindparam("new_end", type_=sessions.c.end.type),
        ended_at=sa.bindparam("new_ended_at"),
        # The session may end before its start is recorded.
        started_at=sa.func.coalesce(
            sessions.c.started_at, sa.bindparam("new_started_at", type_=sessions.c.started_at.type)
        ),
    )
    .returning(*sessions.c)
)
"""End a session that has not ended; returns no row for any other session."""

DELIVERED: Final = (
    sessions.update()
    .where(_id, sessions.c.delivery == Delivery.INLINE.value)
    .values(delivery=sa.bindparam("new_delivery"))
)
POLLED: Final = (
    sessions.update()
    .where(_id)
    .values(poll_offset=sa.bindparam("new_offset"), poll_err_offset=sa.bindparam("new_err_offset"))
)

OUTCOME_OF: Final = sa.select(calls.c.outcome).where(calls.c.call_key == _key)
CALLED: Final = (
    calls.update()
    .where(calls.c.call_key == _key)
    .values(outcome=sa.bindparam("new_outcome", type_=calls.c.outcome.type))
)


def end_to_json(end: SessionEnd) -> dict[str, Any]:
    """The end as portable JSON, which `SessionEnd.of` reads."""
    # Not `asdict`, which copies deeply: every call writes an end.
    return dict(zip(_END, _end_values_of(end), strict=True)) | {
        "survivors": list(end.survivors),
        "findings": list(end.findings),
        "losses": [asdict(loss) | {"keys": list(loss.keys)} for loss in end.losses],
    }


def to_row(session: Session) -> dict[str, Any]:
    """The session's columns."""
    values: dict[str, Any] = dict(zip(_COLUMNS, _values_of(session), strict=True))
    # psycopg stores an enum by its name, so it gets the plain value.
    values |= {"state": session.state.value, "delivery": session.delivery.value}
    if session.end is None:
        del values["end"]  # as JSON it would be `null`, which is not NULL
    else:
        values |= {"end": end_to_json(session.end), "ended_at": session.end.ended_at}
    return values


def from_row(row: sa.Row[Any]) -> Session:
    """The session that `to_row` wrote, from all its columns in their order."""
    values: dict[str, Any] = dict(zip(_TABLE, row, strict=True))
    del values["ended_at"]
    values |= {"state": SessionState(values["state"]), "delivery": Delivery(values["delivery"])}
    if values["end"] is not None:
        values["end"] = SessionEnd.of(values["end"])
    return Session(**values)
