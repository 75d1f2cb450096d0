"""Typed input of a person: the conversation's next turn is told of it, but it causes no turn.

The number of bytes, the time and the person are stored; never the bytes, which may be a password.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import sqlalchemy as sa

from shellback.exec.core.model import Session
from shellback.storage.db import Database
from shellback.storage.rows import change_some
from shellback.storage.tables import mailbox as rows
from shellback.work.approvals import audit
from shellback.work.queue import mailbox, stream
from shellback.work.queue.items import Priority

SURFACE: Final = "attach"
SHOWN: Final = 100
MINUTE_S: Final = 60.0
SAVE_S: Final = 5.0
"""How often the count is stored while a person types."""


def note(
    conn: sa.Connection, session: Session, *, key: str, total: int, by: str, over: bool, surface: str = SURFACE
) -> None:
    """Store that `total` bytes were typed so far under `key`, in the caller's transaction; `over` if that is all.

    There is one mailbox row until a turn takes it, then another for the rest. A repeat with the same total only updates
    `over`. The start and the end (`over`) each write an event and an audit row.
    """
    mailbox.open_conversation(conn, session.conversation_id, host_id=session.host_id)
    told = number = 0
    while (row := _row(conn, f"typed:{key}.{number}")) is not None and row.state != "unread":
        told += row.payload["bytes"]
        number += 1
    name = f"typed:{key}.{number}"
    payload: dict[str, Any] = {"session_id": session.id, "bytes": total - told, "by": by, "over": over}
    begun = row is not None or number > 0
    if row is not None:
        change_some(conn, rows, rows.c.dedupe_key == name, payload=payload)
    elif total > told:
        mailbox.add_row(
            conn,
            session.conversation_id,
            kind="typed",
            priority=int(Priority.IDLE),
            payload=payload,
            dedupe_key=name,
        )
    if over or not begun:
        told_to_people = {**payload, "bytes": total, "text": said(session.id, total, over=over)}
        stream.note(conn, session.conversation_id, session.turn_id, 0, "typed", told_to_people)
        entry = audit.Entry(
            event="typed",
            conversation_id=session.conversation_id,
            turn_id=session.turn_id,
            session_id=session.id,
            done_by=by,
            surface=surface,
            command=None if begun else session.command,
            facts={"bytes": total, "over": over},
        )
        audit.note(conn, entry)


def _row(conn: sa.Connection, name: str) -> sa.Row[Any] | None:
    return conn.execute(sa.select(rows).where(rows.c.dedupe_key == name)).one_or_none()


def unheard(conn: sa.Connection, conversation_id: str) -> list[str]:
    """The texts about typed input that the next turn will read."""
    query = sa.select(rows.c.payload).where(
        rows.c.conversation_id == conversation_id, rows.c.kind == "typed", rows.c.state == "unread"
    )
    found = conn.execute(query.order_by(rows.c.id).limit(SHOWN)).scalars()
    return [said(one["session_id"], one["bytes"], over=one["over"]) for one in found]


@dataclass(eq=False, repr=False)
class Typing:
    """Counts what a person types in one attachment; one row for each minute with input."""

    database: Database
    session: Session
    by: str
    surface: str = SURFACE
    _name: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _minute: int = field(init=False, default=0)
    _total: int = field(init=False, default=0)
    _kept_at: float = field(init=False, default=0.0)
    _begun: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _busy: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def count(self, number: int) -> None:
        """Count bytes that are about to be typed. The first call stores the row before any byte is typed.

        Raises:
            StorageError: The row cannot be stored, so nothing may be typed.
        """
        async with self._busy:
            self._total += number
            if not self._begun.is_set() or time.monotonic() - self._kept_at > SAVE_S:
                await self._keep(over=False)
                self._begun.set()

    async def run(self) -> NoReturn:
        """Close each row a minute after its start; after a cancellation call `close`."""
        while True:
            await self._begun.wait()
            await asyncio.sleep(MINUTE_S)
            await self.close()

    async def close(self) -> None:
        """Store the final count of the current row, if there is one."""
        async with self._busy:
            if self._begun.is_set():
                await self._keep(over=True)
                self._begun.clear()
                self._minute, self._total = self._minute + 1, 0

    async def _keep(self, *, over: bool) -> None:
        key = f"{self._name}.{self._minute}"
        told: dict[str, Any] = {"total": self._total, "by": self.by, "over": over, "surface": self.surface}
        await self.database.write(note, self.session, key=key, **told)
        self._kept_at = time.monotonic()


def said(session_id: str, total: int, *, over: bool) -> str:
    """The text for the agent and for people."""
    return f"[a person typed into session {session_id} ({total} bytes{'' if over else ' so far'}) at the terminal]"
