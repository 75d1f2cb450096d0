"""Whether the worker here is up: quick, for a container or a monitor that asks again and again."""

from __future__ import annotations

import time
from typing import Final

import sqlalchemy as sa

from shellback.checks.check import Check
from shellback.storage import rows
from shellback.storage.tables import conversations, mailbox, workers
from shellback.work.hosts.sweep import HEARTBEAT_DEAD_S
from shellback.work.queue.mailbox import waking

STUCK_S: Final = 60.0
"""News that old, while no turn runs and nothing is heard, is news that no worker looks for."""


def heart(conn: sa.Connection, executor_id: str) -> Check:
    """When this worker was heard of last."""
    row = conn.execute(
        sa.select(workers.c.heartbeat_at, workers.c.stopped_at).where(workers.c.executor_id == executor_id)
    ).one_or_none()
    if row is None or row.stopped_at is not None:
        return Check("worker", "fail", f"{executor_id} does not run", "start it: shellback worker")
    age = rows.now(conn) - row.heartbeat_at
    if age > HEARTBEAT_DEAD_S:
        return Check("worker", "fail", f"{executor_id} was last heard of {age:.0f} s ago", "restart it; see its log")
    return Check("worker", "ok", f"{executor_id} was heard of {max(0.0, age):.0f} s ago")


def queues(conn: sa.Connection, host_id: str) -> Check:
    """Whether anything waits that no turn will come for."""
    of_host = conversations.c.host_id == host_id
    oldest = conn.execute(
        sa.select(sa.func.min(mailbox.c.created_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(of_host, waking(), conversations.c.state == "free")
    ).scalar_one()
    age = 0.0 if oldest is None else time.time() - oldest
    if age <= STUCK_S:
        return Check("queues", "ok", "nothing waits longer than it should")
    running = conn.execute(
        sa.select(sa.func.count()).select_from(conversations).where(of_host, conversations.c.state == "claimed")
    ).scalar_one()
    heard = conn.execute(
        sa.select(sa.func.max(mailbox.c.heard_at))
        .join(conversations, conversations.c.id == mailbox.c.conversation_id)
        .where(of_host)
    ).scalar_one()
    if running or (heard is not None and time.time() - heard < STUCK_S):
        return Check("queues", "ok", f"a backlog {age:.0f} s long; {running} turn(s) run")
    return Check("queues", "fail", f"news waits for {age:.0f} s and no turn runs", "restart the worker; see its log")
