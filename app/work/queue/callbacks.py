"""Turns ends of processes into callbacks, and findings into events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from shellback.exec.core.findings import Finding, FindingSink
from shellback.exec.core.model import Session
from shellback.storage import findings as rows
from shellback.storage.db import Database
from shellback.work.queue import mailbox, stream
from shellback.work.queue.items import callback_item
from shellback.work.queue.queues import Enqueuer


class CallbackSink:
    """Writes the news of an ended session and its EXEC_CALLBACK item, in the transaction of the end (G2).

    Item id and row key are derived from the session, so a repeated delivery adds nothing. If the agent wants no
    news of such an end, the row is settled at once, and the item finds nothing to tell.
    """

    def __init__(self, enqueuer: Enqueuer, host_id: str, payload_of: Callable[[Session], dict[str, Any]]) -> None:
        self._enqueuer = enqueuer
        self._host_id = host_id
        self._payload_of = payload_of

    def ended(self, tx: object, session: Session) -> None:
        """Record the news of `session`; part of the caller's transaction."""
        assert isinstance(tx, sa.Connection)
        payload = self._payload_of(session)
        driver = mailbox.driver_of(session.turn_id)
        conversation = mailbox.open_conversation(tx, session.conversation_id, host_id=self._host_id, driver=driver)
        item = callback_item(session.conversation_id, session.id, payload)
        news = {**payload, "command": session.command}
        key = f"exit:{session.id}"
        mailbox.put(tx, self._enqueuer, conversation, item, kind="exit", payload=news, dedupe_key=key)
        if not session.end_is_news:
            mailbox.settle(tx, key)
        stream.note(tx, session.conversation_id, session.turn_id, 0, "exit", news)


KIND = "finding"


class SqlFindings(FindingSink):
    """A `FindingSink` on a `Database`, for one host."""

    def __init__(self, database: Database, host_id: str) -> None:
        self._database = database
        self._host_id = host_id

    async def found(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """See `FindingSink.found`."""
        return await self._database.write(_recorded, self._host_id, findings) if findings else ()

    async def of(self, session_id: str) -> Sequence[Finding]:
        """See `FindingSink.of`."""
        return await self._database.read(rows.find, host_id=self._host_id, session_id=session_id, everything=True)


def _recorded(conn: sa.Connection, host_id: str, findings: Sequence[Finding]) -> list[Finding]:
    new = rows.record(conn, host_id, findings)
    for one in new:
        told = {"id": one.id, "kind": one.kind, "path": one.path, "kept": one.kept, "text": one.sentence}
        stream.note(conn, one.conversation_id, "", 0, KIND, told)
    return new
