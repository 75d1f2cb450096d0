"""Items that DBOS has given up, or that wait on the queue of an unknown host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from shellback.storage.tables import conversations, hosts, mailbox
from shellback.work.queue import dbos_private

GIVEN_UP: Final = ("MAX_RECOVERY_ATTEMPTS_EXCEEDED", "ERROR", "CANCELLED")
LISTED: Final = 20
_CALLBACK: Final = "EXEC_CALLBACK:"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A callback that DBOS will not run again, whose news is unread."""

    session_id: str
    conversation_id: str
    status: str


def is_one(item: str, status: str) -> bool:
    """Whether an item is a callback that DBOS will not run again."""
    return item.startswith(_CALLBACK) and status in GIVEN_UP


def callbacks(conn: sa.Connection) -> list[DeadLetter]:
    """Given-up callbacks with unread news and a free conversation; only the sweep enqueues another item."""
    items = dbos_private.items(conn)
    query = (
        sa.select(mailbox.c.dedupe_key, mailbox.c.conversation_id, items.c.status)
        .join(items, items.c.workflow_uuid == sa.func.replace(mailbox.c.dedupe_key, "exit:", _CALLBACK))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(
            mailbox.c.kind == "exit",
            mailbox.c.state == "unread",
            items.c.status.in_(GIVEN_UP),
            conversations.c.state == "free",
        )
        .order_by(mailbox.c.id)
        .limit(LISTED)
    )
    return [
        DeadLetter(session_id=row[0].removeprefix("exit:"), conversation_id=row[1], status=row[2])
        for row in conn.execute(query)
    ]


def for_nobody(conn: sa.Connection, host_id: str) -> dict[str, int]:
    """The number of items that wait on queues of unknown hosts, by host; `host_id` counts as known."""
    items = dbos_private.items(conn)
    query = (
        sa.select(items.c.queue_name, sa.func.count())
        .where(items.c.status.in_(("ENQUEUED", "DELAYED")), items.c.queue_name.is_not(None))
        .group_by(items.c.queue_name)
    )
    known = {host_id, *conn.execute(sa.select(hosts.c.host_id)).scalars()}
    found: dict[str, int] = {}
    for name, number in conn.execute(query):
        kind, _, host = str(name).partition(".")
        if kind in {"turns", "wakes"} and host not in known:
            found[host] = found.get(host, 0) + int(number)
    return found
