"""Findings in the database: recorded once, open until a person acknowledges them. Every function is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from shellback.exec.core.findings import Finding
from shellback.storage.errors import StorageError
from shellback.storage.rows import begun, candidates, change_some, count, given, insert_new
from shellback.storage.tables import findings

_OPEN: Final = findings.c.acknowledged_at.is_(None)


class NoSuchFinding(StorageError):
    """Raised when no finding, or more than one, has an id with the given beginning."""


def record(conn: sa.Connection, host_id: str, found: Sequence[Finding]) -> list[Finding]:
    """Insert findings with a new id and return them; existing rows stay unchanged."""
    return [one for one in found if insert_new(conn, findings, {**asdict(one), "host_id": host_id})]


def find(
    conn: sa.Connection,
    *,
    host_id: str | None = None,
    conversation_id: str | None = None,
    session_id: str | None = None,
    everything: bool = False,
) -> list[Finding]:
    """Open findings, oldest first, at most 1,000; with `everything` also acknowledged ones."""
    names = findings.c
    which = given((names.host_id, host_id), (names.conversation_id, conversation_id), (names.session_id, session_id))
    query = sa.select(findings).where(*which, sa.true() if everything else _OPEN)
    query = query.order_by(findings.c.created_at, findings.c.id).limit(1_000)
    return [_finding(row) for row in conn.execute(query).mappings()]


def get(conn: sa.Connection, prefix: str) -> Finding:
    """The only finding whose id begins with `prefix`; NoSuchFinding if there is none, or more than one."""
    found = begun(conn, findings.c.id, prefix)
    if len(found) > 1:
        raise NoSuchFinding(candidates(prefix, "findings", [row["id"] for row in found]))
    if not found:
        raise NoSuchFinding(f"there is no finding {prefix!r}: `shellback findings list --all` lists them")
    return _finding(found[0])


def open_count(conn: sa.Connection, *, conversation_id: str | None = None) -> int:
    """The number of open findings, of one conversation or of all."""
    return count(conn, findings, _OPEN, *given((findings.c.conversation_id, conversation_id)))


def acknowledge(conn: sa.Connection, ids: Sequence[str], *, by: str, at: float) -> int:
    """Record that a person has seen these findings; returns how many were open. The first record stays."""
    return change_some(conn, findings, findings.c.id.in_(ids), _OPEN, acknowledged_at=at, acknowledged_by=by)


def _finding(row: sa.RowMapping) -> Finding:
    values: dict[str, Any] = dict(row)
    del values["host_id"]
    return Finding(**values)
