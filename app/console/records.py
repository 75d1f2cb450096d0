"""Pages that only list: rules, the audit, queue and workers, health."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from starlette.requests import Request
from starlette.responses import Response

from shellback.checks import live_checks
from shellback.client.operations import Asking
from shellback.console.access import Page, caller_of
from shellback.console.pages import ago, page, stamp
from shellback.exec.policy.rules.file import load
from shellback.storage import rules
from shellback.storage.rules import Saved
from shellback.work.approvals import audit
from shellback.work.approvals.audit import Entry
from shellback.work.approvals.event import EVENTS
from shellback.work.hosts import roster
from shellback.work.queue import standing

if TYPE_CHECKING:
    from shellback.client.local import Local

_ALL: Final = 2**53


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    headings: list[str]
    rows: list[list[Any]]
    none: str


class Records:
    """What is on record, as tables."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def pages(self) -> list[Page]:
        """The routes."""
        return [
            Page("/rules", self._rules, role="viewer"),
            Page("/audit", self._audit, role="viewer"),
            Page("/queue", self._queue, role="viewer"),
            Page("/health", self._health, role="viewer"),
        ]

    async def _rules(self, request: Request) -> Response:
        def look(at: Asking) -> list[_Table]:
            saved = at.where.database.read_now(rules.find, everything=True)
            written = load(at.where.settings.policy).rules
            return [
                _table("Rules that people saved", saved, _SAVED, "No rule is saved: `shellback rules add` saves one."),
                _table(
                    "Rules of the policy file", written, {"rule": lambda one: one.described(), "note": "note"}, "None."
                ),
            ]

        return page(request, "records.html", title="Rules", tables=await self._local.within(caller_of(request), look))

    async def _audit(self, request: Request) -> Response:
        asked = request.query_params
        event, conversation, before = (asked.get(name, "") for name in ("event", "conversation", "before"))
        number = int(before[:15]) if before.isdecimal() else _ALL

        def look(at: Asking) -> list[Entry]:
            return at.where.database.read_now(
                audit.find, conversation_id=conversation.replace("\x00", "") or None,
                events=(event,) if event in EVENTS else (), before=number,
            )  # fmt: skip

        found = await self._local.within(caller_of(request), look)
        older = str(found[-1].id) if len(found) == audit.PAGE else ""
        given = {"event": event, "conversation": conversation}
        tables = [_table("", found, _ENTRIES, "There is nothing on record.")]
        return page(request, "records.html", title="Audit", tables=tables, events=EVENTS, given=given, older=older)

    async def _queue(self, request: Request) -> Response:
        def read(conn: sa.Connection, host_id: str) -> list[_Table]:
            found = standing.backlog(conn)
            return [
                _table("Waiting", found.waiting, _WAITING, "Nothing waits."),
                _table("Running", found.running, _RUNNING, "No turn runs."),
                _table("Blocked", found.blocked, _BLOCKED, "No conversation is blocked."),
                _table("Workers", roster.look(conn, host_id), _WORKERS, "No worker has run."),
            ]

        def look(at: Asking) -> list[_Table]:
            return at.where.database.read_now(read, at.where.host_id)

        return page(request, "records.html", title="Queue", tables=await self._local.within(caller_of(request), look))

    async def _health(self, request: Request) -> Response:
        def look(at: Asking) -> list[_Table]:
            found = live_checks(at.where.settings)
            return [_table("", found, {"check": "name", "state": "state", "is": "text", "remedy": "remedy"}, "")]

        tables = await self._local.within(caller_of(request), look)
        note = "`shellback doctor` on the host checks everything."
        return page(request, "records.html", title="Health", tables=tables, note=note)


def _ended(one: Saved) -> str:
    return f"{one.state} by {one.revoked_by}" if one.revoked_by else one.state


_Columns = Mapping[str, str | Callable[[Any], Any]]
_SAVED: Final[_Columns] = {
    "rule": lambda one: one.rule.described(),
    "state": _ended,
    "note": lambda one: one.rule.note,
    "saved by": lambda one: f"{one.rule.owner}, {stamp(one.rule.created_at)}",
    "ends": lambda one: stamp(one.rule.expires_at),
    "used": lambda one: one.rule.uses,
    "id": lambda one: one.rule.id,
}
_ENTRIES: Final[_Columns] = {
    "at": lambda one: stamp(one.at),
    "event": "event",
    "by": lambda one: f"{one.done_by} through {one.surface}" if one.surface else one.done_by,
    "conversation": "conversation_id",
    "tool": "tool",
    "reason": "reason",
    "command": "command",
}
_WAITING: Final[_Columns] = {"priority": "priority", "items": "items", "oldest": lambda one: ago(one.oldest)}
_RUNNING: Final[_Columns] = {
    "conversation": "conversation",
    "type": "type",
    "priority": "priority",
    "begun": lambda one: ago(one.started_at),
    "executions": "executions",
}
_BLOCKED: Final[_Columns] = {
    "conversation": "conversation",
    "by": "reason",
    "since": lambda one: ago(one.since),
    "unread": "unread",
}
_WORKERS: Final[_Columns] = {
    "worker": "executor_id",
    "state": "state",
    "host": "host_id",
    "process": "pid",
    "version": "version",
    "begun": lambda one: ago(one.started_at),
    "heard of": lambda one: ago(one.heartbeat_at),
}


def _table(title: str, found: Collection[Any], columns: _Columns, none: str) -> _Table:
    rows = [[getattr(one, of) if isinstance(of, str) else of(one) for of in columns.values()] for one in found]
    return _Table(title, [*columns], rows, none)
