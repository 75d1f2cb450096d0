"""Findings of this host on their way to people: recorded, and told as events of their conversation."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from shellback.exec.core.findings import Finding, FindingSink
from shellback.storage import findings as rows
from shellback.storage.db import Database
from shellback.work.queue import stream

KIND = "finding"


class SqlFindings(FindingSink):
    """A `FindingSink` on a `Database`, for one host."""

    def __init__(self, database: Database, host_id: str) -> None:
        self._database = database
        self._host_id = host_id

    async def found(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """See `FindingSink.found`; nothing is written where there is nothing to tell."""
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
