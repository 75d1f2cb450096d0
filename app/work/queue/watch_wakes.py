"""Turns hits of watches into work items, and settles hits whose output the agent has already read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from shellback.exec.core.model import SessionId
from shellback.exec.core.ports import WatchSink
from shellback.exec.core.watch import ENDED, Hit, Watch
from shellback.exec.reports.callback_text import watch_payload
from shellback.storage import watches
from shellback.storage.rows import change_some
from shellback.storage.tables import mailbox as rows
from shellback.work.queue import mailbox, stream
from shellback.work.queue.items import watch_item
from shellback.work.queue.queues import Enqueuer

Range = tuple[SessionId, int, int]
"""A range of output that the agent was shown: session, start, end."""


class WatchWakes(WatchSink):
    """Writes the news of a hit and its EXEC_WATCH item, in the transaction that counts the hit.

    Both keys contain the number of the hit, so it is told once.
    """

    def __init__(self, enqueuer: Enqueuer, host_id: str) -> None:
        self._enqueuer = enqueuer
        self._host_id = host_id

    def hit(self, tx: object, watch: Watch, hit: Hit) -> bool:
        """Record the news of `hit` in the caller's transaction; False if the previous hit is still unread."""
        assert isinstance(tx, sa.Connection)
        driver = mailbox.driver_of(watch.turn_id)
        conversation = mailbox.open_conversation(tx, watch.conversation_id, host_id=self._host_id, driver=driver)
        if hit.why_off is None and mailbox.is_unread(tx, f"watch:{watch.id}:{hit.number - 1}"):
            # An agent that is busy, or waits for a person, is told all of it at once, and has ignored nothing.
            return False
        payload = watch_payload(watch, hit)
        item = watch_item(watch.conversation_id, watch.id, hit.number, payload)
        key = f"watch:{watch.id}:{hit.number}"
        mailbox.put(tx, self._enqueuer, conversation, item, kind="watch", payload=payload, dedupe_key=key)
        stream.note(tx, watch.conversation_id, watch.turn_id, 0, "watch", payload)
        return True


def is_read(payload: Mapping[str, Any], read: Sequence[Range]) -> bool:
    """Whether the agent was already shown all output of a hit; False for a hit that switched the watch off."""
    if payload.get("end") is None or payload.get("off") not in {None, ENDED}:
        return False
    return _upto(payload["session_id"], payload["start"], read) >= payload["end"]


def take_back(conn: sa.Connection, conversation_id: str, read: Sequence[Range]) -> None:
    """Settle unread hits whose output a turn has `read`, and move the sessions' watches past it, in the closing."""
    if not read:
        return
    unread = (rows.c.conversation_id == conversation_id, rows.c.state == "unread", rows.c.kind == "watch")
    found = conn.execute(sa.select(rows.c.id, rows.c.payload).where(*unread)).all()
    heard = [row.id for row in found if is_read(row.payload, read)]
    if heard:
        change_some(conn, rows, rows.c.id.in_(heard), state="heard", heard_at=time.time())
    for session_id, start, end in sorted(read):
        watches.read(conn, session_id, start, end)


def _upto(session_id: str, start: int, read: Sequence[Range]) -> int:
    """The end of the output that was shown from `start` on without a gap."""
    for _, begins, ends in sorted(one for one in read if one[0] == session_id):
        if begins <= start:
            start = max(start, ends)
    return start
