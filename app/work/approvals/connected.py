"""Connections as rows of the audit: each once, however often a record is brought."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from shellback.exec.core.display import CONNECT, visible
from shellback.exec.reports.connections import Connection
from shellback.exec.wire.hosts import place
from shellback.storage.rows import given
from shellback.storage.tables import audit as rows
from shellback.work.approvals import audit

_KEY = "connection:"
_SCOPE_CHARS = 200


def note(conn: sa.Connection, found: Sequence[Connection]) -> None:
    """Add the rows of connections that have ended, unless they are there."""
    for one in found:
        facts = {
            "began": datetime.fromtimestamp(one.at, UTC).isoformat(timespec="milliseconds"),
            "seconds": one.seconds,
            "decision": one.decision,
            "host": visible(one.host),
            "port": one.port,
            "address": one.address,
            "sent": one.up,
            "received": one.down,
            "credential": one.credential,
            "connections": one.times,
            "limit": one.limit,
        }
        entry = audit.Entry(
            at=one.at + (one.seconds or 0.0),
            event="connected" if one.address or one.times else "not_connected",
            conversation_id=one.scope[:_SCOPE_CHARS],
            call_key=f"{_KEY}{one.id}",
            session_id=one.session or None,
            tool=CONNECT,
            rule=one.rule or None,
            reason=one.refused or None,
            command=place(one.host, one.port) if one.host else None,
            facts={name: value for name, value in facts.items() if value},
        )
        audit.note(conn, entry, once=True)


def find(conn: sa.Connection, conversation_id: str | None, limit: int) -> list[Connection]:
    """The connections whose rows are the newest."""
    which = given((rows.c.conversation_id, conversation_id))
    query = sa.select(rows).where(rows.c.event.in_(("connected", "not_connected")), *which)
    return [_of(row) for row in conn.execute(query.order_by(rows.c.id.desc()).limit(limit)).mappings()]


def _of(row: sa.RowMapping) -> Connection:
    facts = row["facts"]
    return Connection(
        id=row["call_key"].removeprefix(_KEY),
        at=datetime.fromisoformat(facts["began"]).timestamp(),
        scope=row["conversation_id"],
        host=facts.get("host", ""),
        port=facts.get("port", 0),
        session=row["session_id"] or "",
        address=facts.get("address", ""),
        decision=facts.get("decision", ""),
        rule=row["rule"] or "",
        refused=row["reason"] or "",
        up=facts.get("sent", 0),
        down=facts.get("received", 0),
        credential=facts.get("credential", ""),
        seconds=facts.get("seconds", 0.0),
        times=facts.get("connections", 0),
        limit=facts.get("limit", ""),
    )
