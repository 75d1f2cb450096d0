"""Watches in the database: placed once; each hit is counted and told in one transaction.

The conversation's row is locked before any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from shellback.exec.core.ports import WatchSink, WatchStore
from shellback.exec.core.watch import ENDED, Hit, Watch, after, is_read, past
from shellback.exec.watching.memory import check_room
from shellback.storage import rows
from shellback.storage.db import Database
from shellback.storage.rows import change, change_some, given, insert_new, lock_row
from shellback.storage.sessions import fence
from shellback.storage.tables import conversations, watches


class SqlWatchStore(WatchStore):
    """A `WatchStore` on a `Database`; `sink` is told about hits, in the transaction that counts them."""

    def __init__(self, database: Database, *, sink: WatchSink | None = None) -> None:
        self._database = database
        self._sink = sink

    async def pause(self, seconds: float, *, since: float) -> None:
        await self._database.pause(seconds, since=since)

    async def place(self, watch: Watch, *, epoch: int = 0) -> Watch:
        return await self._database.write(place, watch, epoch)

    async def get(self, watch_id: str) -> Watch | None:
        return await self._database.read(get, watch_id)

    async def list(self, *, session_id: str | None = None, host_id: str | None = None) -> Sequence[Watch]:
        return await self._database.read(find, session_id=session_id, host_id=host_id)

    async def hit(self, watch_id: str, hit: Hit) -> Watch | None:
        return await self._database.write(count, watch_id, hit, self._sink)

    async def moved(self, watch_id: str, offset: int) -> None:
        which = (watches.c.id == watch_id, watches.c.state == "on", watches.c.offset < offset)
        await self._database.write(change_some, watches, *which, offset=offset)

    async def heed(self, session_id: str) -> None:
        await self._database.write(_change, watches.c.session_id == session_id, watches.c.strikes > 0, strikes=0)

    async def off(self, session_id: str, why: str, *, watch_id: str | None = None) -> None:
        await self._database.write(off, session_id, why, watch_id)


def place(conn: sa.Connection, watch: Watch, epoch: int = 0) -> Watch:
    """Insert the watch, or return the existing one with its id.

    Raises:
        StaleTurn: Its turn no longer holds the conversation.
        LimitReached: Its session or conversation has too many watches.
    """
    fence(conn, watch.conversation_id, watch.turn_id, epoch)
    existing = get(conn, watch.id)
    if existing is not None:
        return existing
    check_room(
        _number(conn, watches.c.session_id == watch.session_id),
        _number(conn, watches.c.conversation_id == watch.conversation_id),
        watch,
    )
    insert_new(conn, watches, asdict(watch))
    return watch


def get(conn: sa.Connection, watch_id: str) -> Watch | None:
    """The watch, or None."""
    row = conn.execute(sa.select(watches).where(watches.c.id == watch_id)).mappings().one_or_none()
    return None if row is None else Watch(**row)


def find(conn: sa.Connection, *, session_id: str | None = None, host_id: str | None = None) -> list[Watch]:
    """Watches that are on, oldest first; of one session, of one host, or all."""
    whose = given((watches.c.session_id, session_id), (watches.c.host_id, host_id))
    query = sa.select(watches).where(watches.c.state == "on", *whose).order_by(watches.c.created_at, watches.c.id)
    return [Watch(**row) for row in conn.execute(query).mappings()]


def count(conn: sa.Connection, watch_id: str, hit: Hit, sink: WatchSink | None = None) -> Watch | None:
    """Count the hit and tell the sink, unless the watch is off or the hit was counted before; see `WatchStore.hit`."""
    found = get(conn, watch_id)
    if found is None:
        return None
    lock_row(conn, conversations, found.conversation_id)
    row = lock_row(conn, watches, watch_id)
    if row is None or row["state"] != "on" or row["hits"] != hit.number - 1:
        return None
    watch = Watch(**row)
    fired = past(watch, hit) if is_read(watch, hit) else after(watch, hit)
    if sink is not None and fired.hits == hit.number and not sink.hit(conn, fired, hit):
        return watch
    changed = ("state", "why_off", "offset", "hits", "strikes", "hit_at")
    change(conn, watches, watch_id, **{name: getattr(fired, name) for name in changed})
    return fired


def read(conn: sa.Connection, session_id: str, start: int, end: int) -> None:
    """Move the session's pattern watches with an offset in this range to its end, which the agent has read."""
    pattern = watches.c.kind == "pattern"
    _change(conn, watches.c.session_id == session_id, pattern, watches.c.offset.between(start, end), offset=end)


def off(conn: sa.Connection, session_id: str, why: str, watch_id: str | None = None) -> None:
    """Switch off the session's watches that are on, or one of them."""
    _change(conn, watches.c.session_id == session_id, *given((watches.c.id, watch_id)), state="off", why_off=why)


def leave(conn: sa.Connection, host_id: str, conversation_id: str) -> None:
    """Switch off the watches of a conversation on a host that it has left."""
    there = (watches.c.host_id == host_id, watches.c.conversation_id == conversation_id)
    _change(conn, *there, state="off", why_off=ENDED)


def _change(conn: sa.Connection, *which: sa.ColumnElement[bool], **values: Any) -> None:
    """Change watches that are on, locking them in one order."""
    found = sa.select(watches.c.id).where(watches.c.state == "on", *which).order_by(watches.c.id).with_for_update()
    if ids := conn.execute(found).scalars().all():
        change_some(conn, watches, watches.c.id.in_(ids), **values)


def _number(conn: sa.Connection, whose: sa.ColumnElement[bool]) -> int:
    return rows.count(conn, watches, whose, watches.c.state == "on")
