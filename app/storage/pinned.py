"""Which processes a conversation is shown, as the database has it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from shellback.exec.core.errors import SessionNotFound
from shellback.exec.core.model import Session, SessionId
from shellback.storage import session_rows as rows
from shellback.storage.tables import sessions

MOST: Final = 128
"""More than run at a time: the rest of what ended a moment ago was told by its callback."""

# Built once, and of single values: it is asked before each request to the model.
_SHOWN: Final = (
    sa.select(sessions)
    .where(
        sessions.c.conversation_id == sa.bindparam("conversation"),
        sessions.c.host_id == sa.bindparam("host"),
        sa.or_(
            sessions.c.state.in_([sa.literal(state) for state in rows.LIVE]),
            sessions.c.ended_at > sa.bindparam("ended_after"),
            sessions.c.pinned.is_(sa.true()),
        ),
    )
    .order_by(sessions.c.created_at.desc(), sessions.c.id)
    .limit(sa.literal_column(str(MOST)))
)


def pin(conn: sa.Connection, session_id: SessionId, pinned: bool | None) -> None:
    """Note what somebody wants of a session's block; None leaves it to its end.

    Raises:
        SessionNotFound: No session has this id.
    """
    update = sa.update(sessions).where(sessions.c.id == session_id).values(pinned=pinned)
    if not conn.execute(update).rowcount:
        raise SessionNotFound(session_id)


def shown(conn: sa.Connection, conversation_id: str, host_id: str, ended_after: float) -> list[Session]:
    """Sessions of a conversation on this host that may have a block: those that run, ended lately, or are pinned."""
    given = {"conversation": conversation_id, "host": host_id, "ended_after": ended_after}
    return [rows.from_row(row) for row in conn.execute(_SHOWN, given)]
