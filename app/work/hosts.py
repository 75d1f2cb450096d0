"""The hosts that share a database: which one has been heard of, by the database's clock."""

from __future__ import annotations

import platform

import sqlalchemy as sa

from app.storage import rows
from app.storage.tables import hosts


def heard_of(conn: sa.Connection, host_id: str) -> None:
    """Note that a worker of this host lives; whatever others made of its silence is over."""
    values = {"heartbeat_at": rows.now(conn), "name": platform.node()[:255], "given_up_at": None}
    if not rows.insert_new(conn, hosts, {"host_id": host_id, **values}):
        conn.execute(sa.update(hosts).where(hosts.c.host_id == host_id).values(values))
