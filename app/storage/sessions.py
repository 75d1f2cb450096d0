"""Sessions in the database: claimed before the start, ended once, told once.

The functions take a connection; `SqlSessionStore` runs each in a transaction of its own. Locks are always taken in one
order, the conversation's row before the session's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from shellback.exec.core.errors import CommandDenied, InvalidTransition, LimitReached, SessionNotFound
from shellback.exec.core.limits import SESSIONS_PER_CONVERSATION
from shellback.exec.core.model import (
    TYPED,
    Act,
    CallKey,
    Delivery,
    Polled,
    Session,
    SessionEnd,
    SessionId,
    SessionState,
)
from shellback.exec.core.ports import ExitSink, SessionStore
from shellback.storage import session_rows as rows
from shellback.storage.db import Database
from shellback.storage.errors import StaleTurn
from shellback.storage.rows import change, given, insert_new, lock_name, lock_row, names
from shellback.storage.tables import calls, conversations, sessions

log = logging.getLogger(__name__)

Within = Callable[[sa.Connection, Session], None]
"""More work for the claiming transaction; raising undoes the claim."""
WithinCall = Callable[[sa.Connection, Act], None]
"""More work for the transaction that begins a call; raising leaves it not begun."""
Refused = Callable[[sa.Connection, CommandDenied], None]
"""Called in a transaction of its own when a denial has rolled back a claim or call."""


@dataclass(eq=False, repr=False)
class SqlSessionStore(SessionStore):
    """A `SessionStore` on a `Database`.

    `sink` is told about ends, in the transaction that records them.
    """

    database: Database
    sink: ExitSink | None = None
    within: Within | None = None
    within_call: WithinCall | None = None
    refused: Refused | None = None

    async def pause(self, seconds: float, *, since: float) -> None:
        await self.database.pause(seconds, since=since)

    async def claim(self, session: Session, *, limit: int = SESSIONS_PER_CONVERSATION) -> Session:
        async with self._telling():
            return await self.database.write(claim, session, within=self.within, limit=limit)

    async def started(self, session_id: SessionId, *, pid: int, started_at: float) -> None:
        await self.database.write(started, session_id, pid=pid, started_at=started_at)

    async def finish(self, session_id: SessionId, end: SessionEnd, *, told_inline: bool = False) -> Session:
        return await self.database.write(finish, session_id, end, self.sink, told_inline=told_inline)

    async def settle_inline(self, session_id: SessionId) -> bool:
        return await self.database.write(settle_inline, session_id)

    async def hand_over(self, session_id: SessionId) -> bool:
        return await self.database.write(hand_over, session_id, self.sink)

    async def get(self, session_id: SessionId) -> Session | None:
        return await self.database.read(get, session_id)

    async def list(self, *, conversation_id: str | None = None, live: bool | None = None) -> Sequence[Session]:
        return await self.database.read(find, conversation_id=conversation_id, live=live)

    async def begin_call(self, act: Act) -> dict[str, object] | None:
        async with self._telling():
            return await self.database.write(begin, act, self.within_call)

    async def recalled(self, key: CallKey) -> dict[str, object] | None:
        return await self.database.read(recalled, key)

    async def acted_on(self, key: CallKey) -> SessionId | None:
        return await self.database.read(acted_on, key)

    async def typed_last(self, session_id: SessionId, *, besides: str = "") -> dict[str, object] | None:
        return await self.database.read(typed_last, session_id, besides)

    async def end_call(self, key: CallKey, outcome: dict[str, object]) -> None:
        await self.database.write(end_call, key, outcome)

    async def advance_poll(self, key: CallKey, session_id: SessionId, upto: int, err_upto: int = 0) -> Polled:
        return await self.database.write(advance_poll, key, session_id, upto, err_upto)

    async def pin(self, session_id: SessionId, pinned: bool | None) -> None:
        await self.database.write(pin, session_id, pinned)

    @asynccontextmanager
    async def _telling(self) -> AsyncGenerator[None]:
        try:
            yield
        except CommandDenied as error:
            if self.refused is not None:
                await self.database.write(self.refused, error)
            raise


def claim(
    conn: sa.Connection, session: Session, *, within: Within | None = None, limit: int = SESSIONS_PER_CONVERSATION
) -> Session:
    """Insert the session, or return the existing one with its id.

    Raises:
        StaleTurn: The session names an epoch and its turn no longer holds the conversation.
        LimitReached: The conversation has `limit` live sessions.
    """
    if conn.dialect.name != "sqlite":
        _hold(conn, session.conversation_id)
    room = conn.execute(rows.ROOM, {"key": session.id, "conversation": session.conversation_id}).one()
    _fence((room.claimed_by, room.epoch), session.conversation_id, session.turn_id, session.epoch)
    if room.known and (existing := get(conn, session.id)) is not None:
        return existing
    if room.live >= limit:
        raise LimitReached(
            f"this conversation has {room.live} live sessions and {limit} is the limit; end one with process_kill first"
        )
    conn.execute(rows.INSERT, rows.to_row(session))
    if within is not None:
        within(conn, session)
    return session


def started(conn: sa.Connection, session_id: SessionId, *, pid: int, started_at: float) -> None:
    """Move a claimed session to `running`; any other stays unchanged."""
    conn.execute(rows.STARTED, {"key": session_id, "new_pid": pid, "new_started_at": started_at})


def finish(
    conn: sa.Connection,
    session_id: SessionId,
    end: SessionEnd,
    sink: ExitSink | None = None,
    *,
    told_inline: bool = False,
) -> Session:
    """Record the first end and tell the sink if the delivery is `callback`; later ends change nothing.

    With `told_inline` an `inline` delivery becomes `settled`, also if another worker has recorded the end before.

    Raises:
        SessionNotFound: No session has this id.
    """
    if conn.dialect.name != "sqlite" and sink is not None:
        _lock_conversation_of(conn, session_id)
    changes = {
        "new_state": end.state.value,
        "inline_becomes": (Delivery.SETTLED if told_inline else Delivery.INLINE).value,
        "new_end": rows.end_to_json(end),
        "new_ended_at": end.ended_at,
        "new_started_at": end.began_at,
    }
    row = conn.execute(rows.ENDED, {"key": session_id, **changes}).one_or_none()
    if row is None:
        if told_inline:
            _deliver(conn, session_id, Delivery.SETTLED)
        return _ended_before(conn, session_id, end)
    ended = rows.from_row(row)
    if sink is not None and ended.delivery is Delivery.CALLBACK:
        sink.ended(conn, ended)
    return ended


def settle_inline(conn: sa.Connection, session_id: SessionId) -> bool:
    """Move the delivery from `inline` to `settled`; whether it is `settled` now."""
    return _deliver(conn, session_id, Delivery.SETTLED) is Delivery.SETTLED


def hand_over(conn: sa.Connection, session_id: SessionId, sink: ExitSink | None = None) -> bool:
    """Move the delivery from `inline` to `callback`, telling the sink of an end; whether it is `callback` now."""
    session = _held(conn, session_id)
    if session is None or session.delivery is not Delivery.INLINE:
        return session is not None and session.delivery is Delivery.CALLBACK
    _deliver(conn, session_id, Delivery.CALLBACK)
    if sink is not None and session.end is not None:
        sink.ended(conn, replace(session, delivery=Delivery.CALLBACK))
    return True


def get(conn: sa.Connection, session_id: SessionId) -> Session | None:
    """The session, or None."""
    row = conn.execute(rows.GET, {"key": session_id}).one_or_none()
    return None if row is None else rows.from_row(row)


def find(
    conn: sa.Connection, *, conversation_id: str | None = None, live: bool | None = None, newest: int | None = None
) -> list[Session]:
    """Sessions, oldest first; of one conversation or all; live, ended, or both; all of them or so many."""
    query = sa.select(sessions).where(*given((sessions.c.conversation_id, conversation_id)))
    query = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc()).limit(newest)
    if live is not None:
        query = query.where(sessions.c.state.in_(rows.LIVE) if live else sessions.c.state.not_in(rows.LIVE))
    return [rows.from_row(row) for row in reversed(conn.execute(query).all())]


def ids(conn: sa.Connection, prefix: str, *, limit: int) -> list[str]:
    """Ids of sessions that begin with `prefix`, the newest first."""
    return names(conn, sessions.c.id, prefix, newest=sessions.c.created_at, limit=limit)


def begin(conn: sa.Connection, act: Act, within: WithinCall | None = None) -> dict[str, object] | None:
    """Record that a call is about to act: None if it is new, `{}` if it was begun before, else its outcome.

    Raises:
        StaleTurn: The call names an epoch and its turn no longer holds the conversation.
    """
    if act.epoch > 0:
        conversation_id = act.conversation_id
        if conversation_id is None:
            conversation_id = conn.execute(rows.CONVERSATION_OF, {"key": act.session_id}).scalar_one()
        _fence(_hold(conn, conversation_id), conversation_id, act.turn_id, act.epoch)
    row: dict[str, object] = {"call_key": act.key, "session_id": act.session_id, "tool": act.tool, "kind": act.kind}
    row["created_at"] = time.time()
    if insert_new(conn, calls, row):
        if within is not None:
            within(conn, act)
        return None
    return recalled(conn, act.key) or {}


def recalled(conn: sa.Connection, key: CallKey) -> dict[str, object] | None:
    """The outcome of a call; `{}` if it has none yet, None if it was not begun."""
    row = conn.execute(rows.OUTCOME_OF, {"key": key}).one_or_none()
    return None if row is None else row.outcome or {}


def acted_on(conn: sa.Connection, key: CallKey) -> SessionId | None:
    """The session of a call; None if the call was not begun."""
    return conn.execute(sa.select(calls.c.session_id).where(calls.c.call_key == key)).scalar_one_or_none()


def typed_last(conn: sa.Connection, session_id: SessionId, besides: str) -> dict[str, object] | None:
    """The outcome of the newest call that typed into a session, except call `besides`; as `recalled`."""
    query = sa.select(calls.c.outcome).where(
        calls.c.session_id == session_id, calls.c.kind.in_(TYPED), calls.c.call_key != besides
    )
    row = conn.execute(query.order_by(calls.c.created_at.desc()).limit(1)).one_or_none()
    return None if row is None else row.outcome or {}


def end_call(conn: sa.Connection, key: CallKey, outcome: dict[str, object]) -> None:
    """Record the outcome of a call; the first one stays. InvalidTransition if the call was never begun."""
    call = lock_row(conn, calls, key)
    if call is None:
        raise InvalidTransition(f"call {key} ends but was never begun")
    if call["outcome"] is None:
        conn.execute(rows.CALLED, {"key": key, "new_outcome": outcome})


def advance_poll(conn: sa.Connection, key: CallKey, session_id: SessionId, upto: int, err_upto: int = 0) -> Polled:
    """Move both cursors forward and return the ranges that they passed; a repeat returns the same ranges.

    Raises:
        SessionNotFound: No session has this id.
    """
    session = lock_row(conn, sessions, session_id)
    if session is None:
        raise SessionNotFound(session_id)
    before = begin(conn, Act(key=key, session_id=session_id, tool="process_poll"))
    if before:
        return Polled.recorded(before)
    start, err_start = int(session["poll_offset"]), int(session["poll_err_offset"])
    passed = Polled(start, max(start, upto), err_start, max(err_start, err_upto))
    conn.execute(rows.POLLED, {"key": session_id, "new_offset": passed.end, "new_err_offset": passed.err_end})
    end_call(conn, key, passed._asdict())
    return passed


def fence(conn: sa.Connection, conversation_id: str, turn_id: str, epoch: int) -> None:
    """Lock the conversation, or its name, until the transaction ends.

    Raises:
        StaleTurn: The epoch is above 0, and its turn no longer holds the conversation.
    """
    _fence(_hold(conn, conversation_id), conversation_id, turn_id, epoch)


def _hold(conn: sa.Connection, conversation_id: str) -> tuple[str | None, int | None]:
    """Lock the conversation, or its name if it has no row; returns the turn and epoch that hold it."""
    row = conn.execute(rows.HOLDER, {"key": conversation_id}).one_or_none()
    if row is None:
        lock_name(conn, f"sessions of {conversation_id}")
        return None, None
    return row.claimed_by, row.epoch


def _fence(holder: tuple[str | None, int | None], conversation_id: str, turn_id: str, epoch: int) -> None:
    """Refuse an epoch above 0 that does not hold the conversation."""
    if epoch > 0 and holder != (turn_id, epoch):
        raise StaleTurn(conversation_id, turn_id, epoch)


def _ended_before(conn: sa.Connection, session_id: SessionId, end: SessionEnd) -> Session:
    session = get(conn, session_id)
    if session is None:
        raise SessionNotFound(session_id)
    if session.state is SessionState.LOST and end.state is not SessionState.LOST:
        log.warning("session %s was given up as lost and has now ended: %s", session_id, end)
    return session


def _held(conn: sa.Connection, session_id: SessionId) -> Session | None:
    if conn.dialect.name == "sqlite":
        return get(conn, session_id)
    _lock_conversation_of(conn, session_id)
    row = conn.execute(rows.GET_LOCKED, {"key": session_id}).one_or_none()
    return None if row is None else rows.from_row(row)


def _lock_conversation_of(conn: sa.Connection, session_id: SessionId) -> None:
    # The sink takes this lock. After the session's lock it could deadlock with a claim.
    conversation_id = conn.execute(rows.CONVERSATION_OF, {"key": session_id}).scalar_one_or_none()
    if conversation_id is not None:
        lock_row(conn, conversations, conversation_id)


def _deliver(conn: sa.Connection, session_id: SessionId, delivery: Delivery) -> Delivery | None:
    if conn.execute(rows.DELIVERED, {"key": session_id, "new_delivery": delivery.value}).rowcount == 1:
        return delivery
    now = conn.execute(rows.DELIVERY_OF, {"key": session_id}).scalar_one_or_none()
    return None if now is None else Delivery(now)


MOST: Final = 128
"""More than the live sessions of a conversation. Other sessions that ended lately were told by callbacks."""

# Built once, from single values, because it runs before each request to the model.
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
    """Pin or hide the block of a session; with None its end decides. SessionNotFound if no session has this id."""
    if not change(conn, sessions, session_id, pinned=pinned):
        raise SessionNotFound(session_id)


def shown(conn: sa.Connection, conversation_id: str, host_id: str, ended_after: float) -> list[Session]:
    """Sessions of a conversation on this host that may have a block: live, ended lately, or pinned."""
    given = {"conversation": conversation_id, "host": host_id, "ended_after": ended_after}
    return [rows.from_row(row) for row in conn.execute(_SHOWN, given)]


def any_shown(conn: sa.Connection, conversation_id: str, host_id: str, ended_after: float) -> bool:
    """Whether there are such sessions."""
    given = {"conversation": conversation_id, "host": host_id, "ended_after": ended_after}
    return conn.execute(_ANY_SHOWN, given).first() is not None


_ANY_SHOWN: Final = _SHOWN.with_only_columns(sessions.c.id)  # the width of a row costs more than its absence
